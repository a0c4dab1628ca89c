"""feature-classification: one class per sequence of pre-computed features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surefit.batches.field import Field
from surefit.data.encode import Encoded, Skip
from surefit.data.encoder import Encoder
from surefit.tasks.classes import (
    CONFUSION,
    MACRO_F1,
    accuracy,
    class_id,
    class_loss,
    decode_classes,
    fit_classes,
)
from surefit.tasks.features import FIELDS, Reader, read_steps
from surefit.tasks.spec import Head, TaskSpec


def fit(rows: Any, encoder: Encoder) -> dict[str, Any]:
    """The classes, and the width, length and spread of the features."""
    reader = Reader(encoder)
    return {**fit_classes(reader.watch(rows), encoder), **reader.fitted()}


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoded | Skip:
    """The steps as float32, the mask if there is one, and the class."""
    read = read_steps(row, encoder)
    if isinstance(read, Skip):
        return read
    steps, mask, truncated = read
    columns: dict[str, Any] = {"inputs_embeds": steps, "attention_mask": mask}
    if "label" in row:
        label = class_id(row, encoder)
        if isinstance(label, Skip):
            return label
        columns["labels"] = label
    return Encoded(columns, truncated=truncated)


SPEC = TaskSpec(
    name="feature-classification",
    summary="one class per sequence of features [steps, width]",
    needs=(("features", "label"),),
    optional=("mask",),
    fields={**FIELDS, "labels": Field((), "int64")},
    encode=encode,
    fit=fit,
    loss=class_loss,
    metrics={"accuracy": accuracy, "macro_f1": MACRO_F1, "confusion": CONFUSION},
    best="accuracy",
    decode=decode_classes,
    head=Head(size=lambda encoder: len(encoder.classes), body="rows"),
)
