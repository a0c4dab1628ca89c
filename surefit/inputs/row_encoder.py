"""One row to its encoded blocks, their columns in the dtypes of their Fields: for every command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import (
    IGNORE_INDEX,
    RECORDED,
    Field,
    describe_misalignment,
    find_misalignment,
    lead_column,
)
from surefit.data.column_values import is_good
from surefit.data.data_rules import (
    MISALIGNED_COLUMNS,
    MISSING_COLUMN,
    NOT_FINITE,
    UNREADABLE_MEDIA,
    WRONG_SHAPE,
    WRONG_TYPE,
)
from surefit.inputs.batch_tokenizing import Tokenized, tokenize_rows
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


def row_length(columns: Mapping[str, Any], fields: Mapping[str, Field]) -> int:
    """Return the sequence length of a row; 1 if it has no sequence."""
    lead = lead_column(columns)
    if lead in RECORDED:
        place = fields[lead].time_axis
        return 1 if place is None else int(columns[lead].shape[place])
    return len(columns[lead]) if lead is not None and columns[lead].ndim else 1


def second_sequence(fields: Mapping[str, Field]) -> str | None:
    """Return the column of the target sequence, for rows with a source and a target."""
    return next((n for n, spec in fields.items() if spec.axes[:1] == ("target_time",)), None)


def cast_columns(
    columns: Mapping[str, Any],
    fields: Mapping[str, Field],
    column_of: Callable[[str], str] = str,
) -> dict[str, npt.NDArray[Any]]:
    """Return the row's columns in the dtypes of their Fields; a RowFaultError if one does not fit.

    `column_of` returns the user's name of a column, for messages.
    """
    cast: dict[str, npt.NDArray[Any]] = {}
    for name, spec in fields.items():
        given = columns.get(name)
        if (
            isinstance(given, np.ndarray)
            and given.dtype == spec.numpy_dtype
            and given.ndim == spec.rank
            and given.dtype.kind == "i"
        ):
            cast[name] = given  # tokens: the common case
            continue
        if type(given) is int and not spec.rank and spec.dtype == "int64":
            cast[name] = np.array(given)  # int64, or uint64 or object for what does not fit
            if cast[name].dtype == spec.numpy_dtype:
                continue
        shown = f"column {column_of(name)!r}"
        if name not in columns:
            raise RowFaultError(MISSING_COLUMN, f"{shown} is missing", name)
        cast[name] = _cast(_as_array(given, spec, name, shown), spec, name, shown)
    lengths = {name: len(value) for name, value in cast.items() if value.ndim}
    fault = find_misalignment(lengths, fields)
    if fault is not None:
        name, found, other, expected = fault
        message = describe_misalignment(column_of(name), found, column_of(other), expected)
        raise RowFaultError(MISALIGNED_COLUMNS, message, name)
    return cast


def _as_array(given: Any, spec: Field, name: str, shown: str) -> npt.NDArray[Any]:
    """Return the value as an array of numbers with the axes of its Field."""
    try:
        value = np.asarray(given)
    except ValueError:
        what = f"{shown} contains lists of different lengths"
        raise RowFaultError(WRONG_SHAPE, what, name) from None
    if value.dtype.kind not in "biuf":
        what = f"{shown} contains {value.dtype} values; expected numbers"
        raise RowFaultError(WRONG_TYPE, what, name)
    if value.ndim != spec.rank:
        axes = ", ".join(spec.axes) or "a single value"
        what = f"{shown} has shape {list(value.shape)}; expected {spec.rank} axes ({axes})"
        raise RowFaultError(WRONG_SHAPE, what, name)
    return value


def _cast(value: npt.NDArray[Any], spec: Field, name: str, shown: str) -> npt.NDArray[Any]:
    """Return the array in the dtype of its Field, which must be able to hold every value."""
    with np.errstate(over="ignore"):
        narrow = value.astype(spec.numpy_dtype) if spec.numpy_dtype.kind == "f" else value
    if value.dtype.kind == "f" and not np.isfinite(narrow).all():
        place = [int(axis) for axis in np.argwhere(~np.isfinite(narrow))[0]]
        found = value[tuple(place)]
        tail = f", too large for {spec.dtype}" if np.isfinite(found) else ""
        raise RowFaultError(NOT_FINITE, f"{shown} contains {found} at {place}{tail}", name)
    if spec.numpy_dtype.kind in "iu" and value.dtype.kind == "f" and (value % 1).any():
        what = f"{shown} contains fractions; expected integers"
        raise RowFaultError(WRONG_TYPE, what, name)
    return narrow.astype(spec.numpy_dtype, copy=False)


def count_labelled(columns: Mapping[str, Any]) -> int:
    """Targets of a row: its labels that are not -100; 1 for a single label or none at all."""
    labels = columns.get("labels")
    if labels is None or labels.ndim == 0 or labels.dtype.kind == "f":
        return 1
    return int(np.count_nonzero(labels != IGNORE_INDEX))


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
