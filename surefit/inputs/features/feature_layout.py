"""How rows of features are read, inferred from shape and model: as sequences or as vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from surefit.config import set_option
from surefit.data.data_rules import ROWS_RESHAPED, WRONG_SHAPE
from surefit.data.row_arrays import (
    Axis,
    RowShape,
    row_shape,
)
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.findings import Finding, note, rule
from surefit.inputs.model_hints import Hints
from surefit.printable import one_line

TAKE_FLAT_ROWS = (
    "A module of your own that reads vectors, and tiny:mlp, take flat rows as they are."
)
AMBIGUOUS_FLAT_ROWS = rule(
    "SF421",
    "error",
    "flat rows of ambiguous shape",
    why="With the wrong feature size, every time step would mix the values of several steps.",
    fix=(
        "Set the feature size with features.width, or the sequence length with features.steps. "
        f"{TAKE_FLAT_ROWS}"
    ),
)

TOO_MANY_IDS = rule(
    "SF436",
    "error",
    "too many ids to be features",
    why="Ids of a large vocabulary need an embedding, not one-hot vectors.",
    fix="Use a task that reads tokens.",
)

SET_SIZES = "Set features.steps and features.width to the sizes of the rows, or remove them."
MAX_ONE_HOT = 4096
"""The largest size of one-hot vectors."""
SHOWN_ANSWERS = 8


@dataclass(frozen=True)
class FeatureLayout:
    """What is done to every row, in this order: drop axes, reshape a flat row, transpose.

    A `vector` is one time step until it is encoded, as [feature size].
    """

    drop: tuple[int, ...] = ()
    """Axes of length 1 to drop."""
    width: int | None = None
    """The feature size of a flat row."""
    places: int | None = None
    """The size of the one-hot vectors of a flat row of ids."""
    transposed: bool = False
    """Whether rows are [feature size, sequence length]."""
    vector: bool = False
    """Whether each row is one vector of `width` numbers."""

    def apply(self, row: Any) -> Any:
        """Return one row as [sequence length, feature size]; a ValueError if it cannot be.

        >>> FeatureLayout(width=2).apply(np.arange(6)).tolist()
        [[0, 1], [2, 3], [4, 5]]
        >>> FeatureLayout(places=3).apply(np.array([2, 0])).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
        """
        if self.vector and row.size:
            if row.size != self.width:
                raise ValueError(f"{row.size} values; expected a vector of {self.width}")
            return row.reshape(1, -1)
        if self.drop and row.ndim > 2:
            kept = [size for axis, size in enumerate(row.shape) if axis not in self.drop]
            row = row.reshape(kept)
        if row.ndim == 1 and self.places is not None:
            return _one_hot(row, self.places)
        if row.ndim == 1 and self.width is not None:
            if row.size % self.width:
                raise ValueError(
                    f"{row.size} values are not a multiple of the feature size {self.width}"
                )
            return row.reshape(-1, self.width)
        return row.T if self.transposed and row.ndim == 2 else row


def _one_hot(ids: Any, places: int) -> Any:
    if len(ids) and not (ids.min() >= 0 and ids.max() < places):
        wrong = ids[(ids < 0) | (ids >= places)][0]
        raise ValueError(f"the id {wrong} is not between 0 and {places - 1}")
    steps = np.zeros((len(ids), places), np.float32)
    steps[np.arange(len(ids)), ids] = 1
    return steps


def plan_layout(shape: RowShape, hints: Hints, column: str) -> tuple[FeatureLayout, list[Finding]]:
    """Plan how rows become [sequence length, feature size]; ambiguous shapes are refused.

    >>> from surefit.data.row_arrays import fixed_shape
    >>> plan_layout(fixed_shape(20 * 271), Hints(vocab_size=271, positions=20), "x")[0].width
    271
    >>> plan_layout(fixed_shape(271, 20), Hints(vocab_size=271), "x")[0].transposed
    True
    """
    axes, found = list(enumerate(shape.axes)), []
    drop = [at for at, axis in axes if axis.size == 1][: max(0, len(axes) - 2)]
    if drop:
        rest = RowShape(tuple(axis for at, axis in axes if at not in drop), shape.value_range)
        message = f"rows of column {column!r} are {shape}; they are read as {rest}."
        found.append(ROWS_RESHAPED.finding(message, column=column))
        shape = rest
    if len(shape.axes) == 1:
        layout, note = _plan_flat(shape, hints, column)
    elif len(shape.axes) == 2:
        layout, note = _plan_axes(shape, hints, column)
    else:
        message = (
            f"rows of column {column!r} are {shape}; expected [sequence length, feature size]."
        )
        raise WRONG_SHAPE.error(message, column=column)
    return replace(layout, drop=tuple(drop)), [*found, *note]


def planned_axes(shape: RowShape, layout: FeatureLayout) -> tuple[Axis, Axis]:
    """Return the axes [sequence length, feature size] of rows after the layout was applied."""
    if layout.vector and layout.width is not None:
        return Axis(1, 1, 1), Axis(layout.width, layout.width, layout.width)
    axes = [axis for at, axis in enumerate(shape.axes) if at not in layout.drop]
    if len(axes) == 2:
        first, last = axes
        return (last, first) if layout.transposed else (first, last)
    cut = layout.width or 1
    steps = Axis(axes[0].least // cut, axes[0].most // cut, max(1, axes[0].divisor // cut))
    width = layout.places or layout.width or 1
    return steps, Axis(width, width, width)


def _plan_axes(shape: RowShape, hints: Hints, column: str) -> tuple[FeatureLayout, list[Finding]]:
    first, last = shape.axes
    if hints.width is not None or hints.steps is not None:
        why = _given(hints) if _given_order(shape, hints, column) else None
    else:
        why = _why_transposed(first, last, hints)
    if why is None:
        return FeatureLayout(), []
    message = f"rows of column {column!r} are {shape}; they are transposed: {why}."
    fix = "Set features.width if this is wrong."
    return FeatureLayout(transposed=True), [ROWS_RESHAPED.finding(message, fix=fix, column=column)]


def _given_order(shape: RowShape, hints: Hints, column: str) -> bool:
    """Whether the sizes that the user set mean transposed rows; the feature size decides first."""
    first, last = shape.axes
    named, usual, turned = (hints.width, last, first)
    if named is None:
        named, usual, turned = (hints.steps, first, last)
    if named == usual.size or (hints.width is None and first.size is None):
        return False
    if named == turned.size:
        return True
    message = f"rows of column {column!r} are {shape}, but {_given(hints)}."
    raise WRONG_SHAPE.error(message, fix=SET_SIZES, column=column)


def _given(hints: Hints) -> str:
    if hints.labels:
        return "there is a label for each time step"
    named = {"features.steps": hints.steps, "features.width": hints.width}
    return " and ".join(f"{name} is {value}" for name, value in named.items() if value is not None)


def _why_transposed(first: Axis, last: Axis, hints: Hints) -> str | None:
    """Why rows are [feature size, sequence length]; None if nothing indicates it."""
    if last.size is None:
        sure = first.size is not None and last.is_ragged
        return "only the sequence length may vary between rows" if sure else None
    if first.size is None:
        return None
    if hints.accepts is not None:
        as_is, turned = (first.size, last.size), (last.size, first.size)
        if first.size != last.size and not hints.accepts(*as_is) and hints.accepts(*turned):
            return f"the module fails on {list(as_is)} and works on {list(turned)}"
        return None
    known = {
        "the model's feature size is": hints.trained,
        "vocab_size is": hints.vocab_size,
    }
    for what, width in known.items():
        if width is not None and width in (first.size, last.size):
            return None if width == last.size else f"{what} {width}"
    return None


def _plan_flat(shape: RowShape, hints: Hints, column: str) -> tuple[FeatureLayout, list[Finding]]:
    (axis,) = shape.axes
    asked = hints.steps is not None or hints.width is not None
    if not asked and hints.reads_vectors is not None and axis.usual and not axis.is_ragged:
        layout, found = _plan_vectors(axis, hints, column)
        if layout is not None:
            return layout, found
    values = shape.value_range  # of integers; from 0 up, and not only 0 and 1, they are ids
    if not asked and values is not None and values[0] >= 0 and values[1] > 1:
        return _plan_ids(shape, hints, column)
    answers = _flat_answers(axis, hints)
    if len(answers) != 1:
        raise _undecided(axis, hints, answers, column)
    ((width, why),) = answers.items()
    steps = Axis(axis.least // width, axis.most // width, max(1, axis.divisor // width))
    message = f"rows of column {column!r} are flat, {shape}; read as [{steps}, {width}]: {why}."
    fix = "Set features.steps or features.width if the shape is wrong."
    return FeatureLayout(width=width), [ROWS_RESHAPED.finding(message, fix=fix, column=column)]


def _plan_vectors(
    axis: Axis, hints: Hints, column: str
) -> tuple[FeatureLayout | None, list[Finding]]:
    """One vector per row if the model reads it, or if only the rows can decide; None if not."""
    assert hints.reads_vectors is not None
    size = axis.usual
    if hints.reads_vectors(size) is not False:
        message = f"rows of column {column!r} are read as vectors of {size} numbers."
        layout = FeatureLayout(width=size, vector=True)
        return layout, [note(message, column=column)]
    expected = next((each for each in hints.layers if hints.reads_vectors(each)), None)
    if expected is None:
        return None, []
    raise WRONG_SHAPE.error(
        f"rows of column {column!r} are vectors of {size} numbers; the module reads {expected}.",
        fix=f"Build the module for {size} inputs, or pass rows of {expected} numbers.",
        column=column,
    )


def _flat_answers(axis: Axis, hints: Hints) -> dict[int, str]:
    """Return every feature size that a flat row may have, by the best source that names one."""
    size = axis.divisor  # the feature size must divide the size of every row
    if hints.width is not None or hints.steps is not None:
        return _given_width(axis, hints)
    if hints.trained is not None:
        fits = size % hints.trained == 0
        return {hints.trained: f"the model's feature size is {hints.trained}"} if fits else {}
    accepts = hints.accepts
    if accepts is not None:
        fitting = [w for w in hints.layers if w > 1 and size % w == 0]
        return {
            w: "the module accepts it" for w in fitting if accepts(axis.most // w, w)
        } or _by_divisors(axis)
    found: dict[int, str] = {}
    room = hints.positions or size
    for name, width in (("vocab_size", hints.vocab_size), ("hidden_size", hints.hidden_size)):
        if width is not None and width > 1 and size % width == 0 and axis.most // width <= room:
            found.setdefault(width, f"the model's {name} is {width}")
    if hints.positions is not None and axis.size and axis.size % hints.positions == 0:
        width = axis.size // hints.positions
        if width > 1:
            found.setdefault(width, f"the model has {hints.positions} positions")
    return found or _by_divisors(axis)


def _given_width(axis: Axis, hints: Hints) -> dict[int, str]:
    steps, width = hints.steps, hints.width
    if width is None:
        assert steps is not None
        width = axis.size // steps if axis.size and axis.size % steps == 0 else 0
    too_long = steps is not None and axis.most != steps * width
    if not width or axis.divisor % width or too_long:
        return {}
    return {width: _given(hints)}


def _by_divisors(axis: Axis) -> dict[int, str]:
    widths = [w for w in range(2, axis.divisor // 2 + 1) if axis.divisor % w == 0]
    if axis.size is None and axis.divisor > 1:
        widths.append(axis.divisor)
    return dict.fromkeys(widths, "it is the only divisor of their size")


def _undecided(axis: Axis, hints: Hints, answers: dict[int, str], column: str) -> Exception:
    what = f"rows of column {column!r} are flat, [{axis}]"
    if hints.steps is not None or hints.width is not None:
        message = f"{what}, which does not fit: {_given(hints)}."
        return WRONG_SHAPE.error(message, fix=SET_SIZES, column=column)
    if hints.trained is not None:
        message = f"{what}, which is no multiple of the model's feature size {hints.trained}."
        return WRONG_SHAPE.error(message, fix="Pass rows of that size.", column=column)
    if not answers:
        message = f"{what}: sequence length × feature size may be 1 × {axis} or {axis} × 1."
        fix = (
            "Set the feature size: --set features.width=1; or, for one time step of "
            f"{axis} features, --set features.steps=1."
        )
        return AMBIGUOUS_FLAT_ROWS.error(message, fix=fix, column=column)
    shown = [f"{axis.most // w} × {w}" for w in answers][:SHOWN_ANSWERS]
    more = f" and {len(answers) - len(shown)} more" if len(answers) > len(shown) else ""
    message = f"{what}: sequence length × feature size may be {', '.join(shown)}{more}."
    sizes = "; or ".join(set_option("features.width", w) for w in [*answers][:SHOWN_ANSWERS])
    fix = f"Set the feature size: {sizes}. {TAKE_FLAT_ROWS}"
    return AMBIGUOUS_FLAT_ROWS.error(message, fix=fix, column=column)


def _plan_ids(shape: RowShape, hints: Hints, column: str) -> tuple[FeatureLayout, list[Finding]]:
    assert shape.value_range is not None
    largest = shape.value_range[1]
    sizes = (hints.trained, hints.vocab_size)
    places = next((n for n in sizes if n and largest < n <= MAX_ONE_HOT), largest + 1)
    if places > MAX_ONE_HOT:
        message = (
            f"column {column!r} contains ids up to {largest}; one-hot vectors would have "
            f"{places:,} elements."
        )
        fix = "Use masked-lm or causal-lm with the column named input_ids, or pass features."
        raise TOO_MANY_IDS.error(message, fix=fix, column=column)
    message = (
        f"column {column!r} contains ids up to {largest}; each becomes a one-hot vector of "
        f"{places} elements."
    )
    fix = "Set features.width to read them as numbers instead."
    return FeatureLayout(places=places), [ROWS_RESHAPED.finding(message, fix=fix, column=column)]


@dataclass(frozen=True)
class LayoutReport:
    """How rows of features will be read; `fault` where that cannot be decided."""

    column: str
    rows: str
    """The axes of a row as it is, such as [7…29, 12]."""
    steps: list[int] | None  # shortest and longest
    width: int | None
    expects: str | None
    """What the model expects, where one was given."""
    fixes: list[str]
    fault: str | None

    def __str__(self) -> str:
        lines = [f"\nlayout: rows of column {self.column!r} are {self.rows}"]
        if self.steps is not None:
            least, most = self.steps
            steps = str(least) if least == most else f"{least} to {most}"
            size = self.width or "differs from row to row"
            lines.append(f"  read as   sequence length {steps}, feature size {size}")
        if self.expects is not None:
            lines.append(f"  model     {one_line(self.expects)}")
        lines += [f"  fix       {one_line(fix)}" for fix in self.fixes]
        return "\n".join([*lines, *([f"  unclear   {one_line(self.fault)}"] if self.fault else [])])


def report_layout(table: Table, column: str, hints: Hints, expects: str | None) -> LayoutReport:
    """Return how rows of features will be read, and why; what keeps them from it is `fault`.

    `expects` is what the model expects, in words.
    """
    shape = row_shape(table, column)
    found = [each for each in table.findings if each.code == ROWS_RESHAPED.code]
    steps = width = fault = None
    try:
        layout, notes = plan_layout(shape, hints, column)
        steps, width = planned_axes(shape, layout)
        found += notes
    except FindingError as error:
        fault = "; ".join(f"{each.message} {each.fix}" for each in error.findings)
    fixes = [f"{each.code} {each.message}" for each in found]
    if hints.hidden_size is not None and width is not None and width.size is not None:
        fixes.append(f"SF325 a projection maps feature size {width} to {hints.hidden_size}.")
    span = None if steps is None else [steps.least, steps.most]
    size = None if width is None else width.size
    return LayoutReport(column, str(shape), span, size, expects, fixes, fault)
