"""Tasks of one target per row, as pairs: how the input of a row is read, and what is learned.

`RowInput` is the first half (text, token ids, images, recordings, features, tables), `RowTarget`
the second (classes, numbers). `row_task` makes a TaskSpec of a target and the inputs it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from surefit.batches.field import Field
from surefit.data.cell_files import FILE_ROLES, is_empty
from surefit.data.table import Table
from surefit.findings import Finding
from surefit.inputs.encoded_row import DropReason, Encoding, SkipRowError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedTarget
from surefit.inputs.row_input import Roles, Row, RowInput
from surefit.targets.class_loss import ClassScores
from surefit.targets.task_spec import (
    Batch,
    Body,
    Head,
    JudgeRows,
    Loss,
    MeasureBaselines,
    Metric,
    PredictedValues,
    SumAndCount,
    TaskSpec,
)


@dataclass(frozen=True)
class RowTarget:
    """What is learned for each row: how labels are fitted and encoded, the output, the loss."""

    fit: Callable[[Iterable[Row], Encoder], tuple[FittedTarget, list[Finding]]]
    encode: Callable[[Row, Encoder], Any]
    """The `labels` of a row."""
    field: Callable[[Encoder], Field]
    size: Callable[[Encoder], int]
    config: Callable[[Encoder], dict[str, Any]]
    """What the target sets in the config of a transformers model."""
    loss: Loss
    metrics: Mapping[str, SumAndCount | Metric]
    best: str
    decode: Callable[[Any, Batch, Encoder], list[dict[str, Any]]]
    predicted_values: PredictedValues
    baselines: MeasureBaselines
    judge: JudgeRows
    """Of rows of tables (see `TaskSpec.judge`)."""
    class_scores: ClassScores | None = None
    unit: str = "classes"


def row_task(name: str, inputs: tuple[RowInput, ...], target: RowTarget, **more: Any) -> TaskSpec:
    """Make the TaskSpec of a target for rows with one of the inputs, looked for in this order.

    `more` are further fields of the TaskSpec, or others in place of those that follow.
    """

    def input_of(roles: Roles) -> RowInput:
        return next((each for each in inputs if each.role in roles), inputs[-1])

    def fit(rows: Iterable[Row], encoder: Encoder) -> tuple[Encoder, list[Finding]]:
        make_reader = input_of(encoder.roles).reader
        if make_reader is None:
            learned, found = target.fit(rows, encoder)
            return replace(encoder, target=learned), found
        reader = make_reader(encoder)
        learned, found = target.fit(reader.watch(rows), encoder)
        read, notes = reader.fitted()
        return replace(encoder, target=learned, input=read), [*found, *notes]

    def encode(row: Row, encoder: Encoder) -> Encoding:
        given = input_of(encoder.roles)
        if given.role in FILE_ROLES and is_empty(row[given.role]):
            raise SkipRowError(DropReason.EMPTY)
        has_label = "label" in encoder.roles and "label" in row
        targets = {"labels": target.encode(row, encoder)} if has_label else {}
        return given.encode(row, encoder, targets)

    def fields_of(encoder: Encoder) -> dict[str, Field]:
        return {**input_of(encoder.roles).fields(encoder), "labels": target.field(encoder)}

    def head_of(encoder: Encoder) -> Head:
        given = input_of(encoder.roles)
        if given.auto_class is None:
            body: Body | None = "rows" if given.is_sequence(encoder) else None
            return Head(size=target.size, body=body, unit=target.unit)
        return Head(
            given.auto_class,
            target.size,
            lambda encoder: {**target.config(encoder), **given.config(encoder)},
            unit=target.unit,
        )

    def takes(table: Table, roles: Roles) -> bool:
        given = input_of(roles)
        return given.takes(table, roles) and not given.holds_amounts(table.profile(roles["label"]))

    spec = TaskSpec(
        name,
        fields_of(Encoder(name, {})),
        encode,
        target.loss,
        target.metrics,
        head_of(Encoder(name, {})),
        needs=tuple((each.role, "label") if each.role else ("label",) for each in inputs),
        takes=takes,
        arrays=lambda roles: next((e.section for e in inputs if e.role in roles), None),
        fields_of=fields_of,
        fit=fit,
        head_of=head_of,
        best=target.best,
        decode=target.decode,
        predicted_values=target.predicted_values,
        baselines=target.baselines,
        judge=target.judge if any(each.role is None for each in inputs) else None,
        class_scores=target.class_scores,
    )
    return replace(spec, **more)
