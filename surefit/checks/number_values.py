"""Numbers that are odd beside the others: of absurd size, or constant in one set.

One pass over a column of a table, or over the features of encoded rows, makes its profile; the
checks are predicates on it, and only what they find is looked up in the values again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import set_option
from surefit.data.column_types import is_number, is_text
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.findings import Finding, Place, rule
from surefit.inputs.store import Store

ABSURD_VALUES = rule(
    "SF242",
    "warning",
    "values of absurd size beside the others",
    why=(
        "Inputs are scaled by their spread: beside one such value, all others look the same to the "
        "model. Most often it is an overflow, a wrong unit or a marker for a missing value."
    ),
    fix="Correct the values, leave them blank, or leave the column out with ignore.",
    accept="The values are trained on as they are.",
)

CONSTANT_IN_TRAINING = rule(
    "SF248",
    "warning",
    "constant in training, but not in validation",
    why=("What other values mean cannot be learned, so the evaluation is on rows of another kind."),
    fix="Draw both sets from the same rows (leave --eval-data out), or leave the column out.",
    accept="The sets stay as they are.",
)

Array = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]
TableSides = tuple[tuple[Table, Rows], tuple[Table, Rows]]

BINS = 256
"""The exponents of float32: 0 for zero, 255 for values beyond its range."""
UNIT = 127
"""The exponent of 1."""
GAP = 13
"""Empty powers of two below an absurd value (a factor of 8,192) ..."""
SMALLEST = UNIT + 16
"""... which is not below 65,536, so that rounding errors beside probabilities are no case ..."""
LARGEST_SHARE = 0.1
"""... and is found in at most this share of the rows."""
SQUEEZED = 300.0
"""How many times the largest other value the column's standard deviation must be."""
BESIDE_ZERO = UNIT + 100
"""From here on (1e30), a value is absurd even if all others are zero."""
FEATURE_GAP = 30
"""Empty powers of two (a factor of 1e9) between one feature and all others."""
CHUNK = 1 << 20
SHOWN = 3
FEWEST_ROWS = 8
UNLIKELY = 1e-4


@dataclass(frozen=True)
class Odd:
    """Rows with an odd value, the first of them with value and feature, the range of the rest."""

    rows: Array
    first: Sequence[tuple[int, float, int]]
    low: float
    high: float


@dataclass(frozen=True)
class NumberRows:
    """The numbers of a column as (steps, width), read in chunks; a table has one step per row."""

    column: str
    width: int
    num_rows: int
    chunks: Callable[[], Iterator[tuple[int, Array]]]
    """The first step of each chunk, and the chunk."""
    rows_of: Callable[[Array], Array]
    """The row of each step."""
    where: Callable[[int], Place]

    @cached_property
    def profile(self) -> tuple[Counts, Array, Array]:
        """For each feature how many values have each exponent, and its smallest and largest."""
        counts = np.zeros(self.width * BINS, np.int64)
        low, high = np.full(self.width, np.inf), np.full(self.width, -np.inf)
        for _, chunk in self.chunks():
            places = np.arange(self.width, dtype=np.int64) * BINS + exponents(chunk)
            counts += np.bincount(places.ravel(), minlength=len(counts))
            low = np.fmin(low, np.fmin.reduce(chunk, 0))
            high = np.fmax(high, np.fmax.reduce(chunk, 0))
        return counts.reshape(self.width, BINS), low, high

    def find(self, is_odd: Callable[[Array], Array]) -> Odd:
        """Part the odd values from the others."""
        rows, low, high = [np.empty(0, np.int64)], np.inf, -np.inf
        first: list[tuple[int, float, int]] = []
        for start, chunk in self.chunks():
            odd = is_odd(chunk)
            steps, features = np.nonzero(odd)
            found = self.rows_of(start + steps)
            rows.append(np.unique(found))
            for row in rows[-1][: SHOWN - len(first)].tolist():
                at = int(np.argmax(found == row))
                value = float(chunk[steps[at], features[at]])
                first.append((row, value, int(features[at])))
            rest = chunk[~odd & np.isfinite(chunk)]
            low, high = min(low, rest.min(initial=np.inf)), max(high, rest.max(initial=-np.inf))
        return Odd(np.unique(np.concatenate(rows)), first, float(low), float(high))


def of_table(table: Table, column: str) -> NumberRows:
    """Yield the numbers of a column with one number per row; blanks are NaN."""

    def chunks() -> Iterator[tuple[int, Array]]:
        for start, part in table.profile(column).slices():
            read = part.cast(pa.float64(), safe=False)
            yield start, read.to_numpy(zero_copy_only=False)[:, None]

    return NumberRows(column, 1, table.num_rows, chunks, lambda steps: steps, table.where)


def of_store(store: Store, table: Table, name: str, column: str) -> NumberRows | None:
    """Yield the features of encoded rows: vectors, or sequences of vectors."""
    field = store.fields.get(name)
    if field is None or field.rank not in (1, 2) or not len(store):
        return None
    width, flat = int(store.value(name, 0).shape[-1]), store.values(name)
    if width == 0 or len(flat) % width:
        return None
    offsets, step = store.offsets(name), max(1, CHUNK // width)

    def chunks() -> Iterator[tuple[int, Array]]:
        for start in range(0, len(flat) // width, step):
            yield start, flat[start * width : (start + step) * width].reshape(-1, width)

    return NumberRows(
        column,
        width,
        len(store),
        chunks,
        lambda steps: np.searchsorted(offsets, steps * width, side="right") - 1,
        lambda row: table.where(int(store.source_row[row])),
    )


def exponents(values: Array) -> Array:
    """Return the binary exponent of each value, as float32 has it; 0 for what is not finite.

    >>> exponents(np.array([0.0, 1.0, -3.0, 1e39, np.nan])).tolist()
    [0, 127, 128, 255, 0]
    """
    with np.errstate(over="ignore"):
        small = np.ascontiguousarray(values, np.float32)
    found = (small.view(np.uint32) >> 23) & 0xFF
    if found.max(initial=0) == BINS - 1:
        found[~np.isfinite(values)] = 0  # reported elsewhere
    return found


def find_gap(counts: Counts) -> int | None:
    """Return the exponent from which values are absurd, by how many values have each; None for
    none.

    Nothing lies between an absurd value and the others for many powers of two; heavy tails leave
    no such gap.
    """
    used = np.flatnonzero(counts[1:]) + 1
    total = int(counts.sum())
    for below, above in itertools.pairwise(used.tolist()):
        top, rest = int(counts[above:].sum()), int(counts[1 : below + 1].sum())
        gap = above - below - 1
        if gap < GAP or above < SMALLEST or top > LARGEST_SHARE * total or rest < 5 * top:
            continue
        if math.ldexp(math.sqrt(top / total), min(gap, 1000)) >= SQUEEZED:
            return int(above)
    if len(used) and used[0] >= BESIDE_ZERO and counts[1:].sum() <= LARGEST_SHARE * total:
        return int(used[0])
    return None


def check_magnitudes(numbers: NumberRows, side: str = "") -> Iterator[Finding]:
    """Values absurd within one column or feature, and absurd features; `side` names their rows."""
    by_feature, _, _ = numbers.profile
    bounds = {n: find_gap(each) for n, each in enumerate(by_feature) if each[SMALLEST:].any()}
    absurd = {n: bound for n, bound in bounds.items() if bound is not None}
    absurd |= dict.fromkeys(_absurd_features(by_feature), SMALLEST)
    if not absurd:
        return
    limits = np.full(numbers.width, BINS, np.int64)
    limits[[*absurd]] = [*absurd.values()]
    odd = numbers.find(lambda chunk: exponents(chunk) >= limits)
    column, in_table = numbers.column, not side
    shown = ", ".join(
        f"row {numbers.where(row)['row']} has {value:g}{f' in feature {n}' * (not in_table)}"
        for row, value, n in odd.first
    )
    what = "" if in_table else f"{len(absurd)} of {numbers.width} features, in "
    rest = f"; all others are between {odd.low:g} and {odd.high:g}" * in_table
    fix = f"Correct or blank these values, or leave the column out: {set_option('ignore', column)}."
    if not in_table:
        fix = "Correct these values, scale the feature (a logarithm, for example), or leave it out."
    yield ABSURD_VALUES.finding(
        f"column {column!r}: values of another order of magnitude in {what}{len(odd.rows):,} of "
        f"{numbers.num_rows:,} {f'{side} '.lstrip()}rows: {shown}{rest}.",
        numbers.where(odd.first[0][0]),
        fix=fix,
        column=column,
    )


def _absurd_features(by_feature: Counts) -> list[int]:
    """Features whose every value is far larger than all values of the other features."""
    used = by_feature[:, 1:] > 0
    highest = np.where(used.any(1), BINS - 1 - used[:, ::-1].argmax(1), 0)
    lowest = np.where(used.any(1), used.argmax(1) + 1, 0)
    order = np.argsort(highest, kind="stable")
    tops = highest[order]
    few = max(1, int(LARGEST_SHARE * len(order)))
    for at in range(max(1, len(order) - few), len(order)):
        upper = order[at:]
        if tops[at - 1] and lowest[upper].min() - tops[at - 1] > FEATURE_GAP:
            return [int(n) for n in upper if highest[n] >= SMALLEST]
    return []


def check_constant_features(train: NumberRows, validation: NumberRows | None) -> Iterator[Finding]:
    """Features that are constant in training rows, and not in validation rows."""
    _, low, high = train.profile
    constant = np.flatnonzero(low == high)
    if train.num_rows < FEWEST_ROWS or not len(constant) or len(constant) == train.width:
        return
    found: list[list[Array]] = [[] for _ in constant]
    if validation is not None:
        for start, chunk in validation.chunks():
            unlike = chunk[:, constant] != low[constant]
            for at in np.flatnonzero(unlike.any(0)).tolist():
                found[at].append(validation.rows_of(start + np.flatnonzero(unlike[:, at])))
    odd = [
        (int(feature), rows)
        for feature, parts in zip(constant, found, strict=True)
        if parts and validation is not None
        if _is_unlikely(
            len(rows := np.unique(np.concatenate(parts))),
            validation.num_rows,
            train.num_rows,
            train.width,
        )
    ]
    if not odd or validation is None:
        return
    column, width = train.column, train.width
    feature, rows = odd[0]
    where = validation.where(int(rows[0]))
    message = (
        f"column {column!r}: feature {feature} is {low[feature] + 0.0:g} in all "
        f"{train.num_rows:,} training rows, and another value in {len(rows):,} of "
        f"{validation.num_rows:,} validation rows (row {where['row']}, for example). Features of "
        f"this kind: {len(odd)} of {width}."
    )
    yield CONSTANT_IN_TRAINING.finding(message, where, column=column)


def _is_unlikely(hits: int, shown: int, trained: int, tried: int) -> bool:
    """Whether chance hardly puts all rows with a value into one set, for one of `tried` columns."""
    if hits < 2 or not shown:
        return False
    return hits * math.log(shown / (shown + trained)) + math.log(tried) < math.log(UNLIKELY)


def check_constant_columns(sides: TableSides, columns: Sequence[str]) -> Iterator[Finding]:
    """Columns of a table with one value in the training rows and others in the validation rows."""
    (table, train), (other, validation) = sides
    if len(train) < FEWEST_ROWS or not len(validation):
        return
    for column in columns:
        kind = table.column_type(column)
        if not (is_number(kind) or is_text(kind)) or column not in other.columns:
            continue
        value = table.arrow[column][int(train[0])]
        if not value.is_valid or not _equal(table, column, value)[train].all():
            continue
        unlike = validation[~_equal(other, column, value)[validation]]
        if not _is_unlikely(len(unlike), len(validation), len(train), len(columns)):
            continue
        named: Mapping[int, Any] = {
            int(other.where(int(row))["row"]): other.arrow[column][int(row)].as_py()
            for row in unlike[:SHOWN]
        }
        shown = ", ".join(f"{found!r} in row {row}" for row, found in named.items())
        yield CONSTANT_IN_TRAINING.finding(
            f"column {column!r} is {value.as_py()!r} in all {len(train):,} training rows, and "
            f"another value in {len(unlike):,} of {len(validation):,} validation rows: {shown}.",
            other.where(int(unlike[0])),
            fix="Draw both sets from the same rows (leave --eval-data out), or leave the column "
            f"out: {set_option('ignore', column)}.",
            column=column,
        )


def _equal(table: Table, column: str, value: pa.Scalar) -> Array:
    values = table.arrow[column]
    if values.type != value.type:  # the sides are read from files of their own
        values, value = values.cast(pa.string()), value.cast(pa.string())
    return np.asarray(pc.equal(values, value).fill_null(False))
