"""Numbers that are absurdly large beside the others, in columns and in features.

Magnitudes are counted by binary exponent, in one pass and constant memory: a value is absurd where
nothing lies between it and the others for many powers of two. Heavy tails leave no such gap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.config import set_option
from surefit.data.column_types import is_number
from surefit.data.table import Table
from surefit.encode.store import Store
from surefit.findings import Finding, rule

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

Array = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]

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


def exponents(values: Array) -> Array:
    """The binary exponent of each value, as float32 has it; 0 for what is not finite.

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
    """The exponent from which values are absurd, by how many values have each; None for none."""
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


def check_number_columns(table: Table, columns: Sequence[str]) -> Iterator[Finding]:
    """Columns of one number per row."""
    for column in columns:
        kind = table.column_type(column)
        if not is_number(kind) or pa.types.is_boolean(kind):
            continue
        counts = np.zeros(BINS, np.int64)
        for _, values in column_chunks(table, column):
            counts += np.bincount(exponents(values), minlength=BINS)
        bound = find_gap(counts)
        if bound is not None:
            yield _absurd_rows(table, column, bound, int(counts[bound:].sum()))


def column_chunks(table: Table, column: str) -> Iterator[tuple[int, Array]]:
    """The numbers of a column in chunks, blanks as NaN, each with its first row."""
    start = 0
    for chunk in table.arrow[column].chunks:
        for at in range(0, len(chunk), CHUNK):
            piece = chunk[at : at + CHUNK]
            yield start + at, piece.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        start += len(chunk)


def _absurd_rows(table: Table, column: str, bound: int, count: int) -> Finding:
    rows: list[int] = []
    shown: list[str] = []
    low, high = math.inf, -math.inf
    for start, values in column_chunks(table, column):
        absurd = exponents(values) >= bound
        rest = values[~absurd & np.isfinite(values)]
        low, high = min(low, rest.min(initial=math.inf)), max(high, rest.max(initial=-math.inf))
        for place in np.flatnonzero(absurd)[: SHOWN - len(rows)].tolist():
            rows.append(start + place)
            shown.append(f"row {table.where(rows[-1])['row']} has {values[place]:g}")
    message = (
        f"column {column!r}: values of another order of magnitude in {count:,} of "
        f"{table.num_rows:,} rows: {', '.join(shown)}; all others are between {low:g} and {high:g}."
    )
    fix = f"Correct or blank these values, or leave the column out: {set_option('ignore', column)}."
    return ABSURD_VALUES.finding(message, table.where(rows[0]), fix=fix, column=column)


def check_features(
    store: Store, table: Table, name: str, column: str, side: str
) -> Iterator[Finding]:
    """The features of encoded rows: values absurd within one feature, and absurd features."""
    field = store.fields.get(name)
    if field is None or field.rank not in (1, 2) or not len(store):
        return
    width = int(store.value(name, 0).shape[-1])
    flat = store.values(name)
    if width == 0 or len(flat) % width:
        return
    counts = np.zeros(width * BINS, np.int64)
    step = max(1, CHUNK // width) * width
    places = np.arange(step, dtype=np.int64) % width * BINS
    for start in range(0, len(flat), step):
        found = exponents(flat[start : start + step])
        counts += np.bincount(places[: len(found)] + found, minlength=len(counts))
    by_feature = counts.reshape(width, BINS)
    bounds = {n: find_gap(each) for n, each in enumerate(by_feature) if each[SMALLEST:].any()}
    absurd = {n: bound for n, bound in bounds.items() if bound is not None}
    absurd |= dict.fromkeys(_absurd_features(by_feature), SMALLEST)
    if absurd:
        yield _absurd_steps(store, table, (name, column, side), absurd)


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


def _absurd_steps(
    store: Store, table: Table, names: tuple[str, str, str], absurd: dict[int, int]
) -> Finding:
    """How many rows hold an absurd value, with the first three."""
    name, column, side = names
    flat, offsets = store.values(name), store.offsets(name)
    width = int(store.value(name, 0).shape[-1])
    limits = np.full(width, BINS, np.int64)
    limits[[*absurd]] = [*absurd.values()]
    hit: list[Array] = []
    firsts: list[tuple[int, int]] = []
    step = max(1, CHUNK // width) * width
    for start in range(0, len(flat), step):
        chunk = exponents(flat[start : start + step]).reshape(-1, width)
        places = start + np.flatnonzero((chunk >= limits).ravel())
        rows = np.unique(np.searchsorted(offsets, places, side="right") - 1)
        hit.append(rows)
        for row in rows[: SHOWN - len(firsts)].tolist():
            inside = places[np.searchsorted(places, offsets[row])]
            firsts.append((row, int(inside)))
    count = len(np.unique(np.concatenate(hit)))
    wheres = [table.where(int(store.source_row[row])) for row, _ in firsts]
    shown = ", ".join(
        f"row {where['row']} has {flat[place]:g} in feature {place % width}"
        for where, (_, place) in zip(wheres, firsts, strict=True)
    )
    message = (
        f"column {column!r}: values of another order of magnitude in {len(absurd)} of {width} "
        f"features, in {count:,} of {len(store):,} {side} rows: {shown}."
    )
    fix = "Correct these values, scale the feature (a logarithm, for example), or leave it out."
    return ABSURD_VALUES.finding(message, wheres[0], fix=fix, column=column)
