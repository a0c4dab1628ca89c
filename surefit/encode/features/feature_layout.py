"""How rows of features become [steps, width]: planned from their shape and the model's sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from surefit.data.column_types import is_array
from surefit.data.data_rules import STRAY_AXIS_DROPPED, WRONG_SHAPE
from surefit.data.row_shapes import Axis, RowShape, row_shape
from surefit.data.table import Table
from surefit.encode.encoder import Encoder
from surefit.findings import Finding, rule

FLAT_ROWS_RESHAPED = rule(
    "SF420",
    "fixed",
    "flat rows cut into steps",
    why="Rows were saved as [steps * width]; a sequence model reads [steps, width].",
    fix="Overrule it with features.steps or features.width.",
)

AMBIGUOUS_FLAT_ROWS = rule(
    "SF421",
    "error",
    "flat rows with more than one reading",
    why="Cut at the wrong places, every step would mix values of two; a guess would train on that.",
    fix="Say what they are: --set features.width=W, or --set features.steps=T.",
)

AXES_EXCHANGED = rule(
    "SF422",
    "fixed",
    "axes exchanged",
    why="Rows were saved as [width, steps]; steps come first.",
    fix="Overrule it with features.width.",
)

IDS_READ_AS_ONE_HOT = rule(
    "SF424",
    "fixed",
    "ids read as one-hot steps",
    why="Ids are names, not amounts: as numbers, id 8 would count as twice id 4.",
    fix="Give features.width to cut the rows into numbers instead.",
)

WRONG_FEATURE_AXES = rule(
    "SF435",
    "error",
    "rows do not have the axes that were given",
    why="features.steps and features.width name the axes of every row.",
    fix="Give the sizes the rows have, or leave the keys out.",
)

TOO_MANY_IDS = rule(
    "SF436",
    "error",
    "too many ids to be features",
    why="Features are numbers; ids of a large vocabulary need an embedding.",
    fix="Use a task that reads tokens.",
)


MOST_PLACES = 4096
"""Ids from here on are too many to be written out as one-hot steps."""
SHOWN_ANSWERS = 8


@dataclass(frozen=True)
class Hints:
    """What is known of the axes besides the rows themselves.

    `steps` and `width` are the user's. `trained` is the width a model was trained on. The others
    are of the model's config; `accepts(steps, width)` tries the model, where it is a module.
    """

    steps: int | None = None
    width: int | None = None
    trained: int | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    positions: int | None = None
    layers: tuple[int, ...] = ()
    """Widths that layers of a module take."""
    accepts: Callable[[int, int], bool] | None = None


@dataclass(frozen=True)
class Layout:
    """What is done to every row, in this order: axes dropped, a flat row cut, axes exchanged."""

    drop: tuple[int, ...] = ()
    """Axes of length 1 that are no part of [steps, width]."""
    width: int | None = None
    """Width of the steps that a flat row is cut into."""
    places: int | None = None
    """Length of the one-hot steps that a flat row of ids becomes."""
    transposed: bool = False
    """Whether rows are [width, steps]."""

    def as_dict(self) -> dict[str, Any]:
        """The layout as the Encoder keeps it."""
        return {**asdict(self), "drop": list(self.drop)}

    def apply(self, row: Any) -> Any:
        """One row as [steps, width]; a ValueError says why it is none.

        >>> Layout(width=2).apply(np.arange(6)).tolist()
        [[0, 1], [2, 3], [4, 5]]
        >>> Layout(places=3).apply(np.array([2, 0])).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
        """
        if self.drop and row.ndim > 2:
            kept = [size for axis, size in enumerate(row.shape) if axis not in self.drop]
            row = row.reshape(kept)
        if row.ndim == 1 and self.places is not None:
            return _one_hot(row, self.places)
        if row.ndim == 1 and self.width is not None:
            if row.size % self.width:
                raise ValueError(f"{row.size} values cannot be cut into steps of {self.width}")
            return row.reshape(-1, self.width)
        return row.T if self.transposed and row.ndim == 2 else row


def _one_hot(ids: Any, places: int) -> Any:
    if len(ids) and not (ids.min() >= 0 and ids.max() < places):
        wrong = ids[(ids < 0) | (ids >= places)][0]
        raise ValueError(f"the id {wrong} is not among 0 to {places - 1}")
    steps = np.zeros((len(ids), places), np.float32)
    steps[np.arange(len(ids)), ids] = 1
    return steps


def read_layout(state: dict[str, Any] | None) -> Layout:
    """The layout that an Encoder keeps; rows as they are where it keeps none."""
    return Layout() if not state else Layout(**{**state, "drop": tuple(state["drop"])})


def relaid(encoder: Encoder, table: Table) -> tuple[Encoder, list[Finding]]:
    """The Encoder for rows that may lie otherwise than those it was fitted on.

    A file for evaluation or prediction may be flat where the training rows were not; the width
    that the model was trained on says how it is to be read.
    """
    column, width = encoder.roles.get("features"), encoder.fitted.get("width")
    if column not in table.columns or column is None or not isinstance(width, int):
        return encoder, []
    if not is_array(table.column_type(column)) or "features.layout" not in encoder.settings:
        return encoder, []
    layout, notes = plan_layout(row_shape(table, column), Hints(trained=width), column)
    if layout == read_layout(encoder.settings["features.layout"]):
        return encoder, []
    settings = {**encoder.settings, "features.layout": layout.as_dict()}
    return replace(encoder, settings=settings), notes


def plan_layout(shape: RowShape, hints: Hints, column: str) -> tuple[Layout, list[Finding]]:
    """Plan how rows of `shape` become [steps, width]; what two answers are possible for is refused.

    >>> from surefit.data.row_shapes import fixed_shape
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
        found.append(STRAY_AXIS_DROPPED.finding(message, column=column))
        shape = rest
    if len(shape.axes) == 1:
        layout, note = _plan_flat(shape, hints, column)
    elif len(shape.axes) == 2:
        layout, note = _plan_axes(shape, hints, column)
    else:
        message = f"rows of column {column!r} are {shape}; expected [steps, width]."
        raise WRONG_SHAPE.error(message, column=column)
    return replace(layout, drop=tuple(drop)), [*found, *note]


def planned_axes(shape: RowShape, layout: Layout) -> tuple[Axis, Axis]:
    """The axes [steps, width] of rows that the layout was applied to."""
    axes = [axis for at, axis in enumerate(shape.axes) if at not in layout.drop]
    if len(axes) == 2:
        first, last = axes
        return (last, first) if layout.transposed else (first, last)
    cut = layout.width or 1
    steps = Axis(axes[0].least // cut, axes[0].most // cut, max(1, axes[0].divisor // cut))
    width = layout.places or layout.width or 1
    return steps, Axis(width, width, width)


def _plan_axes(shape: RowShape, hints: Hints, column: str) -> tuple[Layout, list[Finding]]:
    first, last = shape.axes
    if hints.width is not None or hints.steps is not None:
        why = _given(hints) if _given_order(shape, hints, column) else None
    else:
        why = _why_transposed(first, last, hints)
    if why is None:
        return Layout(), []
    message = f"rows of column {column!r} are [width, steps] = {shape}: {why}."
    return Layout(transposed=True), [AXES_EXCHANGED.finding(message, column=column)]


def _given_order(shape: RowShape, hints: Hints, column: str) -> bool:
    """Whether rows are [width, steps] by what the user gave, the width before the steps."""
    first, last = shape.axes
    named, usual, turned = (hints.width, last, first)
    if named is None:
        named, usual, turned = (hints.steps, first, last)
    if named == usual.size or (hints.width is None and first.size is None):
        return False
    if named == turned.size:
        return True
    message = f"rows of column {column!r} are {shape}, but {_given(hints)}."
    raise WRONG_FEATURE_AXES.error(message, column=column)


def _given(hints: Hints) -> str:
    named = {"features.steps": hints.steps, "features.width": hints.width}
    return " and ".join(f"{name} is {value}" for name, value in named.items() if value is not None)


def _why_transposed(first: Axis, last: Axis, hints: Hints) -> str | None:
    """What says that rows are [width, steps]; None where nothing does."""
    if last.size is None:
        sure = first.size is not None and last.is_ragged
        return "only the number of steps may differ between rows" if sure else None
    if first.size is None:
        return None
    if hints.accepts is not None:
        as_is, turned = (first.size, last.size), (last.size, first.size)
        if first.size != last.size and not hints.accepts(*as_is) and hints.accepts(*turned):
            return f"the module fails on {list(as_is)} and works on {list(turned)}"
        return None
    known = {"the model was trained on width": hints.trained, "vocab_size is": hints.vocab_size}
    for what, width in known.items():
        if width is not None and width in (first.size, last.size):
            return None if width == last.size else f"{what} {width}"
    return None


def _plan_flat(shape: RowShape, hints: Hints, column: str) -> tuple[Layout, list[Finding]]:
    (axis,) = shape.axes
    if hints.steps is None and hints.width is None and _are_ids(shape):
        return _plan_ids(shape, hints, column)
    answers = _flat_answers(axis, hints)
    if len(answers) != 1:
        raise _undecided(axis, hints, answers, column)
    ((width, why),) = answers.items()
    steps = Axis(axis.least // width, axis.most // width, max(1, axis.divisor // width))
    message = f"rows of column {column!r} are flat, {shape}; cut into [{steps}, {width}]: {why}."
    return Layout(width=width), [FLAT_ROWS_RESHAPED.finding(message, column=column)]


def _flat_answers(axis: Axis, hints: Hints) -> dict[int, str]:
    """Every width that a flat row may have, by the best source that names one."""
    size = axis.divisor  # a width must divide every row
    if hints.width is not None or hints.steps is not None:
        return _given_width(axis, hints)
    if hints.trained is not None:
        fits = size % hints.trained == 0
        return {hints.trained: f"the model was trained on width {hints.trained}"} if fits else {}
    accepts = hints.accepts
    if accepts is not None:
        fitting = [w for w in hints.layers if w > 1 and size % w == 0]
        return {
            w: "the module takes it" for w in fitting if accepts(axis.most // w, w)
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
    return dict.fromkeys(widths, "nothing else divides their length")


def _undecided(axis: Axis, hints: Hints, answers: dict[int, str], column: str) -> Exception:
    what = f"rows of column {column!r} are flat, [{axis}]"
    if hints.steps is not None or hints.width is not None:
        message = f"{what}, which cannot be cut where {_given(hints)}."
        return WRONG_FEATURE_AXES.error(message, column=column)
    if hints.trained is not None:
        message = f"{what}, which cannot be cut into the width {hints.trained} of the model."
        return WRONG_FEATURE_AXES.error(message, fix="Give rows of that width.", column=column)
    if not answers:
        message = f"{what}: one step of {axis}, or {axis} steps of 1; nothing between divides it."
        fix = f"Give --set features.width=1, or --set features.steps=1 for a single step of {axis}."
        return AMBIGUOUS_FLAT_ROWS.error(message, fix=fix, column=column)
    shown = [f"{axis.most // w} × {w}" for w in answers][:SHOWN_ANSWERS]
    more = f" and {len(answers) - len(shown)} more" if len(answers) > len(shown) else ""
    message = f"{what}: as steps × width they may be {', '.join(shown)}{more}."
    return AMBIGUOUS_FLAT_ROWS.error(message, column=column)


def _are_ids(shape: RowShape) -> bool:
    """Whether a flat row holds whole numbers from 0 on, beyond the 0 and 1 of one-hot steps."""
    return shape.value_range is not None and shape.value_range[0] >= 0 and shape.value_range[1] > 1


def _plan_ids(shape: RowShape, hints: Hints, column: str) -> tuple[Layout, list[Finding]]:
    assert shape.value_range is not None
    largest = shape.value_range[1]
    sizes = (hints.trained, hints.vocab_size)
    places = next((n for n in sizes if n and largest < n <= MOST_PLACES), largest + 1)
    if places > MOST_PLACES:
        message = (
            f"column {column!r} holds ids up to {largest}; as one-hot steps they would be "
            f"{places:,} wide."
        )
        fix = "Ids are for masked-lm or causal-lm: name the column input_ids. Or give features."
        raise TOO_MANY_IDS.error(message, fix=fix, column=column)
    message = (
        f"column {column!r} holds ids up to {largest}; each becomes a step of {places} places."
    )
    return Layout(places=places), [IDS_READ_AS_ONE_HOT.finding(message, column=column)]
