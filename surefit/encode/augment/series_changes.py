"""Changes of a series or a vector: noise, scale, and masks over time and channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
