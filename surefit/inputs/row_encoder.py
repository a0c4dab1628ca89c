"""One row to its encoded blocks: the row encoder of every command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from surefit.batches.field import Field
from surefit.data.column_values import is_good
from surefit.data.data_rules import UNREADABLE_MEDIA
from surefit.inputs.batch_tokenizing import Tokenized, tokenize_rows
from surefit.inputs.casting import cast_columns
from surefit.inputs.encoded_row import (
    DropReason,
    Encoded,
    EncodedRow,
    EncodeRow,
    Encoding,
    NamingOwnCode,
    RowFaultError,
    drop_row,
    encoded,
)
from surefit.inputs.encoder import Encoder

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Begun:
    """A row whose texts are not tokenized yet; a failure is raised when the row is finished."""

    row: Row
    """The row by role, as the task reads it."""
    extras: Row
    """Other columns that the model's forward names."""
    encoding: Encoding | None = None
    failure: RowFaultError | None = None


@dataclass(frozen=True)
class RowEncoder:
    """How one row is encoded: the task's function, the Encoder it reads with, the Fields.

    A row is one EncodedRow, or several blocks if the task splits it. A block may be without a
    target, but not all blocks of a row.
    A row that cannot be encoded, or is dropped, raises RowFaultError. Rows to predict for need no
    targets.
    """

    encode: EncodeRow
    encoder: Encoder
    fields: Mapping[str, Field]
    count_targets: Callable[[Row], int]
    needs_targets: bool = True

    def __call__(self, raw: Row) -> tuple[EncodedRow, ...]:
        """Encode one row of a Table."""
        begun = self.begin(raw)
        return self.finish(begun, self.tokenize([begun])[0])

    def encode_read(self, row: Row, extras: Row) -> tuple[EncodedRow, ...]:
        """Encode a row by role, such as an augmented copy."""
        encoding = self._begin(row)
        tokens = tokenize_rows([encoding], self.encoder.tokenizer)[0]
        return self._finish(encoding, tokens, extras)

    def many(self, raws: Sequence[Row]) -> Iterator[Callable[[], tuple[EncodedRow, ...]]]:
        """For each row a function that returns it or raises its failure; tokenized together."""
        begun = [self.begin(raw) for raw in raws]
        for row, tokens in zip(begun, self.tokenize(begun), strict=True):
            yield partial(self.finish, row, tokens)

    def begin(self, raw: Row) -> Begun:
        """Encode a row of a Table up to its texts."""
        row, extras = self.encoder.read(raw), {name: raw[name] for name in self.encoder.extras}
        marked = self.encoder.settings.kept_where or ""  # where answers are called bad
        try:
            if marked in raw and self.needs_targets and is_good(raw[marked]) is not True:
                raise drop_row(DropReason.BAD_ANSWER)
            encoding = self._begin(row)
            return Begun(row, {**extras, **self._further(raw)}, encoding)
        except RowFaultError as failure:
            return Begun(row, extras, failure=failure)

    def tokenize(self, rows: Sequence[Begun]) -> list[list[Tokenized]]:
        """Return the tokens of the texts of each row; a fast tokenizer uses every core."""
        return tokenize_rows([row.encoding for row in rows], self.encoder.tokenizer)

    def finish(self, begun: Begun, tokens: list[Tokenized]) -> tuple[EncodedRow, ...]:
        """Return the encoded row, once its texts are tokenized; raises what failed."""
        if begun.encoding is None:
            assert begun.failure is not None
            raise begun.failure
        return self._finish(begun.encoding, tokens, begun.extras)

    def _further(self, raw: Row) -> Row:
        """Return further columns of a role, each encoded as if it were the only one."""
        made = {}
        for column, encoder in self.encoder.further.items():
            try:
                block = self._begin(encoder.read(raw), encoder).finish([])
            except RowFaultError as fault:
                if fault.reason:
                    raise
                message = f"column {column!r}: {fault.message}"
                raise RowFaultError(fault.rule, message, column, fault.fix) from None
            assert isinstance(block, Encoded), "no input of this kind is split"
            made[column] = next(iter(block.columns.values()))
        return made

    def _begin(self, row: Row, encoder: Encoder | None = None) -> Encoding:
        encoder = encoder or self.encoder
        try:
            with NamingOwnCode(self.encode):
                made = self.encode(row, encoder)
        except RowFaultError as fault:
            if fault.rule is UNREADABLE_MEDIA and encoder.settings.on_bad_file == "skip":
                raise drop_row(DropReason.BAD_FILE) from None
            raise
        return made if isinstance(made, Encoding) else encoded(made)

    def _finish(
        self, encoding: Encoding, tokens: list[Tokenized], extras: Row
    ) -> tuple[EncodedRow, ...]:
        made = encoding.finish(tokens)
        if isinstance(made, Encoded):
            blocks: tuple[EncodedRow, ...] = (self._cast(made, extras),)
        else:
            blocks = tuple(self._cast(block, extras) for block in made)
        if self.needs_targets and not any(block.num_targets for block in blocks):
            labels = self.fields.get("labels")
            by_token = "input_ids" in self.fields and labels is not None and labels.rank > 0
            raise drop_row(DropReason.NO_LABELLED_TOKEN if by_token else DropReason.NO_TARGET)
        return blocks

    def _cast(self, row: Encoded, extras: Row) -> EncodedRow:
        columns = {**extras, **row.columns}
        fields = self.fields
        if not self.needs_targets:
            fields = {name: spec for name, spec in fields.items() if name in columns}
        cast = cast_columns(columns, fields, self.encoder.column_of)
        with NamingOwnCode(self.count_targets):
            num_targets = self.count_targets(cast) if self.needs_targets else 0
        return EncodedRow(cast, num_targets, row.truncated, row.learns_eos, row.faults)
