"""Tasks of one target per row, as pairs: how the input of a row is read, and what is learned.

`RowInput` is the first half (text, token ids, images, recordings, features, tables), `RowTarget`
the second (classes, numbers). `row_task` makes a TaskSpec of a target and the inputs it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from surefit.batches.field import Field
from surefit.data.cell_files import FILE_ROLES, is_empty
from surefit.data.table import Table
from surefit.findings import Finding
from surefit.inputs.encoded_row import DropReason, Encoding, drop_row
from surefit.inputs.encoder import Encoder
from surefit.inputs.row_input import Roles, Row, RowInput
from surefit.inputs.text.text_reading import ALONGSIDE, adapt_to_pairs
from surefit.targets.row_target import RowTarget
from surefit.targets.task_spec import (
    Body,
    Head,
    Reads,
    TaskSpec,
    TextUse,
)

NO_MORE = Reads()
READS_TEXT: dict[str, Any] = {
    "optional": ("text_pair", *ALONGSIDE),
    "text": TextUse(adapt_tokenizer=adapt_to_pairs, augments=("text", "text_pair")),
}
"""What a TaskSpec whose rows may be texts has besides."""


def row_task(
    name: str,
    inputs: tuple[RowInput, ...],
    target: RowTarget,
    reads: Reads = NO_MORE,
    **more: Any,
) -> TaskSpec:
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
            raise drop_row(DropReason.EMPTY)
        has_label = "label" in encoder.roles and "label" in row
        targets = {"labels": target.encode(row, encoder)} if has_label else {}
        return given.encode(row, encoder, targets)

    def fields_of(encoder: Encoder) -> dict[str, Field]:
        return {**input_of(encoder.roles).fields(encoder), "labels": target.field(encoder)}

    def head_of(encoder: Encoder) -> Head:
        given = input_of(encoder.roles)
        if given.model.auto_class is None:
            body: Body | None = "rows" if given.model.is_sequence(encoder) else None
            return Head(size=target.size, body=body, unit=target.unit)
        return Head(
            given.model.auto_class,
            target.size,
            lambda encoder: {**target.config(encoder), **given.model.config(encoder)},
            unit=target.unit,
        )

    def takes(table: Table, roles: Roles) -> bool:
        given = input_of(roles)
        return given.takes(table, roles) and not given.holds_amounts(table.profile(roles["label"]))

    has_table = any(each.role is None for each in inputs)
    figures = target.figures if has_table else replace(target.figures, judge=None)
    spec = TaskSpec(
        name,
        fields_of,
        encode,
        target.loss,
        target.metrics,
        head_of,
        needs=tuple((each.role, "label") if each.role else ("label",) for each in inputs),
        fit=fit,
        decode=target.decode,
        reads=replace(reads, takes=reads.takes or takes, inputs=inputs),
        figures=figures,
    )
    return replace(spec, **more)
