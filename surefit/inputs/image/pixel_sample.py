"""A sample of images: size, channels, range, mean and std, and how they are read by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.column_types import CHANNELS
from surefit.data.data_rules import UNREADABLE_MEDIA
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.image.image_files import (
    AS_THEY_ARE,
    FIRST,
    RGB,
    ChannelAxis,
    as_channels,
    convertible,
    float_range_of,
    is_outside,
    read_values,
    top_of,
)
from surefit.inputs.image.pixel_format import NO_HINTS, ImageHints, PixelFormat

WRONG_CHANNELS = rule(
    "SF256",
    "error",
    "number of channels that images do not have",
    why="Gray, RGB and RGBA images are converted into each other; no others can be.",
    fix="Build the module's first layer for the channels of the images.",
)

LARGEST_DEFAULT = 224
SAMPLE_ROWS = 512
USUAL = 0.5
"""The share of images outside the usual ranges from which on they are not faulty."""
LEAST_VARIANCE = 1e-4
LEAST_OF_255 = 16
"""Images from 0 to 255 that have no value as high are black."""


@dataclass(frozen=True)
class _Seen:
    """One image: its size, its values, and mean and mean square for each number of channels."""

    size: tuple[int, int]
    channels: int
    dtype: str
    float_range: float
    low: float
    high: float
    outside: bool
    top: float
    moments: Mapping[int, tuple[npt.NDArray[Any], npt.NDArray[Any]]]
    """In shares of `top`."""


class PixelSample:
    """A sample of images, spread evenly over the rows.

    `channels` are the numbers of channels that the model may read, `place` is where arrays have
    them, and `role` is that of the images.
    """

    def __init__(
        self, channels: Sequence[int] = (3,), place: ChannelAxis = RGB, role: str = "image"
    ) -> None:
        self._channels = channels
        self._axis = place
        self._role = role
        self._stride = 1
        self._seen: list[_Seen] = []
        self._fault: RowFaultError | None = None
        self._place: int | None = None
        """That of the first image that could be read."""

    def watch(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield the rows, unchanged; every n-th image is measured on the way.

        Unreadable images are reported later, by the encoding.
        """
        for place, row in enumerate(rows):
            value = row[self._role] if place % self._stride == 0 else None
            if value is not None:
                try:
                    self._add(value)
                    self._place = place if self._place is None else self._place
                except RowFaultError as fault:
                    self._fault = self._fault or fault
            yield row

    def _add(self, value: Any) -> None:
        values = read_values(value, self._axis)
        height, width, channels = values.shape
        top = top_of(values)
        shares = values.astype(np.float64) / top
        moments = {}
        for number in self._channels:
            pixels = as_channels(shares, number, 1.0)
            moments[number] = pixels.mean((0, 1)), np.square(pixels).mean((0, 1))
        low, high = float(values.min()), float(values.max())
        dtype, is_float = str(values.dtype), values.dtype.kind == "f"
        seen = _Seen(
            (height, width),
            channels,
            dtype,
            float_range_of(values) if is_float else 0,
            low,
            high,
            is_outside(values),
            top,
            moments,
        )
        self._seen.append(seen)
        if len(self._seen) == 2 * SAMPLE_ROWS:
            self._seen, self._stride = self._seen[::2], 2 * self._stride

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of all images; None where they vary."""
        sizes = {seen.size for seen in self._seen}
        return next(iter(sizes)) if len(sizes) == 1 else None

    def is_like(self, other: PixelSample) -> bool:
        """Whether the images of another column have the same size and the same range of values."""
        sizes = {self.size, other.size} - {None}
        return len(sizes) < 2 and self._range == other._range

    @property
    def _range(self) -> tuple[Any, ...]:
        tops = {seen.float_range for seen in self._seen if not seen.outside}
        return self._are_unusual(), self._are_normalised(), tops

    def joined(self, others: Iterable[PixelSample]) -> PixelSample:
        """Return one sample of these images and those of other columns."""
        made = PixelSample(self._channels, self._axis, self._role)
        made._fault, made._place = self._fault, self._place
        made._seen = [seen for sample in (self, *others) for seen in sample._seen]
        return made

    def require_images(self) -> None:
        """Refuse a column without a readable image."""
        if not self._seen:
            fault = self._fault or RowFaultError(UNREADABLE_MEDIA, "the image column is empty")
            message = f"No training row has a readable image: {fault.message}"
            raise fault.rule.error(message, fix=fault.fix)

    def fitted(
        self,
        size: tuple[int, int] | None,
        model: Mapping[str, Any],
        hints: ImageHints = NO_HINTS,
    ) -> PixelFormat:
        """Return PixelFormat: set by the user (`size` and `hints`), by the model, by the sample."""
        self.require_images()
        known = dict(model)
        of_model, multiple = known.pop("size", None), known.pop("multiple_of", None)
        height, width = map(int, size or of_model or self._common_size(multiple))
        if size:
            known["edge"] = None
        own_module = "channels" in known
        first, inputs = known.pop("channels", None), known.pop("inputs", None)
        by_inputs = (inputs or 0) / (height * width)
        first = first or (int(by_inputs) if by_inputs in CHANNELS else self.own_channels)
        channels = hints.channels or (first if own_module else 3)
        self._check_channels(channels, own_module, hints.channels is not None)
        as_they_are = self._are_unusual() and (own_module or self._are_normalised())
        float_range = max((seen.float_range for seen in self._seen if not seen.outside), default=0)
        deep = any(seen.dtype not in ("uint8", "bool") for seen in self._seen)
        normal = self._normalisation(channels, known, as_they_are)
        mean, std = (
            tuple(_per_channel(key, asked, channels) if asked else normal.pop(key))
            for key, asked in (("mean", hints.mean), ("std", hints.std))
        )
        return PixelFormat(
            **{
                **normal,
                "height": height,
                "width": width,
                "mean": mean,
                "std": std,
                "channels": channels,
                "axis": self._axis.axis,
                "float_range": AS_THEY_ARE if as_they_are else float_range,
                "exact": as_they_are or (own_module and deep),
            }
        )

    def _check_channels(self, channels: int, own_module: bool, asked: bool) -> None:
        """Refuse a model that reads other channels than the images have."""
        own = self.own_channels
        if convertible(own, channels):
            return
        reads = "the module's first layer" if own_module else "the model"
        reads = f"image.channels is {channels}" if asked else f"{reads} reads {channels}"
        message = f"the images have {own} channels, but {reads}."
        raise RowFaultError(WRONG_CHANNELS, message, self._role, place=self._place)

    def _normalisation(
        self, channels: int, known: Mapping[str, Any], as_they_are: bool
    ) -> dict[str, Any]:
        """Mean, std and scale: of the model, else of the sample; normalised images keep theirs."""
        mean, std = self._spread(channels, as_they_are)
        if not as_they_are:
            return {"mean": mean, "std": std, **known}
        if self._are_normalised():
            mean, std = [0.0] * channels, [1.0] * channels
        return {**known, "mean": mean, "std": std, "scale": 1.0}

    def _are_unusual(self) -> bool:
        """Return whether values are in none of the usual ranges in most images, and not in a few.

        Floating-point values a little over 1, as of images with noise, are in none either.
        """
        outside = sum(seen.outside for seen in self._seen)
        highest = max(seen.high if seen.dtype.startswith("float") else 0 for seen in self._seen)
        near_one = not outside and 1 < highest < LEAST_OF_255
        return near_one or (outside > 0 and outside >= USUAL * len(self._seen))

    def _are_normalised(self) -> bool:
        """Return whether most images have negative values."""
        negative = sum(seen.low < 0 and seen.dtype.startswith("float") for seen in self._seen)
        return negative >= USUAL * len(self._seen)

    def findings(
        self, form: PixelFormat, model: Mapping[str, Any], column: str, *alike: str
    ) -> list[Finding]:
        """Return how images are read, where no image processor says so, and the range of their
        values.

        `alike` are further columns of this sample.
        """
        found = []
        own = self.own_channels
        of = f"columns {', '.join(map(repr, (column, *alike)))}" if alike else f"column {column!r}"
        if "channels" in model:
            turned = "" if own == form.channels else f", converted from {own}"
            if own not in CHANNELS:
                side = "first" if self._axis.axis == FIRST else "last"
                turned = f" (the channels are the {side} axis of the arrays)"
            spread = f"mean {_shown(form.mean)} and std {_shown(form.std)}"
            message = (
                f"images of {of} are read as [{form.channels}, {form.height}, "
                f"{form.width}]{turned}, with {spread}."
            )
            found.append(note(message, column=column))
        if form.float_range == AS_THEY_ARE:
            low = min(seen.low for seen in self._seen)
            high = max(seen.high for seen in self._seen)
            how = "they are standardised"
            if self._are_normalised():
                how = "they count as normalised and are used as they are"
            message = f"images of {of} have values from {low:g} to {high:g}: {how}."
            found.append(note(message, column=column))
        return found

    @property
    def own_channels(self) -> int:
        """The number of channels that most images have."""
        return Counter(seen.channels for seen in self._seen).most_common(1)[0][0]

    def _spread(self, channels: int, as_they_are: bool) -> tuple[list[float], list[float]]:
        """Mean and standard deviation per channel, of values from 0 to 1 or as they are."""
        means, squares = [], []
        for seen in self._seen:
            unit = seen.top if as_they_are else 1.0
            mean, square = seen.moments.get(channels, seen.moments[self._channels[0]])
            means.append(mean * unit)
            squares.append(square * unit**2)
        mean = np.mean(means, 0)
        std = np.sqrt(np.maximum(np.mean(squares, 0) - mean**2, LEAST_VARIANCE))
        return mean.tolist(), std.tolist()

    def _common_size(self, multiple: int | None) -> tuple[int, int]:
        """Return the most common height and width, at most 224; square for models that need it."""
        (height, width), _ = Counter(seen.size for seen in self._seen).most_common(1)[0]
        shrink = min(1.0, LARGEST_DEFAULT / max(width, height))
        height, width = max(1, round(height * shrink)), max(1, round(width * shrink))
        if multiple is None:
            return height, width
        side = -(-max(height, width) // multiple) * multiple
        return side, side


def _per_channel(key: str, values: Sequence[float], channels: int) -> list[float]:
    """Return the user's mean or std, one number for all channels or one for each."""
    if len(values) not in (1, channels):
        raise UsageError(
            f"image.{key} has {len(values)} values; the images are read with {channels} channels.",
            f"Give one number, or {channels}.",
        )
    return [float(value) for value in values] * (channels if len(values) == 1 else 1)


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
