"""A batch of rows that are read anew from the user's Dataset in each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.field import NUM_TARGETS, OWN
from surefit.batches.loading import to_batch
from surefit.data.forms import spread_columns
from surefit.data.python.live_rows import LiveRows, kept_randomness
from surefit.data.several_columns import join_columns
from surefit.errors import RunFailedError
from surefit.inputs.augment.array_changes import FIELDS as MIXED_FIELDS
from surefit.inputs.encoded_row import EncodedRow, RowFaultError, SkipRowError, phrase_of
from surefit.inputs.store import Store
from surefit.targets.class_loss import loss_divisor

if TYPE_CHECKING:
    from surefit.inputs.augment.array_augment import EpochRows
    from surefit.inputs.augment.augmented_copies import AugmentedCopies
    from surefit.pipeline.pipeline import Pipeline

DIVISOR = f"{OWN}divisor"
"""The column of a live batch that states what its loss is divided by."""
GIVE_ROWS = (
    "Let the Dataset give a row that can be trained on whenever it is read. Then resume the run."
)


def live_batch(
    pipeline: Pipeline, source: Store | EpochRows, rows: Any, epoch: int, device: Any
) -> dict[str, Any]:
    """Rows as their Dataset gives them in this epoch, with what their loss is divided by."""
    prepare, live = pipeline.prepare, pipeline.live
    assert live is not None
    read = live.encoded(pipeline, source, rows, epoch)
    columns = _augmented(pipeline, source, rows, epoch, read)
    if prepare is not None:
        numbers = [(int(source.source_row[place]), int(source.copy[place])) for place in rows]
        columns = [prepare(row, epoch, *n) for row, n in zip(columns, numbers, strict=True)]
    fields = {**MIXED_FIELDS, **pipeline.fields}
    batch = to_batch(columns, fields, pipeline.collate_fn, device, pipeline.layout)
    counted = {NUM_TARGETS: sum(row.num_targets for row in read)}
    own = pipeline.collate_fn is not None  # which may change the targets
    return {**batch, **({} if own else counted), DIVISOR: _divisor(pipeline, read)}


def _augmented(
    pipeline: Pipeline, source: Store | EpochRows, rows: Any, epoch: int, read: list[EncodedRow]
) -> list[Mapping[str, Any]]:
    """The columns of rows that were read, changed as the source says; a partner is read, too."""
    known = {int(row): each.columns for row, each in zip(rows, read, strict=True)}
    if isinstance(source, Store):
        return [known[int(row)] for row in rows]

    def of(row: int) -> Mapping[str, Any]:
        if row not in known:
            assert pipeline.live is not None
            known[row] = pipeline.live.encoded(pipeline, source, [row], epoch)[0].columns
        return known[row]

    return [source.change(int(row), of) for row in rows]


@dataclass(frozen=True)
class ReadAnew:
    """The rows of a Dataset, read anew in each epoch."""

    live: LiveRows
    copies: AugmentedCopies | None = None
    """How augmented copies of a row are made, where the Store has some."""

    @property
    def row_seconds(self) -> float:
        """How long reading a row takes on average."""
        return self.live.row_seconds

    def encoded(
        self, pipeline: Pipeline, source: Store | EpochRows, rows: Any, epoch: int
    ) -> list[EncodedRow]:
        """Rows of a Store as they are in this epoch (from 0)."""
        with kept_randomness():
            numbers = [(int(source.source_row[row]), int(source.copy[row])) for row in rows]
            return [self._read(pipeline, *number, epoch) for number in numbers]

    def _read(self, pipeline: Pipeline, number: int, copy: int, epoch: int) -> EncodedRow:
        """Read and encode a row, or a copy of it; raises where it cannot be trained on."""
        table = spread_columns(self.live.table(number, pipeline.seed, epoch + 1))
        raw = join_columns(table, pipeline.encoder.roles.values()).row(0)
        encode, where = pipeline.row_encoder, f"row {number}, epoch {epoch + 1}"
        try:
            blocks = encode(raw)
            if self.copies is not None and copy:
                begun = encode.begin(raw)
                again = partial(encode.encode_read, extras=begun.extras)
                place = (number, copy, epoch)
                blocks = self.copies.encode_anew(begun.row, place, blocks, again)
        except SkipRowError as skip:
            message = f"{where}: the row cannot be used ({phrase_of(skip.reason)})."
            raise RunFailedError(message, GIVE_ROWS) from None
        except RowFaultError as fault:
            raise RunFailedError(f"{where}: {fault.message}", fault.fix or GIVE_ROWS) from None
        if len(blocks) != 1:
            raise RunFailedError(
                f"{where}: the row is longer than {pipeline.encoder.max_length} and would be "
                "split.",
                "Truncate such rows: --set overlong=truncate.",
            )
        return blocks[0]


def _divisor(pipeline: Pipeline, rows: list[EncodedRow]) -> float:
    """What the loss of these rows is divided by: their targets, or their class weights."""
    options = pipeline.encoder.settings.loss
    if options.class_weights is None:
        return sum(row.num_targets for row in rows)
    labels = np.concatenate([np.ravel(row.columns["labels"]) for row in rows])
    return loss_divisor(options, labels)
