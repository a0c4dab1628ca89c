"""Training rows of arrays, augmented anew in each epoch: a pure function of (seed, epoch, row).

Rows are changed, as series are here (noise, scaling, masked spans), or mixed with other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import Field
from surefit.errors import RunFailedError, UsageError, describe_error
from surefit.inputs.augment.augmented_copies import AUGMENT_FUNCTION_FAILED
from surefit.inputs.row_input import ArrayChanges
from surefit.inputs.store import Store

Array = npt.NDArray[Any]
ReadRow = Callable[[int], Mapping[str, Any]]
"""A row of a Store, as it is read in an epoch."""
OwnArrayChange = Callable[[Array, np.random.Generator], Array]

PURPOSE = 1
"""Tells these draws from those of a task, which go by (seed, epoch, row, copy) as well."""


@dataclass(frozen=True)
class ArrayAugment:
    """How the rows of a training Store are augmented; the Store itself has them as they are."""

    train: Store
    seed: int
    kind: ArrayChanges
    function: OwnArrayChange | None = None
    further: tuple[ArrayChanges, ...] = ()
    """Of further columns of the same role: changed alike, each by the same random numbers."""

    def in_epoch(self, epoch: int) -> EpochRows:
        """Return the rows of the Store as they are trained on in an epoch."""
        return EpochRows(self, epoch)

    @property
    def mixes(self) -> bool:
        """Whether rows are mixed with others."""
        return any(name in self.kind.changes for name in MIXES)

    def row(self, index: int, epoch: int, read: ReadRow | None = None) -> dict[str, Any]:
        """Return a row as it is trained on in an epoch; `read` gives rows that no Store has."""
        read = read or self.train.row
        made, draws = self._changed(index, epoch, read(index))
        if "mixup" not in draws[0]:
            return made
        partner = draws[0]["partner"]  # as it is in this epoch itself
        other, _ = self._changed(partner, epoch, read(partner))
        for kind in (self.kind, *self.further):
            self._check_shapes(kind.column, (index, partner), (made, other))
        mixed = mix(made, other, self.kind.column, draws[0])
        for kind, drawn in zip(self.further, draws[1:], strict=True):
            column = kind.column
            mixed[column] = mix_values(made[column], other[column], drawn)
        return mixed

    def drawn(
        self,
        index: int,
        epoch: int,
        shape: tuple[int, ...] | None = None,
        kind: ArrayChanges | None = None,
    ) -> dict[str, Any]:
        """Return what is drawn for a row in an epoch; its partner is any row of the Store.

        A further `kind` draws the same random numbers: equal shapes are changed equally.
        """
        kind, rng = kind or self.kind, self._rng(index, epoch)
        shape = self.train.value(kind.column, index).shape if shape is None else shape
        drawn = kind.draw(shape, rng)
        mixed = draw_mix(kind.changes, shape, rng)
        partner = {"partner": int(rng.integers(len(self.train)))} if mixed else {}
        return {**drawn, **mixed, **partner}

    def describe(self, index: int, epoch: int) -> str:
        """Return what is drawn for a row in an epoch, in words."""
        drawn = self.drawn(index, epoch)
        if "partner" in drawn:
            drawn["partner"] = int(self.train.source_row[drawn["partner"]])
        if self.function is not None:
            drawn[f"{_name(self.function)} called"] = True
        return ", ".join(_in_words(name, value) for name, value in drawn.items()) or "unchanged"

    def _rng(self, index: int, epoch: int, *more: int) -> np.random.Generator:
        number, copy = int(self.train.source_row[index]), int(self.train.copy[index])
        return np.random.default_rng([self.seed, epoch, number, copy, PURPOSE, *more])

    def _changed(
        self, index: int, epoch: int, row: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the row after all changes but the mixing, and what was drawn for each column."""
        kinds = (self.kind, *self.further)
        draws = [self.drawn(index, epoch, row[kind.column].shape, kind) for kind in kinds]
        made = self.kind.apply(row, draws[0])
        for kind, drawn in zip(self.further, draws[1:], strict=True):
            made |= kind.apply({kind.column: made[kind.column]}, drawn)
        if self.function is None:
            return made, draws
        for kind in kinds:
            rng = self._rng(index, epoch, 1)  # of its own: built-in changes do not move its draws
            made = {**made, kind.column: self._call_own(made[kind.column], rng, index, kind)}
        return made, draws

    def _check_shapes(
        self, column: str, rows: tuple[int, int], made: tuple[Mapping[str, Any], Mapping[str, Any]]
    ) -> None:
        """Refuse to mix rows of different shapes, as live ones may become in a later epoch."""
        shapes = [list(row[column].shape) for row in made]
        if shapes[0] != shapes[1]:
            numbers = [int(self.train.source_row[place]) for place in rows]
            raise AugmentError(
                f"rows {numbers[0]} and {numbers[1]} are of the shapes {shapes[0]} and "
                f"{shapes[1]}, and rows of one shape alone can be mixed.",
                "Let the data give rows of one shape, or leave mixup and cutmix out.",
            )

    def _call_own(
        self,
        array: Array,
        rng: np.random.Generator,
        index: int,
        kind: ArrayChanges,
    ) -> Array:
        assert self.function is not None
        row, name = int(self.train.source_row[index]), _name(self.function)
        fix = AUGMENT_FUNCTION_FAILED.fix
        try:
            made = kind.call_own(self.function, array, rng)
            changed = made.astype(np.float32)
        except Exception as error:
            said = f"row {row}: {name} raised {describe_error(error)}"[:300]
            raise AugmentError(said, fix) from error
        if made.shape != array.shape:
            said = f"row {row}: {name} returned shape {[*made.shape]}; expected {[*array.shape]}."
            raise AugmentError(said, fix)
        if not np.isfinite(changed).all():
            raise AugmentError(f"row {row}: {name} returned NaN or infinite values.", fix)
        return np.ascontiguousarray(changed)


@dataclass(frozen=True)
class EpochRows:
    """The augmented rows of an epoch, read as those of a Store are."""

    augment: ArrayAugment
    epoch: int

    @property
    def stored(self) -> Store:
        """The Store, with the rows as they are."""
        return self.augment.train

    @property
    def num_targets(self) -> Array:
        """How many targets each row has."""
        return self.augment.train.num_targets

    @property
    def source_row(self) -> Array:
        """The number of each row in the data."""
        return self.augment.train.source_row

    @property
    def copy(self) -> Array:
        """The number of each row among its augmented copies."""
        return self.augment.train.copy

    def rows(self, indices: Sequence[int] | Array) -> list[dict[str, Any]]:
        """Several rows."""
        self.augment.train.check_files()
        return [self.augment.row(int(index), self.epoch) for index in indices]

    def change(self, index: int, read: ReadRow) -> dict[str, Any]:
        """Return a row that `read` gives, and no Store has, as it is trained on in this epoch."""
        return self.augment.row(index, self.epoch, read)

    def columns(self, indices: Sequence[int] | Array) -> dict[str, list[Array]]:
        """Several rows, column by column."""
        rows = self.rows(indices)
        return {name: [row[name] for row in rows] for name in rows[0]}


class AugmentError(RunFailedError):
    """A user's own change that failed on a row."""


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _in_words(name: str, value: Any) -> str:
    """Return a change that was drawn, by its name in the config; noise has no short value."""
    if value is True or isinstance(value, np.ndarray):
        return name
    shown = value if isinstance(value, tuple) else (value,)
    return f"{name} {' '.join(f'{each:.3g}' for each in shown)}"


def same_row(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two augmented rows are equal to the bit."""
    return one.keys() == other.keys() and all(
        np.asarray(one[name]).tobytes() == np.asarray(other[name]).tobytes() for name in one
    )


Drawn = Mapping[str, Any]
MIXES = ("mixup", "cutmix")
LABELS, SHARE = "mixed_labels", "mixed_share"
"""Columns of a batch of mixed rows: the class of the other row, and the share of the row's own."""
MIXED_FIELDS = {LABELS: Field((), "int64"), SHARE: Field((), "float32")}


def draw_mix(
    changes: Mapping[str, float], shape: tuple[int, ...], rng: np.random.Generator
) -> dict[str, Any]:
    """Return share of the row itself, and for cutmix the rectangle of the other one; or nothing."""
    names = [name for name in MIXES if name in changes]
    if not names:
        return {}
    name = names[int(rng.integers(len(names)))]
    share = float(rng.beta(changes[name], changes[name]))
    if name == "mixup":
        return {"mixup": share}
    box = draw_box(1 - share, shape[-2:], rng)
    return {"mixup": 1 - box[2] * box[3] / float(shape[-1] * shape[-2]), "cutmix": box}


def mix(
    row: Mapping[str, Any], other: Mapping[str, Any], column: str, drawn: Drawn
) -> dict[str, Any]:
    """Return the row, mixed with the other one as drawn.

    Labels that are numbers are mixed. A class stays, with the class of the other row and the share
    of its own beside it; classes of pixels follow their pixels.
    """
    box, share = drawn.get("cutmix"), drawn["mixup"]
    own, its = np.asarray(row["labels"]), np.asarray(other["labels"])
    mixed = {**row, column: mix_values(row[column], other[column], drawn)}
    if np.issubdtype(own.dtype, np.floating):
        return {**mixed, "labels": _mix(own, its, share).astype(own.dtype)}
    if own.ndim:
        assert box is not None, "a pixel has one class"
        return {**mixed, "labels": _paste(own, its, box)}
    return {**mixed, LABELS: its, SHARE: np.float32(share)}


def mix_values(own: Any, its: Any, drawn: Drawn) -> Any:
    """Return the values of an input, mixed with those of the other row."""
    if "cutmix" in drawn:
        return _paste(own, its, drawn["cutmix"])
    return _mix(own, its, drawn["mixup"])


def _mix(one: Any, other: Any, share: float) -> Any:
    return np.float32(share) * one + np.float32(1 - share) * other


def _paste(one: Any, other: Any, box: tuple[int, int, int, int]) -> Any:
    made, place = one.copy(), (..., *box_slices(box))
    made[place] = other[place]
    return made


def draw_box(
    share: float, size: tuple[int, ...], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a rectangle with that share of an image, anywhere in it."""
    height, width = (round(float(side * share**0.5)) for side in size)
    top, left = rng.integers(0, size[0] - height + 1), rng.integers(0, size[1] - width + 1)
    return int(top), int(left), height, width


def box_slices(box: tuple[int, int, int, int]) -> tuple[slice, slice]:
    """Return the rows and columns of a rectangle.

    >>> box_slices((1, 2, 3, 4))
    (slice(1, 4, None), slice(2, 6, None))
    """
    top, left, height, width = box
    return slice(top, top + height), slice(left, left + width)


MAX_POINTS, MAX_CHANNELS = 100, 3
"""How much of a series is shown on pages."""


@dataclass(frozen=True)
class SeriesChanges:
    """Named changes of arrays (T, W), (T,) or (W,), and the statistics of their channels."""

    changes: Mapping[str, float]
    column: str
    time_axis: int | None = 0
    """None for vectors."""
    channel_axis: int | None = 1
    """None for waveforms."""
    mean: tuple[float, ...] = (0.0,)
    spread: tuple[float, ...] | None = None
    """The standard deviation of each channel; None: that of the row itself."""

    def require_axes(self, section: str, missing: str) -> None:
        """Refuse masks along an axis that the rows do not have; `missing` describes them."""
        for name, axis in (("time_mask", self.time_axis), ("channel_mask", self.channel_axis)):
            if name in self.changes and axis is None:
                raise UsageError(
                    f"{section}.augment.{name} is set, but {missing}.",
                    "Leave it out; other changes hide a part of such rows.",
                )

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, Any]:
        """Return what happens to one row: a value for each change."""
        drawn: dict[str, Any] = {}
        if "scale" in self.changes:
            drawn["scale"] = 1 + float(rng.uniform(-1, 1)) * self.changes["scale"]
        if "jitter" in self.changes:
            drawn["jitter"] = self.changes["jitter"] * rng.standard_normal(shape, np.float32)
        for name, axis in (("time_mask", self.time_axis), ("channel_mask", self.channel_axis)):
            if name in self.changes and axis is not None:
                drawn[name] = _draw_span(self.changes[name], shape[axis], rng)
        return drawn

    def apply(self, row: Mapping[str, Any], drawn: Drawn) -> dict[str, Any]:
        """Return the row with its series changed."""
        mean, values = np.asarray(self.mean, np.float32), row[self.column]
        made = values.astype(np.float32)
        if "scale" in drawn:
            made = mean + (made - mean) * np.float32(drawn["scale"])
        if "jitter" in drawn:
            spread = values.std() if self.spread is None else self.spread
            made = made + drawn["jitter"].astype(np.float32) * np.asarray(spread, np.float32)
        made = np.array(made, np.float32)
        for name, axis in (("time_mask", self.time_axis), ("channel_mask", self.channel_axis)):
            if name in drawn:
                start, length = drawn[name]
                place: list[Any] = [slice(None)] * made.ndim
                place[axis or 0] = slice(start, start + length)
                means = np.broadcast_to(mean, made.shape)
                made[tuple(place)] = means[tuple(place)]
        return {**row, self.column: made}

    def picture(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a few channels of a row for pages, at a few steps."""
        values, time = row[self.column], self.time_axis or 0
        by_step = np.moveaxis(values, time, 0).reshape(values.shape[time], -1)
        step = -(-len(by_step) // MAX_POINTS)
        return {"lines": by_step[::step, :MAX_CHANNELS].T.astype(float).round(5).tolist()}

    def call_own(self, function: Any, array: Array, rng: np.random.Generator) -> Any:
        """Return a user's own change."""
        return np.asarray(function(array.copy(), rng))


def _draw_span(share: float, length: int, rng: np.random.Generator) -> tuple[int, int]:
    """Start and length of a span of up to that share of a length."""
    span = int(rng.integers(0, int(share * length) + 1))
    return int(rng.integers(0, length - span + 1)), span
