"""Changes of images and series, and rows mixed with others (mixup, cutmix)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import Field
from surefit.inputs.image.image_planes import LUMA
from surefit.inputs.image.pixel_format import PixelFormat

Array = npt.NDArray[Any]
Drawn = Mapping[str, Any]


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

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, Any]:
        """What happens to one row: a value for each change."""
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
        """The row with its series changed."""
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

    def call_own(self, function: Any, array: Array, rng: np.random.Generator) -> Any:
        """A user's own change."""
        return np.asarray(function(array.copy(), rng))


def _draw_span(share: float, length: int, rng: np.random.Generator) -> tuple[int, int]:
    """Start and length of a span of up to that share of a length."""
    span = int(rng.integers(0, int(share * length) + 1))
    return int(rng.integers(0, length - span + 1)), span


def describe_series(drawn: Drawn) -> Iterator[str]:
    """What was drawn for a series, in words."""
    if "scale" in drawn:
        yield f"scale × {drawn['scale']:.2f}"
    if "jitter" in drawn:
        yield "noise added"
    for name, what in (("time_mask", "steps"), ("channel_mask", "channels")):
        if name in drawn and drawn[name][1]:
            start, length = drawn[name]
            yield f"{what} {start} to {start + length - 1} masked"


COLUMN = "pixel_values"
COLOURS = ("brightness", "contrast", "saturation")
MOVES = ("rotate", "crop", "shift")
ASPECTS = (3 / 4, 4 / 3)
"""The range of a crop's aspect ratio, relative to the image's."""


@dataclass(frozen=True)
class ImageChanges:
    """Named changes of images (C, H, W), and how their pixels were normalised."""

    changes: Mapping[str, float]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    high: float | None = 1.0
    """The largest pixel before normalisation, where the smallest is 0; None if neither is known."""
    column: str = COLUMN

    @classmethod
    def of(cls, changes: Mapping[str, float], pixels: PixelFormat) -> ImageChanges:
        """The changes of images that are read in this format."""
        high = 255 * pixels.scale if pixels.float_range >= 0 else None
        return cls(changes, pixels.mean, pixels.std, high)

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, Any]:
        """What happens to one image: a value for each change that takes place."""
        drawn: dict[str, Any] = {}
        for name in ("flip", "flip_vertical"):
            if name in self.changes and rng.random() < self.changes[name]:
                drawn[name] = True
        if "rotate" in self.changes:
            drawn["rotate"] = float(rng.uniform(-1, 1)) * self.changes["rotate"]
        if "crop" in self.changes:
            drawn["crop"] = _draw_crop(self.changes["crop"], rng)
        if "shift" in self.changes:
            drawn["shift"] = tuple((rng.uniform(-1, 1, 2) * self.changes["shift"]).tolist())
        for name in COLOURS:
            if name in self.changes:
                drawn[name] = 1 + float(rng.uniform(-1, 1)) * self.changes[name]
        if "erase" in self.changes:
            drawn["erase"] = draw_box(rng.uniform(0, self.changes["erase"]), shape[-2:], rng)
        return drawn

    def apply(self, row: Mapping[str, Any], drawn: Drawn) -> dict[str, Any]:
        """The row with its image changed, and a mask of its pixels moved alike."""
        pixels, labels = row[self.column], row.get("labels")
        moved = {self.column: np.ascontiguousarray(self._recoloured(_move(pixels, drawn), drawn))}
        if "erase" in drawn:
            moved[self.column][(..., *box_slices(drawn["erase"]))] = 0
        if labels is not None and np.ndim(labels) == 2:
            moved["labels"] = _move(labels[None], drawn, nearest=True)[0]
        return {**row, **moved}

    def _recoloured(self, pixels: Array, drawn: Drawn) -> Array:
        if not any(name in drawn for name in COLOURS):
            return pixels.copy()
        plain = self.as_pixels(pixels)
        count = 3 if len(plain) == 4 else len(plain)  # the fourth channel is the opacity
        colours = plain[:count]
        if "brightness" in drawn:
            colours = colours * np.float32(drawn["brightness"])
        if "contrast" in drawn:
            mean = _gray(colours).mean((1, 2), dtype=np.float64)
            colours = _blend(colours, mean[:, None, None], drawn["contrast"])
        if "saturation" in drawn:
            colours = _blend(colours, _gray(colours), drawn["saturation"])
        return self.normalise(np.concatenate([colours, plain[count:]]))

    def as_pixels(self, normal: Array) -> Array:
        """Pixels before normalisation."""
        return normal * _planes(self.std) + _planes(self.mean)

    def normalise(self, pixels: Array) -> Array:
        """Pixels as the model gets them, none beyond the range of pixels."""
        within = pixels if self.high is None else pixels.clip(0, self.high)
        return (within.astype(np.float32) - _planes(self.mean)) / _planes(self.std)

    def call_own(self, function: Any, array: Array, rng: np.random.Generator) -> Any:
        """A user's own change, which gets pixels before normalisation."""
        made = np.asarray(function(self.as_pixels(array), rng))
        return self.normalise(made) if made.shape == array.shape else made


def _planes(values: tuple[float, ...]) -> Array:
    return np.asarray(values, np.float32)[:, None, None]


def _gray(colours: Array) -> Array:
    return (colours * LUMA[:, None, None]).sum(0, keepdims=True) if len(colours) == 3 else colours


def _blend(colours: Array, other: Any, factor: float) -> Array:
    return np.float32(factor) * colours + np.float32(1 - factor) * np.asarray(other, np.float32)


def _draw_crop(smallest: float, rng: np.random.Generator) -> tuple[float, float, float, float]:
    """Height and width of a crop and the shift of its centre, as shares of the image's."""
    area, aspect = rng.uniform(smallest, 1), np.exp(rng.uniform(*np.log(ASPECTS)))
    height, width = min(1.0, (area / aspect) ** 0.5), min(1.0, (area * aspect) ** 0.5)
    down, right = rng.uniform(-0.5, 0.5, 2)
    return float(height), float(width), float(down * (1 - height)), float(right * (1 - width))


def draw_box(
    share: float, size: tuple[int, ...], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a rectangle with that share of an image, anywhere in it."""
    height, width = (round(float(side * share**0.5)) for side in size)
    top, left = rng.integers(0, size[0] - height + 1), rng.integers(0, size[1] - width + 1)
    return int(top), int(left), height, width


def box_slices(box: tuple[int, int, int, int]) -> tuple[slice, slice]:
    """The rows and columns of a rectangle.

    >>> box_slices((1, 2, 3, 4))
    (slice(1, 4, None), slice(2, 6, None))
    """
    top, left, height, width = box
    return slice(top, top + height), slice(left, left + width)


def _move(planes: Array, drawn: Drawn, nearest: bool = False) -> Array:
    """Planes (C, H, W) after the flips and the moves that were drawn."""
    if drawn.get("flip"):
        planes = planes[..., ::-1]
    if drawn.get("flip_vertical"):
        planes = planes[..., ::-1, :]
    if not any(name in drawn for name in MOVES):
        return planes
    import torch
    from torch.nn.functional import grid_sample

    grid = torch.from_numpy(_grid(drawn, *planes.shape[1:]))[None]
    source = torch.from_numpy(np.array(planes, np.float32, order="C"))[None]
    mode = "nearest" if nearest else "bilinear"
    moved = grid_sample(source, grid, mode, padding_mode="reflection", align_corners=False)
    return np.asarray(moved[0].numpy()).astype(planes.dtype, copy=False)


def _grid(drawn: Drawn, height: int, width: int) -> Array:
    """Where each pixel of the moved image comes from: (H, W, 2), from -1 to 1.

    Computed number by number: the last bit of a matrix product depends on where its operands are.
    """
    y = (np.arange(height) + 0.5 - height / 2)[:, None]
    x = (np.arange(width) + 0.5 - width / 2)[None, :]
    high, wide, down, right = drawn.get("crop", (1.0, 1.0, 0.0, 0.0))
    lower, further = drawn.get("shift", (0.0, 0.0))
    angle = np.deg2rad(drawn.get("rotate", 0.0))
    y, x = y * high, x * wide
    y, x = y * np.cos(angle) + x * np.sin(angle), x * np.cos(angle) - y * np.sin(angle)
    y, x = y + (down - lower) * height, x + (right - further) * width
    return np.stack([x * 2 / width, y * 2 / height], axis=-1).astype(np.float32)


def describe_image(drawn: Drawn) -> Iterator[str]:
    """What was drawn for an image, in words."""
    if drawn.get("flip"):
        yield "mirrored"
    if drawn.get("flip_vertical"):
        yield "upside down"
    if "rotate" in drawn:
        yield f"rotated by {drawn['rotate']:.1f}°"
    if "crop" in drawn:
        yield f"cropped to {drawn['crop'][0]:.0%} × {drawn['crop'][1]:.0%}"
    if "shift" in drawn:
        yield f"shifted by {drawn['shift'][0]:.0%} down, {drawn['shift'][1]:.0%} right"
    yield from (f"{name} × {drawn[name]:.2f}" for name in COLOURS if name in drawn)
    if "erase" in drawn:
        yield f"{drawn['erase'][2]} × {drawn['erase'][3]} pixels erased"


MIXES = ("mixup", "cutmix")
LABELS, SHARE = "mixed_labels", "mixed_share"
"""Columns of a batch of mixed rows: the class of the other row, and the share of the row's own."""
FIELDS = {LABELS: Field((), "int64"), SHARE: Field((), "float32")}


def draw_mix(
    changes: Mapping[str, float], shape: tuple[int, ...], rng: np.random.Generator
) -> dict[str, Any]:
    """The share of the row itself, and for cutmix the rectangle of the other one; or nothing."""
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
    """The row, mixed with the other one as drawn.

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
    """The values of an input, mixed with those of the other row."""
    if "cutmix" in drawn:
        return _paste(own, its, drawn["cutmix"])
    return _mix(own, its, drawn["mixup"])


def _mix(one: Any, other: Any, share: float) -> Any:
    return np.float32(share) * one + np.float32(1 - share) * other


def _paste(one: Any, other: Any, box: tuple[int, int, int, int]) -> Any:
    made, place = one.copy(), (..., *box_slices(box))
    made[place] = other[place]
    return made


def describe_mix(drawn: Drawn) -> Iterator[str]:
    """What was drawn for a mixed row, in words."""
    if "mixup" in drawn:
        how = "replaced by" if "cutmix" in drawn else "blended with"
        yield f"{1 - drawn['mixup']:.0%} {how} row {drawn['partner']}"
