"""Columns that say which rows are validation rows: one of parts, or one of times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import Splitting, set_option
from surefit.data.column_types import is_number, is_text
from surefit.data.column_values import has_words, word_set
from surefit.data.official_splits import Part, part_of
from surefit.data.row_arrays import new_array, places_of
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.data.written_values import date_order, read_date
from surefit.errors import UsageError

NAMED_FOR_PARTS = word_set("split subset partition fold set")
"""One of these words is in the name of a column of parts."""
NAMED_FOR_GROUPS = word_set(
    "id ids uid uuid guid patient patients subject subjects user users customer customers client "
    "speaker speakers person participant participants student session group household family "
    "device machine engine animal mouse author donor case cases"
)
"""One of these words is in the name of a column of groups."""
MOST_VALUES = 12
"""A column of parts has no more different values, such as train, Train, dev and test."""
SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PartColumn:
    """The column that says which part of the split a row belongs to, and what its values mean."""

    column: str
    values: pa.ChunkedArray
    part_of: Mapping[str, Part]
    counts: Mapping[str, int]

    def divide(self, rows: Rows) -> tuple[Rows, Rows, Rows]:
        """Return the places of training, validation and other rows among some rows.

        Where no row is for validation, those for testing are.
        """
        codes = dict(zip(self.part_of, range(len(self.part_of)), strict=True))
        named = pa.array([*codes], pa.string())
        of_row = new_array(len(self.values), np.int8)
        start = 0
        for chunk in self.values.chunks:
            found = pc.index_in(chunk.cast(pa.string()), named)
            of_row[start : start + len(chunk)] = found
            start += len(chunk)
        parts = [self.part_of[value] for value in codes]
        shown = "validation" if "validation" in parts else "test"
        own = of_row[rows]
        train, held = (
            np.isin(own, [code for code, part in enumerate(parts) if part == wanted])
            for wanted in ("train", shown)
        )
        return places_of(train), places_of(held), places_of(~train & ~held)

    def describe(self) -> str:
        """Return how many rows have each value."""
        return ", ".join(f"{value!r} in {count:,} rows" for value, count in self.counts.items())


def find_part_column(
    table: Table, asked: Splitting, has_eval_data: bool, roles: Mapping[str, str]
) -> PartColumn | None:
    """Return the column of parts that the user names, or one that is named for it.

    Such a column has a training part, another one, and nothing else. None where the user says how
    rows are split, or reads the column.
    """
    if asked.column is not None and asked.column != "none":
        table.require_column("split.column", asked.column)
        if has_eval_data:
            raise UsageError(
                f"split.column={asked.column} and the validation data both name validation rows.",
                "Leave out one of them; split.column=none trains on all rows of the data.",
            )
        found = _read_parts(table, asked.column)
        if found is None:
            counts = table.profile(asked.column).counts or {}
            shown = ", ".join(repr(value) for value in [*counts][:5])
            raise UsageError(
                f"split.column is {asked.column!r}, and its values are {shown or 'of other kinds'}"
                f"{' …' if len(counts) > 5 else ''}; expected train, and validation (val, dev) or "
                "test, in every row.",
                "Name a column of parts. For groups that stay in one set: "
                f"{set_option('split.by', asked.column)}.",
            )
        return found
    if has_eval_data or asked.is_settled or table.live is not None:
        return None
    for name in table.columns:
        if has_words(name, NAMED_FOR_PARTS) and name not in roles.values():
            found = _read_parts(table, name)
            if found is not None:
                return found
    return None


def _read_parts(table: Table, column: str) -> PartColumn | None:
    profile = table.profile(column)
    if not is_text(profile.kind) or profile.values.null_count:
        return None
    counts = {str(value): count for value, count in (profile.counts or {}).items()}
    if not 2 <= len(counts) <= MOST_VALUES:
        return None
    known: dict[str, Part] = {}
    for value in counts:
        part = part_of(value)
        if part is None:
            return None
        known[value] = part
    parts = {*known.values()}
    if "train" not in parts or len(parts) < 2:
        return None
    return PartColumn(column, table.arrow[column], known, counts)


def read_times(table: Table, column: str, key: str = "split.time") -> Times:
    """Return the moment of each row: seconds of dates, and numbers as they are.

    `key` is the setting that names the column.
    """
    table.require_column(key, column)
    kind = table.column_type(column)
    times = new_array(table.num_rows, np.float64)
    texts = pc.unique(table.arrow[column]).drop_null().to_pylist() if is_text(kind) else []
    order = date_order([text for text in texts if text.strip()])
    if not (is_number(kind) or pa.types.is_temporal(kind) or order is not None):
        raise UsageError(
            f"{key} is {column!r}, which has neither dates in one notation nor numbers.",
            "Name a column of dates, times or numbers.",
        )
    for at, part in table.profile(column).slices():
        times[at : at + len(part)] = _moments(part, order)
    missing = np.isnan(times)
    if missing.any():
        where = table.where(int(np.argmax(missing)))
        raise UsageError(
            f"{key} is {column!r}, and {int(missing.sum())} of {table.num_rows} rows have no "
            f"value there; row {where['row']} of {where['file']} is the first.",
            "Fill in the missing times, or delete the rows.",
        )
    return times


def _moments(part: pa.Array, order: str | None) -> Times:
    if order is not None:
        read = [None if t is None else read_date(t.strip(), order) for t in part.to_pylist()]
        return np.array([np.nan if at is None else at.timestamp() for at in read])
    if pa.types.is_timestamp(part.type) or pa.types.is_date(part.type):
        moments = part.cast(pa.timestamp("us", getattr(part.type, "tz", None)))
        part = pc.divide(moments.cast(pa.int64()).cast(pa.float64()), 1e6)
    elif pa.types.is_temporal(part.type):
        width = pa.int32() if part.type.bit_width == 32 else pa.int64()
        part = part.cast(width)
    return np.asarray(part.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def read_gap(gap: float | str | None, column: str, kind: pa.DataType) -> float:
    """Return the gap before the validation set, in seconds for dates, else in the column's unit.

    >>> read_gap("7d", "day", pa.date32()), read_gap(3, "week", pa.int64())
    (604800.0, 3.0)
    """
    if gap is None:
        return 0.0
    match = re.fullmatch(r"([\d.]+)\s*([a-z]*)", str(gap))
    assert match is not None  # the config has checked it
    size, unit = float(match[1]), match[2]
    if is_number(kind) == (unit == ""):
        return size * SECONDS.get(unit, 1)
    raise UsageError(
        f"split.gap is {gap}, and {column!r} (split.time) has "
        f"{'numbers' if unit else 'dates or times'}.",
        "Give a number in the unit of the column, such as split.gap=3."
        if unit
        else "Give a duration with its unit (s, min, h, d, w), such as split.gap=7d.",
    )


def divide_by_time(times: Times, wanted: int, gap: float) -> tuple[Rows, Rows, Rows]:
    """Return the places of the earlier rows, the latest ones, and those in the gap between.

    Rows of one moment stay in one set; the number of the latest ones is as near to `wanted` as
    they allow.

    >>> train, latest, between = divide_by_time(np.array([5.0, 1, 2, 4, 3, 5]), 1, gap=2)
    >>> train.tolist(), latest.tolist(), between.tolist()
    ([1, 2, 4], [0, 5], [3])
    """
    if wanted == 0 or len(times) == 0:
        empty = np.empty(0, np.int64)
        return np.arange(len(times)), empty, empty
    begin = np.partition(times, len(times) - wanted)[len(times) - wanted]
    later = times[times > begin]
    with_ties = int((times >= begin).sum())
    if len(later) and (wanted - len(later) < with_ties - wanted or with_ties == len(times)):
        begin = later.min()
    held = times >= begin
    trained = ~held & (begin - times >= gap)
    return places_of(trained), places_of(held), places_of(~held & ~trained)
