"""feature-classification: one class per sequence of pre-computed features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from surefit.batches.field import Field
from surefit.data.label_columns import is_continuous
from surefit.data.table import Table
from surefit.encode.encoded_row import Encoding
from surefit.encode.encoder import Encoder
from surefit.tasks.baselines import class_baselines
from surefit.tasks.classes import (
    CONFUSION,
    MACRO_F1,
    accuracy,
    class_id,
    class_loss,
    class_scores,
    decode_classes,
    fit_classes,
    probabilities,
)
from surefit.tasks.feature_sequences import FIELDS, Reader, encode_steps
from surefit.tasks.task_spec import Head, TaskSpec

MOST_CLASSES = 0.2
"""Share of the rows; more different numbers than that are amounts."""


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether labels are classes; an odd fraction among them is a fault, and not an amount."""
    label = roles["label"]
    if not is_continuous(table, label):
        return True
    distinct = int(pc.count_distinct(table.arrow[label]).as_py())
    return distinct <= MOST_CLASSES * table.num_rows


def fit(rows: Any, encoder: Encoder) -> dict[str, Any]:
    """The classes, and the width, length and spread of the features."""
    reader = Reader(encoder)
    return {**fit_classes(reader.watch(rows), encoder), **reader.fitted()}


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The steps as float32, the mask if there is one, and the class."""
    if "label" not in row:
        return encode_steps(row, encoder)
    return encode_steps(row, encoder, {"labels": class_id(row, encoder)})


SPEC = TaskSpec(
    name="feature-classification",
    summary="one class per sequence of features [steps, width]",
    needs=(("features", "label"),),
    optional=("mask",),
    takes=takes,
    fields={**FIELDS, "labels": Field((), "int64")},
    encode=encode,
    fit=fit,
    baselines=class_baselines,
    loss=class_loss,
    class_scores=class_scores,
    predicted_values=probabilities,
    metrics={"accuracy": accuracy, "macro_f1": MACRO_F1, "confusion": CONFUSION},
    best="accuracy",
    decode=decode_classes,
    head=Head(size=lambda encoder: len(encoder.classes), body="rows"),
)
