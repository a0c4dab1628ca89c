"""feature-classification: one class, or several, per vector or sequence of features."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow.compute as pc

from surefit.batches.field import Field
from surefit.data.label_columns import is_continuous, row_values
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
    label_field,
    probabilities,
)
from surefit.tasks.feature_sequences import (
    FIELDS,
    Reader,
    augmented_features,
    encode_steps,
    feature_fields,
    row_head,
)
from surefit.tasks.task_spec import Head, TaskSpec

MOST_CLASSES = 0.2
"""Share of the rows; more different numbers than that are amounts."""


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether labels are classes; an odd fraction among them is a fault, and not an amount."""
    label = roles["label"]
    if not is_continuous(table, label):
        return True
    distinct = int(pc.count_distinct(row_values(table, label)).as_py())
    return distinct <= MOST_CLASSES * table.num_rows


def fit(rows: Any, encoder: Encoder) -> dict[str, Any]:
    """The classes, and the width, length and spread of the features."""
    reader = Reader(encoder)
    return {**fit_classes(reader.watch(rows), encoder), **reader.fitted()}


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The steps as float32 and their mask, or the vector, and the class."""
    if "label" not in row:
        return encode_steps(row, encoder)
    return encode_steps(row, encoder, {"labels": class_id(row, encoder)})


def _num_classes(encoder: Encoder) -> int:
    return len(encoder.classes)


SPEC = TaskSpec(
    name="feature-classification",
    summary="one class, or several, per vector [width] or sequence [steps, width] of features",
    needs=(("features", "label"),),
    optional=("mask",),
    takes=takes,
    arrays=augmented_features,
    fields={**FIELDS, "labels": Field((), "int64")},
    fields_of=lambda encoder: {**feature_fields(encoder), "labels": label_field(encoder)},
    encode=encode,
    fit=fit,
    baselines=class_baselines,
    loss=class_loss,
    class_scores=class_scores,
    predicted_values=probabilities,
    metrics={"accuracy": accuracy, "macro_f1": MACRO_F1, "confusion": CONFUSION},
    best="accuracy",
    decode=decode_classes,
    head=Head(size=_num_classes, body="rows"),
    head_of=partial(row_head, _num_classes),
)
