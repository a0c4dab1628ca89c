"""Changes of series, vectors and audio in training: noise, scaling, masked spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.errors import UsageError

Array = npt.NDArray[Any]
Drawn = Mapping[str, Any]
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
