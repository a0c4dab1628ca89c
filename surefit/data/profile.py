"""Profiles: what the values of a column are. Each fact is found once, and every rule shares it.

A Profile reads its column a slice at a time, when a fact is first asked for, and keeps what it
found: `Table.profile(column)` returns the same Profile again. Rules and roles are predicates on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.column_types import IMAGE_ENDINGS, is_list, is_number, is_text
from surefit.data.written_values import are_dates, is_date, read_number

Array = npt.NDArray[Any]

SLICE_ROWS = 1 << 16
MAX_DISTINCT = 10_000
"""Of a column with more different values, they are not counted one by one."""
SPREAD_ROWS = 20_000
"""Rows, spread evenly over all of them, at which rules look whose test of a value is slow."""
FIRST_ROWS = 200
"""Rows of which the values tell what a column is for."""
SAMPLE_ROWS = 10_000
PROSE_WORDS = 3.0
"""Mean number of words from which the values of a column are text to read, rather than names."""
MAX_SHARE_OF_CLASSES = 0.5
"""More classes than this share of the rows means that the column is no class label."""
MOST_CLASSES = 0.2
"""Share of the rows; more different numbers than that are amounts."""
ODD_SHARE = 0.1
"""Fractions in more of the rows than this are no faults."""
FEW_ROWS = 10
"""Up to so many rows, values need not repeat to be classes."""


@dataclass(frozen=True)
class Profile:
    """What the values of one column are."""

    values: pa.ChunkedArray

    @property
    def kind(self) -> pa.DataType:
        """The Arrow type."""
        return self.values.type

    @property
    def is_scalar(self) -> bool:
        """Whether each row has one text or number."""
        return is_text(self.kind) or is_number(self.kind)

    def slices(self) -> Iterator[tuple[int, pa.Array]]:
        """Slices of the values, each with the number of its first row."""
        start = 0
        for chunk in self.values.chunks:
            for at in range(0, len(chunk), SLICE_ROWS):
                yield start + at, chunk.slice(at, SLICE_ROWS)
            start += len(chunk)

    def blanks(self) -> Array:
        """Return the rows whose value is missing, NaN, or a text of spaces."""
        found = [np.empty(0, np.int64)]
        for at, part in self.slices():
            if is_text(self.kind):
                blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(part), ""), True)
            else:
                blank = pc.is_null(part, nan_is_null=bool(pa.types.is_floating(self.kind)))
            found.append(at + np.flatnonzero(np.asarray(blank)))
        return np.concatenate(found)

    @cached_property
    def counts(self) -> Mapping[Any, int] | None:
        """How often each text or number occurs; None where there are too many different ones."""
        counts: dict[Any, int] = {}
        for _, part in self.slices() if self.is_scalar else ():
            for pair in pc.value_counts(part.drop_null()).to_pylist():
                if pair["values"] == pair["values"]:
                    counts[pair["values"]] = counts.get(pair["values"], 0) + pair["counts"]
            if len(counts) > MAX_DISTINCT:
                return None
        return counts

    @cached_property
    def num_distinct(self) -> int:
        """How many different values there are; missing ones do not count."""
        counts = self.counts if self.is_scalar else None
        return len(counts) if counts is not None else int(pc.count_distinct(self.values).as_py())

    @cached_property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest number."""
        found = pc.min_max(self.values).as_py()
        return found["min"], found["max"]

    @cached_property
    def lengths(self) -> Array:
        """The lengths of texts, bytes or lists that are not missing or empty."""
        if is_text(self.kind):
            sizes = pc.utf8_length(self.values)
        elif is_list(self.kind):
            sizes = pc.list_value_length(self.values)
        elif pa.types.is_binary(self.kind) or pa.types.is_large_binary(self.kind):
            sizes = pc.binary_length(self.values)
        else:
            return np.empty(0, np.int64)
        found = np.asarray(sizes.drop_null(), np.int64)
        return found[found > 0]

    @cached_property
    def first(self) -> list[Any]:
        """The values of the first rows, without missing ones."""
        return [v for v in self.values.slice(0, FIRST_ROWS).to_pylist() if v is not None]

    @property
    def stride(self) -> int:
        """Every so many rows are SPREAD_ROWS, spread evenly."""
        return -(-len(self.values) // SPREAD_ROWS) or 1

    def spread(self) -> Iterator[tuple[Array, pa.Array]]:
        """Yield rows that are spread evenly over all of them: their numbers, and their values."""
        start = 0
        for chunk in self.values.chunks:
            rows = np.arange(-start % self.stride, len(chunk), self.stride, dtype=np.int64)
            if len(rows):
                yield start + rows, chunk if self.stride == 1 else chunk.take(pa.array(rows))
            start += len(chunk)

    def rows_with(self, value: Any, most: int) -> list[int]:
        """Return the first rows that have a text, but for spaces around it, or a number."""
        found: list[int] = []
        for at, part in self.slices() if self.is_scalar else ():
            if is_text(self.kind):
                equal = pc.equal(pc.utf8_trim_whitespace(part), str(value))
            elif isinstance(value, str):
                break
            else:
                equal = pc.equal(part.cast(pa.float64()), float(value))
            found += (at + np.flatnonzero(np.asarray(equal.fill_null(False)))).tolist()
            if len(found) >= most:
                break
        return found[:most]

    @cached_property
    def varies(self) -> bool:
        """Whether there is more than one value; of lists and objects, whether any is not empty."""
        if self.is_scalar:
            return self.num_distinct > 1
        if is_list(self.kind):
            return bool(len(self.lengths))
        return bool(self.values.null_count < len(self.values))

    @cached_property
    def holds_texts(self) -> bool:
        """Whether texts are to be read, rather than a few repeated values, dates, or files."""
        values = [v for v in self.values.slice(0, 1000).to_pylist() if v is not None]
        if not values:
            return True
        if sum(read_number(value) is not None for value in values) > 0.5 * len(values):
            return False  # numbers, turned into text by a few cells
        if sum(is_date(value.strip()) for value in values) > 0.5 * len(values):
            return False
        if len(values) >= 50 and len(set(values)) < 0.1 * len(values):
            return False
        return not all(value.lower().endswith(IMAGE_ENDINGS) for value in values)

    @cached_property
    def is_prose(self) -> bool:
        """Whether the values are texts of several words that differ from row to row."""
        if not is_text(self.kind) or not self.holds_texts:
            return False
        values = [value.strip() for value in self.first if value.strip()]
        if len({*values}) < 0.5 * len(values) or not values:
            return False
        if sum(" " not in value and "/" in value for value in values) > 0.5 * len(values):
            return False  # addresses and paths
        words = sum(len(value.split()) for value in values)
        letters = "".join(values)  # some scripts have no spaces between words
        is_spaced = letters.isascii() or " " in letters
        return words >= PROSE_WORDS * len(values) or not is_spaced

    @cached_property
    def flat(self) -> Profile:
        """The profile of the numbers in lists of one size, as an array [N, K]; else of itself."""
        if not is_list(self.kind) or not is_number(self.kind.value_type):
            return self
        sizes = pc.min_max(pc.list_value_length(self.values)).as_py()
        return Profile(pc.list_flatten(self.values)) if sizes["min"] == sizes["max"] else self

    @cached_property
    def is_continuous(self) -> bool:
        """Whether numbers are amounts: fractions, or many different whole numbers."""
        flat, kind = self.flat, self.flat.kind
        if not is_number(kind) or pa.types.is_boolean(kind):
            return False
        if pa.types.is_floating(kind) and flat.share_of_fractions:
            return True
        filled = len(flat.values) - flat.values.null_count
        return flat.num_distinct > 256 or (
            flat.num_distinct > 20 and flat.num_distinct > 0.2 * filled
        )

    @cached_property
    def share_of_fractions(self) -> float:
        """Of the first numbers, the share that are not whole."""
        sample = np.asarray(self.values.drop_null().slice(0, SAMPLE_ROWS))
        with np.errstate(invalid="ignore"):
            return float((np.isfinite(sample) & (sample % 1 != 0)).mean()) if len(sample) else 0.0

    def holds_amounts(self, whole: bool = True) -> bool:
        """Return whether a label's numbers are amounts, where a few odd values among classes are
        faults.

        `whole` is whether many different integers are amounts, too, rather than classes.
        """
        if not self.is_continuous:
            return False
        many = self.flat.num_distinct > MOST_CLASSES * len(self.values)
        if not pa.types.is_floating(self.flat.kind):
            return whole and many
        return many or self.flat.share_of_fractions > ODD_SHARE

    @cached_property
    def holds_classes(self) -> bool:
        """Whether the values are classes: a few that repeat, or lists of such values."""
        kind: Any = self.kind
        values: Any = self.values.slice(0, SAMPLE_ROWS).combine_chunks()
        while is_list(kind):
            kind, values = kind.value_type, values.flatten()
        values = values.drop_null()
        if not (is_text(kind) or is_number(kind)) or self.is_continuous:
            return False
        distinct = int(pc.count_distinct(values).as_py())
        if len(values) <= FEW_ROWS:
            return True
        if distinct < 2 or distinct > MAX_SHARE_OF_CLASSES * len(values):
            return False
        if not is_text(kind):
            return True
        names = values.unique().to_pylist()  # which are neither dates nor JSON
        return not are_dates(names) and not all(name.lstrip().startswith("{") for name in names)

    @cached_property
    def is_binary(self) -> bool:
        """Whether the values are true and false, or 0 and 1, and both occur."""
        if not (pa.types.is_boolean(self.kind) or pa.types.is_integer(self.kind)):
            return False
        found = pc.unique(self.values.slice(0, SAMPLE_ROWS)).drop_null().to_pylist()
        return {*found} == {0, 1}
