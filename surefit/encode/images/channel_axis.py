"""Where the channels of an image in an array are: its first axis or its last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefit.data.column_types import CHANNELS

FIRST, LAST = 0, 2


@dataclass(frozen=True)
class ChannelAxis:
    """The number of channels that images of the data have, and the axis on which they are."""

    axis: int = LAST
    channels: int = 3

    def is_first(self, shape: Sequence[int]) -> bool | None:
        """Whether the first of an image's three axes has its channels; None if none can be.

        Rows to evaluate or to predict may have the other layout than the training rows.

        >>> ChannelAxis(LAST, 3).is_first((3, 8, 8)), ChannelAxis(FIRST, 5).is_first((8, 8, 3))
        (True, None)
        """
        expected = CHANNELS if self.channels in CHANNELS else (self.channels,)
        axes = (self.axis, FIRST + LAST - self.axis)
        found = next((axis for axis in axes if shape[axis] in expected), None)
        return None if found is None else found == FIRST


def read_axis(state: Mapping[str, Any] | None) -> ChannelAxis:
    """A ChannelAxis as the Encoder keeps it; None for images in files."""
    return ChannelAxis() if state is None else ChannelAxis(**state)


def own_axis(shape: Sequence[int]) -> int:
    """The axis of the channels by the shape alone.

    It is one of the length 1, 3 or 4; else that beside two equal sides; else the shorter one.

    >>> [own_axis(shape) for shape in ((9, 9, 3), (5, 8, 8), (8, 8, 12), (9, 40, 5))]
    [2, 0, 2, 2]
    """
    first, middle, last = shape
    usual = [axis for axis in (LAST, FIRST) if shape[axis] in CHANNELS]
    if usual:
        return usual[0]
    if (first == middle) != (middle == last):
        return LAST if first == middle else FIRST
    return LAST if last < first else FIRST


def convertible(found: int, wanted: int) -> bool:
    """Whether images of `found` channels can be read with `wanted` ones."""
    return found == wanted or {found, wanted} <= {*CHANNELS}
