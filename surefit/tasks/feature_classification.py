"""feature-classification: classes of vectors or sequences of features, or of their time steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from surefit.batches.field import Field
from surefit.data.label_columns import holds_amounts
from surefit.data.table import Table
from surefit.encode.encoded_row import Encoding
from surefit.encode.encoder import Encoder
from surefit.tasks.class_task import class_targets, class_task
from surefit.tasks.classes import (
    CONFUSION,
    MACRO_F1,
    accuracy,
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
from surefit.tasks.step_classes import (
    LABEL,
    LABELS,
    NUM_STEPS,
    accepts_labels,
    choose_labels,
    decode_steps,
    encode_with_classes,
    fit_step_classes,
    is_per_step,
    naming_place,
    per_step,
)
from surefit.tasks.task_spec import Batch, Head


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether labels are classes; an odd fraction among them is a fault, and not an amount."""
    return not holds_amounts(table, roles["label"])


def fit(rows: Any, encoder: Encoder) -> dict[str, Any]:
    """The classes, of rows or of time steps, and the width, length and spread of the features."""
    by_step, rows, notes = choose_labels(rows, encoder)
    reader, fit_labels = Reader(encoder), fit_step_classes if by_step else fit_classes
    with naming_place(rows) as placed:
        classes = fit_labels(reader.watch(placed), encoder)
    spread = reader.fitted()
    return {**classes, **spread, "findings": [*notes, *spread.get("findings", ())]}


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The steps as float32 and their mask, or the vector, and the class or classes."""
    if is_per_step(encoder):
        return encode_with_classes(row, encoder)
    return encode_steps(row, encoder, class_targets(row, encoder))


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """The most likely class, or classes, of each row or of each of its steps."""
    made = decode_steps if is_per_step(encoder) else decode_classes
    return made(outputs, batch, encoder)


def fields(encoder: Encoder) -> dict[str, Field]:
    """The features, and the class or classes of the row or of its steps."""
    if is_per_step(encoder):
        return {**FIELDS, "num_steps": NUM_STEPS, "labels": LABELS}
    return {**feature_fields(encoder), "labels": label_field(encoder)}


def head(encoder: Encoder) -> Head:
    """One output per class, for each row or for each step."""
    if is_per_step(encoder):
        return Head(size=_num_classes, body="step_classes")
    return row_head(_num_classes, encoder)


def _num_classes(encoder: Encoder) -> int:
    return len(encoder.classes)


SPEC = class_task(
    name="feature-classification",
    summary="one class, or several, per vector [width] or sequence [steps, width] of features, or "
    "one class per step",
    needs=(("features", "label"),),
    optional=("mask",),
    roles=(replace(LABEL, accepts=accepts_labels),),
    takes=takes,
    arrays=augmented_features,
    fields={**FIELDS, "labels": Field((), "int64")},
    fields_of=fields,
    encode=encode,
    fit=fit,
    loss=per_step(class_loss),
    class_scores=per_step(class_scores),
    predicted_values=per_step(probabilities),
    metrics={
        "accuracy": per_step(accuracy),
        "macro_f1": replace(MACRO_F1, sums=per_step(MACRO_F1.sums)),
        "confusion": replace(CONFUSION, sums=per_step(CONFUSION.sums)),
    },
    decode=decode,
    step_labels=True,
    head=Head(size=_num_classes, body="rows"),
    head_of=head,
)
