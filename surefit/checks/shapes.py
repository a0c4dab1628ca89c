"""The shape of numbers: values that repeat where none should, pile up, or lie on two scales.

One predicate looks at every numeric thing: columns of a table, targets, channels of features. A
healthy sample of measurements has neighbours for each of its values: nothing lies far from all
others and repeats, no single value in their middle is frequent, and no gap parts them in two.
Values of absurd size are looked for among all rows: the largest of each slice join the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.checks.class_values import SENTINELS
from surefit.config import set_option
from surefit.data.split import sample_rows
from surefit.data.table import Table
from surefit.findings import Finding, Place, Rule, rule
from surefit.inputs.store import Store

ODD_SHAPE = rule(
    "SF244",
    "warning",
    "numbers that do not fit the others of their column",
    why="A value that repeats far from all others usually stands for a missing one; values that "
    "pile up were cut off or filled in; two scales come from two units; absurd sizes from an "
    "overflow. The model takes each for a measurement, and beside an absurd value, which sets the "
    "scale, all others look the same.",
    fix="Correct the values or leave them blank.",
    accept="The values are trained on as they are.",
)

Array = npt.NDArray[Any]
FEWEST_ROWS = 30
FEW_VALUES, SEVERAL_VALUES = 4, 8
"""Different values from which a marker such as -999 is looked for, and from which all else is."""
FEWEST_HITS, LEAST_SHARE = 3, 0.004
"""Rows that must have an odd value, and their share of all rows."""
CONTINUOUS = 0.1
"""Different values, as a share of the rows, from which numbers are measurements."""
FAR, FAR_MARKER = 1.5, 0.3
"""How far a repeated value is from the others, in their range (1st to 99th percentile); less for
zero, and for numbers that people write for a missing value."""
TIMES = 4
"""How many times more frequent than any other value a negative marker is, if all others are not
negative and it is not far from them."""
FREQUENT = 12
"""How many times more frequent a value is than the next one, if it was filled in or cut off."""
SCALES = 8.0
"""A gap without values, as a factor, between two scales ..."""
SCALE_SHARE = 0.015
"""... each of which has this share of the rows ..."""
ALIKE = 0.3
"""... and a spread, in logarithms, which is at least this share of the other's ..."""
OFFSET = 0.6
"""... or in units, as years of two and of four digits have."""
GROUP_GAP = 0.6
"""A gap that parts a few rows from all others, as a share of the others' range."""
SHOWN = 3


@dataclass(frozen=True)
class Shape:
    """What is odd: which of the values, what is said of them, and the fix."""

    hits: npt.NDArray[np.bool_]
    what: str
    fix: str


def is_marker(value: float) -> bool:
    """Return whether people write the number for a missing value.

    >>> [n for n in (-1, 0, 7, 99, 100, -999, 9999, 98, -9999.0, 1e20) if is_marker(n)]
    [-1, 99, -999, 9999, -9999.0, 1e+20]
    """
    if not float(value).is_integer():
        return False
    digits = f"{abs(value):.0f}"
    nines = len(digits) >= 2 and set(digits) == {"9"}
    return nines or int(value) in SENTINELS or abs(value) >= 1e18 or int(value) == -(2**31)


def find_shape(values: Array) -> Shape | None:
    """Return what is odd about numbers; None for a healthy sample.

    >>> heights = np.random.default_rng(0).normal(170, 8, 500).round(1)
    >>> find_shape(heights) is None
    True
    >>> find_shape(np.where(np.arange(500) % 50 == 7, -999, heights)).what
    'are -999, far from all others (138.8 to 194.5)'
    """
    known = values[np.isfinite(values)]
    different, counts = np.unique(known, return_counts=True)
    if len(known) < FEWEST_ROWS or len(different) < FEW_VALUES:
        return None
    finders = (_sentinel, _filled, _scales, _mirrored)
    for find in finders if len(different) >= SEVERAL_VALUES else finders[:1]:
        shape = find(values, different, counts)
        if shape is not None and shape.hits.sum() >= max(FEWEST_HITS, LEAST_SHARE * len(known)):
            return shape
    return None


def _sentinel(values: Array, different: Array, counts: Array) -> Shape | None:
    """One value at either end that repeats, with nothing near it."""
    for at, rest in ((0, different[1:]), (-1, different[:-1])):
        value = float(different[at])
        others = values[np.isfinite(values) & (values != value)]
        low, high = np.percentile(others, (1, 99))
        gap = rest[0] - value if at == 0 else value - rest[-1]
        spacing = np.diff(rest)
        known = is_marker(value) or (value == 0 and len(different) >= SEVERAL_VALUES)
        if not known and len(different) < SEVERAL_VALUES:
            continue
        is_far = gap > (FAR_MARKER if known else FAR) * max(high - low, 1e-12)
        repeats = known or counts[at] > np.median(counts)
        is_alone = repeats and gap > 2 * spacing.max(initial=0)
        most = 0.5 if known else 0.2
        others_most = int(np.delete(counts, at).max())
        is_below = known and value < 0 <= rest.min() and counts[at] >= TIMES * others_most
        if ((is_far and is_alone) or is_below) and counts[at] <= most * counts.sum():
            return Shape(
                values == value,
                f"are {value:g}, far from all others ({rest.min():g} to {rest.max():g})",
                f"Leave the cells blank where {value:g} means that a value is missing.",
            )
    return None


def _decimals(value: float) -> int:
    return len(repr(round(value, 10)).partition(".")[2].rstrip("0"))


def _filled(values: Array, different: Array, counts: Array) -> Shape | None:
    """One frequent value among measurements: a mean that was filled in, or a bound."""
    if len(different) < CONTINUOUS * counts.sum():
        return None
    order = np.argsort(-counts, kind="stable")
    first, second = order[0], order[1]
    value, count = float(different[first]), int(counts[first])
    if count > 0.3 * counts.sum() or count < max(
        8, FREQUENT * np.sort(counts)[int(0.9 * len(counts))]
    ):
        return None
    usual = sorted(_decimals(float(v)) for v in different[order[1:200]])
    is_finer = _decimals(value) > usual[int(0.95 * len(usual))]
    is_top, is_bottom = first == len(different) - 1, first == 0
    if is_finer and not (is_top or is_bottom) and count >= 4 * counts[second]:
        what = f"are {value:g}, with more digits than the others: a mean or median filled in"
        return Shape(values == value, what, "Leave the cells blank where the value is missing.")
    is_bound = (is_top or (is_bottom and value != 0)) and count >= 6 * counts[second]
    if is_bound and not _is_natural(value):
        end = "largest" if is_top else "smallest"
        what = f"are {value:g}, the {end} value, as if the others were cut off there"
        return Shape(values == value, what, "Get the values before they were cut off.")
    return None


def _is_natural(value: float) -> bool:
    """Whether a bound is one by definition: 0, ±1, 10, 100, 255 and the like."""
    return abs(value) in (0.0, 0.5, 1.0, 255.0) or np.log10(max(abs(value), 1e-9)) % 1 == 0


def _scales(values: Array, different: Array, counts: Array) -> Shape | None:
    """Two groups of sizes with a gap between them, alike but for a factor or an offset."""
    sizes = np.abs(values)
    kept = np.isfinite(values) & (values != 0)
    ordered = np.sort(sizes[kept])
    if len(ordered) < FEWEST_ROWS or len(ordered) < 0.5 * np.isfinite(values).sum():
        return None
    ratios = ordered[1:] / ordered[:-1]
    at = int(np.argmax(ratios))
    small, large = ordered[: at + 1], ordered[at + 1 :]
    fewer = min(len(small), len(large))
    if ratios[at] < SCALES or fewer < max(FEWEST_HITS, SCALE_SHARE * len(ordered)):
        return None
    second = np.partition(ratios, -2)[-2]
    if len(np.unique(small)) < 3 or len(np.unique(large)) < 3 or ratios[at] < 2 * second:
        return None
    ends = [np.percentile(part, (10, 90)) for part in (small, large)]
    factors, widths = [np.ptp(np.log(each)) for each in ends], [np.ptp(each) for each in ends]
    if min(factors) < ALIKE * max(factors) and min(widths) < OFFSET * max(widths):
        return None
    is_odd = kept & (sizes <= small[-1] if len(small) <= len(large) else sizes >= large[0])
    what = (
        f"are of another scale: {small[0]:g} to {small[-1]:g} in {len(small):,} rows, {large[0]:g} "
        f"to {large[-1]:g} in {len(large):,} rows, and nothing between"
    )
    return Shape(is_odd, what, "Write all values in one unit.")


def _mirrored(values: Array, different: Array, counts: Array) -> Shape | None:
    """Numbers of either sign, none of them near zero: a sign was turned in some rows."""
    sizes = np.abs(values[np.isfinite(values)])
    negative = values < 0
    fewer = negative if negative.sum() * 2 <= len(sizes) else values > 0
    spread = np.percentile(sizes, 99) - np.percentile(sizes, 1)
    if not fewer.any() or sizes.min() < 0.3 * np.median(sizes) or sizes.min() < 0.3 * spread:
        return None
    if len(np.unique(values[fewer])) < 3 or fewer.sum() < 0.01 * len(sizes):
        return None
    return Shape(fewer, "have the other sign, and no value is near zero", "Correct the signs.")


def find_group(values: Array, alike: bool = False) -> Shape | None:
    """Return a few rows that lie apart from all others, with a gap wider than the others' range.

    For facts about rows, not for columns: measurements may have two groups. Others that are all
    equal have no range to compare with: a fact of two values, such as the corner of a mask.
    `alike` is whether the few rows must have one value.
    """
    known = np.sort(values[np.isfinite(values)])
    if len(known) < FEWEST_ROWS:
        return None
    gaps = np.diff(known)
    at = int(np.argmax(gaps))
    second = float(np.partition(gaps, -2)[-2])
    low, high = known[: at + 1], known[at + 1 :]
    fewer, rest = (low, high) if len(low) < len(high) else (high, low)
    bounds = np.percentile(rest, (1, 99))
    if alike and fewer[0] != fewer[-1]:
        return None
    if not max(FEWEST_HITS, SCALE_SHARE * len(known)) <= len(fewer) <= 0.4 * len(known):
        return None
    spread = bounds[1] - bounds[0]
    if spread <= 1e-9 * abs(known).max() or gaps[at] < max(GROUP_GAP * spread, 2 * second):
        return None
    hits = (values >= fewer[0]) & (values <= fewer[-1])
    what = (
        f"lie apart: {fewer[0]:g} to {fewer[-1]:g}, and {rest[0]:g} to {rest[-1]:g} in all others"
    )
    return Shape(hits, what, "Look at these rows: they were made in another way than the others.")


def report(
    broken: Rule,
    what: str,
    rows: Array,
    where: Callable[[int], Place],
    quotes: Sequence[Any],
    fix: str,
    column: str | None,
) -> Finding:
    """Return the finding about some rows, with the first of them and what each has.

    In `what`, # stands for their number.
    """
    places = [where(int(row)) for row in rows[:SHOWN]]
    shown = (
        f"row {place.get('row', row)} ({repr(quote) if isinstance(quote, str) else f'{quote:g}'})"
        for row, place, quote in zip(rows[:SHOWN], places, quotes, strict=False)
    )
    message = f"{what.replace('#', f'{len(rows):,}', 1)}: {', '.join(shown)}."
    return broken.finding(message, places[0], fix=fix, column=column)


def check_shape(
    values: Array,
    rows: Array,
    name: str,
    column: str,
    where: Callable[[int], Place],
    find: Callable[[Array], Shape | None] = find_shape,
) -> Iterator[Finding]:
    """Yield what is odd about one number per row; `rows` are theirs, `name` says what they are."""
    shape = find(np.asarray(values, np.float64))
    if shape is None:
        return
    what = f"{name}: # of {len(rows):,} values looked at {shape.what}"
    quotes = values[shape.hits][:SHOWN].tolist()
    yield report(ODD_SHAPE, what, rows[shape.hits], where, quotes, shape.fix, column)


GAP = 2.0**13
"""A factor without values below an absurd one ..."""
SMALLEST = 65_536.0
"""... which is not smaller than this: rounding errors beside probabilities are no case ..."""
LARGEST_SHARE = 0.1
"""... and is found in at most this share of the rows."""
SQUEEZED = 300.0
"""How many times the largest other value the column's standard deviation must be."""
BESIDE_ZERO = 1e30
"""From here on, a value is absurd even if all others are zero."""
FEATURE_GAP = 1e9
"""A factor between one feature and all others."""
TOPS = 8
CHUNK, SAMPLED = 1 << 20, 1 << 22


def find_absurd(sample: Array, tops: Array, num_rows: int) -> float | None:
    """Return the size from which values are absurd, by a sample and the largest of all rows.

    Nothing lies between an absurd value and the others; heavy tails leave no such gap.

    >>> heights = np.linspace(140, 200, 99)
    >>> find_absurd(heights, np.array([1e7, 200.0]), 100), find_absurd(heights, heights, 99)
    (10000000.0, None)
    """
    usual, largest = (np.abs(part[np.isfinite(part)]) for part in (sample, tops))
    sizes = np.unique(np.concatenate([usual, largest]))
    sizes = sizes[sizes > 0]
    with np.errstate(over="ignore"):
        gaps = np.flatnonzero(sizes[1:] / sizes[:-1] >= GAP) + 1
    for bound in sizes[gaps][sizes[gaps] >= SMALLEST].tolist():
        share = max(
            (usual >= bound).mean() if len(usual) else 0, (largest >= bound).sum() / num_rows
        )
        below = sizes[np.searchsorted(sizes, bound) - 1]
        if share <= LARGEST_SHARE and bound / below * share**0.5 >= SQUEEZED:
            return float(bound)
    beside_zero = len(sizes) and sizes[0] >= BESIDE_ZERO and (usual > 0).mean() <= LARGEST_SHARE
    return float(sizes[0]) if beside_zero else None


def check_column(table: Table, column: str, whole: bool) -> Iterator[Finding]:
    """Yield the odd shape of a column of numbers, on a sample spread over the rows.

    With `whole`, values of absurd size are looked for among all rows.
    """
    profile = table.profile(column)
    rows, values = [np.empty(0, np.int64)], [np.empty(0)]
    tops, at = [np.empty(0)], [np.empty(0, np.int64)]
    for start, part in profile.slices():
        read = part.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        chosen = np.arange(-start % profile.stride, len(read), profile.stride)
        rows.append(start + chosen)
        values.append(read[chosen])
        sizes = np.where(np.isfinite(read), np.abs(read), -1)
        largest = (
            np.argsort(sizes)[-TOPS:]
            if len(sizes) <= TOPS
            else (np.argpartition(sizes, -TOPS)[-TOPS:])
        )
        at.append(start + largest)
        tops.append(read[largest])
    sample, numbers = np.concatenate(values), np.concatenate(rows)
    every, places = np.concatenate([sample, *tops]), np.concatenate([numbers, *at])
    bound = find_absurd(sample, np.concatenate(tops), len(profile.values)) if whole else None
    if bound is None:
        yield from check_shape(sample, numbers, f"column {column!r}", column, table.where)
        return
    absurd = np.abs(np.nan_to_num(every)) >= bound
    hit, first = np.unique(places[absurd], return_index=True)
    rest = every[~absurd & np.isfinite(every)]
    what = (
        f"column {column!r}: # of {len(numbers):,} rows looked at have values of another order of "
        f"magnitude than all others ({rest.min(initial=0):g} to {rest.max(initial=0):g})"
    )
    fix = "Correct or blank these values, or leave the column out: "
    fix += f"{set_option('ignore', column)}."
    quotes = every[absurd][first][:SHOWN].tolist()
    yield report(ODD_SHAPE, what, hit, table.where, quotes, fix, column)


def check_amounts(
    store: Store, table: Table, name: str, column: str, side: str
) -> Iterator[Finding]:
    """Yield features of encoded rows with values of absurd size, and absurd features."""
    field = store.fields.get(name)
    if field is None or field.rank not in (1, 2) or not len(store):
        return
    width, flat = int(store.value(name, 0).shape[-1]), store.values(name)
    if width == 0 or len(flat) % width:
        return
    steps = flat.reshape(-1, width)
    size = max(1, CHUNK // width)
    places, tops = [], []
    for start in range(0, len(steps), size):
        sizes = np.nan_to_num(np.abs(steps[start : start + size]), nan=0, posinf=0)
        places.append(start + sizes.argmax(0))
        tops.append(sizes.max(0))
    largest, at = np.stack(tops).astype(np.float64), np.stack(places)  # (chunks, width)
    if largest.max() < SMALLEST:
        return
    some = np.sort(sample_rows(len(steps), max(1, SAMPLED // width), 0))
    sample = np.abs(np.asarray(steps[some], np.float64))
    bounds = {
        n: bound
        for n in np.flatnonzero(largest.max(0) >= SMALLEST).tolist()
        if (bound := find_absurd(sample[:, n], largest[:, n], len(steps))) is not None
    }
    bounds |= dict.fromkeys(_absurd_features(sample, largest.max(0)), SMALLEST)
    found = sorted(
        {
            (int(step), n, float(steps[step, n]))
            for n, bound in bounds.items()
            for step in (*at[largest[:, n] >= bound, n], *some[sample[:, n] >= bound])
        }
    )
    if not found:
        return
    offsets = store.offsets(name)
    rows = np.searchsorted(offsets, [step * width for step, *_ in found], side="right") - 1
    rows, first = np.unique(store.source_row[rows], return_index=True)
    quotes = [f"{found[n][2]:g} in feature {found[n][1]}" for n in first[:SHOWN]]
    what = (
        f"column {column!r}: # of {len(store):,} {side} rows have values of another order of "
        f"magnitude, in {len(bounds)} of {width} features"
    )
    fix = "Correct these values, scale the feature (a logarithm, for example), or leave it out."
    yield report(ODD_SHAPE, what, rows, table.where, quotes, fix, column)


def _absurd_features(sample: Array, tops: Array) -> list[int]:
    """Return features whose every value is far larger than all values of the other features."""
    lowest = np.where(sample > 0, sample, np.inf).min(0)
    order = np.argsort(tops, kind="stable")
    few = max(1, int(LARGEST_SHARE * len(order)))
    for at in range(max(1, len(order) - few), len(order)):
        upper = order[at:]
        if 0 < tops[order[at - 1]] < lowest[upper].min() / FEATURE_GAP:
            return [int(n) for n in upper if tops[n] >= SMALLEST]
    return []
