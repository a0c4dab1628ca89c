"""Rows of a Table to a Store: encoded, checked row by row, and counted."""

from __future__ import annotations

import inspect
import json
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit import __version__
from surefit.batches.field import SEQUENCES, Field, find_misalignment
from surefit.data.cache import cache_folder, fingerprint, hash_bytes
from surefit.data.encoder import Encoder
from surefit.data.store import Store, new_store
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.findings import Finding, finding

if TYPE_CHECKING:
    from surefit.data.augment.views import Views

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how much is done, and of how much."""


class RowFaultError(Exception):
    """One row that cannot be encoded: the code of its Finding, what is wrong, and the column."""

    def __init__(self, code: str, message: str, column: str | None = None, fix: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.column = column
        self.fix = fix


@dataclass(frozen=True)
class Remark:
    """What is to be said of a row without stopping the rest: a Finding's code, what, column."""

    code: str
    message: str
    column: str | None = None
    fix: str = ""


@dataclass(frozen=True)
class Encoded:
    """One encoded row, and what was done to it."""

    columns: Mapping[str, Any]
    truncated: bool = False
    learns_eos: bool = False
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class Skip:
    """A row with nothing to learn from, the reason it is dropped, and what is worth a Finding."""

    reason: str
    remark: Remark | None = None


def refuse_overlong(
    length: int, encoder: Encoder, unit: str = "tokens", column: str | None = None
) -> Skip | None:
    """What the user wants of a row over the limit: a fault, a Skip, or None to cut it."""
    policy = encoder.settings["overlong"]
    if policy == "error":
        message = f"{length} {unit}, but max_seq_length is {encoder.max_length}"
        raise RowFaultError("SF212", message, column)
    return Skip("overlong") if policy == "drop" else None


@dataclass(frozen=True)
class EncodedRow:
    """One row as the Store takes it: columns in their dtypes, and how much it teaches."""

    columns: Mapping[str, npt.NDArray[Any]]
    num_targets: int
    truncated: bool
    learns_eos: bool
    remarks: tuple[Remark, ...] = ()

    def content(self) -> bytes:
        """The columns' values, by which two rows are alike."""
        return b"\0".join(np.ascontiguousarray(value).tobytes() for value in self.columns.values())


EncodeRow = Callable[[Mapping[str, Any], Encoder], Encoded | Skip | Mapping[str, Any]]


@dataclass
class _Faults:
    """The first row of each kind of fault, and how many more there are."""

    table: Table
    encoder: Encoder
    first: dict[tuple[str, str | None], tuple[int, RowFaultError | Remark]] = field(
        default_factory=dict
    )
    counts: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    def add(self, row: int, fault: RowFaultError | Remark) -> None:
        key = (fault.code, fault.column)
        self.first.setdefault(key, (row, fault))
        self.counts[key] += 1

    def findings(self) -> list[Finding]:
        found = []
        for key, (row, fault) in self.first.items():
            where = self.table.where(row)
            more = self.counts[key] - 1
            tail = f" ({more} more row{'s' if more > 1 else ''} like it)" if more else ""
            message = f"row {where['row']}: {fault.message}{tail}"
            column = self.encoder.column_of(fault.column) if fault.column else None
            found.append(finding(fault.code, message, where, fix=fault.fix, column=column))
        return found


@dataclass
class _Tally:
    """What became of rows and of their views; rows count once, however many views they have."""

    remarks: _Faults
    counts: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, list[int]] = field(default_factory=dict)
    dropped_views: Counter[str] = field(default_factory=Counter)

    def drop_row(self, number: int, skip: Skip) -> None:
        self.dropped.setdefault(skip.reason, []).append(number)
        if skip.remark is not None:
            self.remarks.add(number, skip.remark)

    def add_row(
        self,
        number: int,
        first: EncodedRow,
        further: Sequence[tuple[int, EncodedRow | Skip, bool]],
    ) -> list[tuple[int, EncodedRow]]:
        """Count a row and its further views; returns the views that are kept, by number."""
        for remark in first.remarks:
            self.remarks.add(number, remark)
        kept = [(0, first)]
        for view, made, alike in further:
            self.counts["alike_views"] += alike
            if isinstance(made, Skip):
                self.dropped_views[made.reason] += 1
            else:
                kept.append((view, made))
        self.counts["rows"] += 1
        self.counts["trained_tokens"] += sum(each.num_targets for _, each in kept)
        self.counts["truncated_rows"] += any(each.truncated for _, each in kept)
        self.counts["rows_learning_eos"] += all(each.learns_eos for _, each in kept)
        return kept

    def notes(self) -> dict[str, Any]:
        return {
            "counts": dict(self.counts),
            "dropped": {reason: len(hit) for reason, hit in self.dropped.items()},
            "dropped_examples": {reason: hit[:3] for reason, hit in self.dropped.items()},
            "dropped_views": dict(self.dropped_views),
            "findings": [asdict(found) for found in self.remarks.findings()],
        }


def encode_rows(
    table: Table,
    rows: npt.NDArray[np.int64],
    *,
    encode: EncodeRow,
    fields: Mapping[str, Field],
    count_targets: Callable[[Mapping[str, Any]], int],
    encoder: Encoder,
    progress: Progress,
    stage: str,
    views: Views | None = None,
) -> Store:
    """Encode the given rows into a Store in the cache, or open the one that is there.

    With `views`, each row is followed by its further views, which are rows of the Store like any
    other. Faults of all rows are gathered, one Finding per kind with its first row, and raised
    together; then nothing is written.
    """
    code = (encode, count_targets, *(views.code() if views else ()))
    key = encode_key(table, rows, code, encoder, fields, views.state() if views else None)
    folder = cache_folder() / "encoded" / key
    if folder.exists():
        return Store(folder)
    faults = _Faults(table, encoder)
    tally = _Tally(_Faults(table, encoder))
    notes: dict[str, Any] = {}
    encode_one = partial(
        encode_row, encode=encode, encoder=encoder, fields=fields, count_targets=count_targets
    )
    with new_store(folder, fields, notes) as writer:
        for done, (source_row, raw) in enumerate(zip(rows, table.rows(rows), strict=True)):  # type: ignore[arg-type]
            if done % 256 == 0:
                progress(stage, done, len(rows))
            number = int(source_row)
            try:
                row, extras = encoder.read(raw), {name: raw[name] for name in encoder.extras}
                made = encode_one(row, extras)
                if isinstance(made, Skip):
                    tally.drop_row(number, made)
                    continue
                again = partial(encode_one, extras=extras)
                further = list(views.further(row, number, made, again)) if views else []
            except RowFaultError as fault:
                faults.add(number, fault)
                continue
            kept = tally.add_row(number, made, further)
            for view, each in kept:
                writer.append(
                    each.columns,
                    source_row=number,
                    view=view,
                    num_targets=each.num_targets,
                    length=row_length(each.columns),
                )
                tally.counts["tokens"] += num_tokens(each.columns, fields)
        progress(stage, len(rows), len(rows))
        found = faults.findings()
        if found:
            raise FindingError(*found)
        notes |= tally.notes()
    return Store(folder)


def encode_row(
    row: Mapping[str, Any],
    extras: Mapping[str, Any],
    *,
    encode: EncodeRow,
    encoder: Encoder,
    fields: Mapping[str, Field],
    count_targets: Callable[[Mapping[str, Any]], int],
) -> EncodedRow | Skip:
    """One row, read by role, as the Store takes it; a Skip where nothing can be learned."""
    encoded = encode(row, encoder)
    if isinstance(encoded, Skip):
        return encoded
    if not isinstance(encoded, Encoded):
        encoded = Encoded(encoded)
    columns = cast_columns({**encoded.columns, **extras}, fields, encoder.column_of)
    num_targets = count_targets(columns)
    if num_targets == 0:
        return Skip("nothing_to_learn")
    return EncodedRow(columns, num_targets, encoded.truncated, encoded.learns_eos, encoded.remarks)


def row_length(columns: Mapping[str, Any]) -> int:
    """How long a row is: the steps of its sequence, or 1 where it has none."""
    lead = next((name for name in SEQUENCES if name in columns), None)
    return len(columns[lead]) if lead is not None else 1


def num_tokens(columns: Mapping[str, Any], fields: Mapping[str, Field]) -> int:
    """Steps of all sequences of a row: a source and its target count both."""
    targets = {len(columns[n]) for n, spec in fields.items() if spec.axes[:1] == ("target_time",)}
    return row_length(columns) + sum(targets)


def cast_columns(
    columns: Mapping[str, Any],
    fields: Mapping[str, Field],
    column_of: Callable[[str], str] = str,
) -> dict[str, npt.NDArray[Any]]:
    """The row's columns in their Fields' dtypes; a RowFaultError where one does not fit.

    `column_of` gives the name the user knows a column by, for messages.
    """
    cast = {}
    for name, spec in fields.items():
        shown = f"column {column_of(name)!r}"
        if name not in columns:
            raise RowFaultError("SF202", f"{shown} is missing", name)
        try:
            value = np.asarray(columns[name])
        except ValueError:
            raise RowFaultError(
                "SF208", f"{shown} holds lists of different lengths", name
            ) from None
        if value.dtype.kind not in "biuf":
            raise RowFaultError("SF213", f"{shown} holds {value.dtype} values, not numbers", name)
        if value.ndim != spec.rank:
            raise RowFaultError(
                "SF208",
                f"{shown} has shape {list(value.shape)}; expected "
                f"{spec.rank} axes ({', '.join(spec.axes) or 'a single value'})",
                name,
            )
        with np.errstate(over="ignore"):
            narrow = value.astype(spec.numpy_dtype) if spec.numpy_dtype.kind == "f" else value
        if value.dtype.kind == "f" and not np.isfinite(narrow).all():
            place = [int(axis) for axis in np.argwhere(~np.isfinite(narrow))[0]]
            found = value[tuple(place)]
            tail = f", too large for {spec.dtype}" if np.isfinite(found) else ""
            raise RowFaultError("SF207", f"{shown} holds {found} at {place}{tail}", name)
        if spec.numpy_dtype.kind in "iu" and value.dtype.kind == "f" and (value % 1).any():
            raise RowFaultError("SF213", f"{shown} holds fractions; expected whole numbers", name)
        cast[name] = narrow.astype(spec.numpy_dtype, copy=False)
    lengths = {name: len(value) for name, value in cast.items() if value.ndim}
    fault = find_misalignment(lengths, fields, 0)
    if fault is not None:
        raise RowFaultError(
            "SF201",
            f"column {column_of(fault.column)!r} has length {fault.found}, but "
            f"{column_of(fault.other)!r}, which it runs along, has length {fault.expected}",
            fault.column,
        )
    return cast


def count_labelled(columns: Mapping[str, Any]) -> int:
    """Targets of a row: its labels that are not -100; 1 for a single label or none at all."""
    labels = columns.get("labels")
    if labels is None or labels.ndim == 0 or labels.dtype.kind == "f":
        return 1
    return int((labels != -100).sum())


def silent(stage: str, done: int, total: int) -> None:
    """A Progress that shows nothing."""


def collect_texts(
    table: Table, rows: Sequence[int], columns: Iterable[str], limit: int = 20_000
) -> Iterable[str]:
    """Text of the given columns of up to `limit` rows, for making a tokenizer."""
    chosen = list(columns)
    for row in table.rows(rows[:limit]):
        for name in chosen:
            value = row[name]
            if isinstance(value, str):
                yield value
            elif isinstance(value, list) and all(isinstance(part, str) for part in value):
                yield " ".join(value)


def encode_key(
    table: Table,
    rows: npt.NDArray[np.int64],
    code: Iterable[Callable[..., Any]],
    encoder: Encoder,
    fields: Mapping[str, Field],
    views: Mapping[str, Any] | None = None,
) -> str:
    """Changes when anything does that the encoded rows depend on."""
    return fingerprint(
        __version__,
        table.key,
        hash_bytes(rows.tobytes()),
        [code_key(function) for function in code],
        encoder.state(),
        tokenizer_key(encoder.tokenizer),
        {name: repr(spec) for name, spec in fields.items()},
        {"views": views},
    )


def code_key(function: Callable[..., Any]) -> str:
    """Changes when the code that encodes rows changes, so that no stale cache is read.

    Plain values that a function closes over count as its code; where there is no source to read,
    every key is a new one.
    """
    try:
        source = inspect.getsource(sys.modules.get(function.__module__) or function)
        closed_over = inspect.getclosurevars(function).nonlocals
        plain = {k: v for k, v in closed_over.items() if isinstance(v, int | float | str | tuple)}
        return fingerprint(function.__qualname__, source, plain)
    except (AttributeError, OSError, TypeError):
        return uuid.uuid4().hex


def tokenizer_key(tokenizer: Any) -> str:
    if tokenizer is None:
        return ""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content: Any = json.loads(backend.to_str()) if backend is not None else repr(tokenizer)
    if backend is not None:  # what the last call asked for is no part of the tokenizer
        content = {k: v for k, v in content.items() if k not in ("truncation", "padding")}
    return fingerprint(content, tokenizer.pad_token_id, tokenizer.eos_token_id)
