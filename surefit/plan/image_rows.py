"""Images in arrays: which axis has the channels. The module is tried; the shape decides the rest.

Images in files have the channels of their format, and arrays [height, width] have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from surefit.data.column_types import array_rank, is_array
from surefit.data.row_shapes import row_shape
from surefit.data.table import Table
from surefit.encode.features.feature_layout import Hints
from surefit.encode.images.channel_axis import FIRST, LAST, ChannelAxis, convertible, own_axis


def plan_images(
    table: Table,
    roles: Mapping[str, str],
    hints: Hints,
    channels: int | None,
    size: tuple[int, int] | None,
) -> dict[str, Any]:
    """Settings of the Encoder: the axis of the channels, and how many the module was found to read.

    `channels` and `size` are the user's.
    """
    column, model = roles.get("image"), dict(hints.image or {})
    shape = None if column is None else usual_shape(table, column)
    if shape is None:
        return {}
    wanted = channels or model.get("channels")
    accepted = [axis for axis in (FIRST, LAST) if _is_read(shape, axis, hints, size)]
    suited = [axis for axis in (FIRST, LAST) if shape[axis] == wanted]
    axis = _choose(shape, suited if channels else accepted or suited)
    found = ChannelAxis(axis, shape[axis])
    settings: dict[str, Any] = {"image.axis": asdict(found)}
    if axis in accepted and not convertible(found.channels, model.get("channels") or 1):
        settings["image.model"] = {**model, "channels": found.channels}
    return settings


def usual_shape(table: Table, column: str) -> tuple[int, ...] | None:
    """The most frequent sizes of images in arrays of three axes; None for other columns."""
    kind = table.column_type(column)
    if not is_array(kind) or array_rank(kind) != 3:
        return None
    axes = row_shape(table, column).axes
    return tuple(axis.usual for axis in axes) if len(axes) == 3 else None


def _choose(shape: Sequence[int], possible: Sequence[int]) -> int:
    """The only axis that is possible; of both, that which the shape tells."""
    return possible[0] if len(possible) == 1 else own_axis(shape)


def _is_read(shape: Sequence[int], axis: int, hints: Hints, size: tuple[int, int] | None) -> bool:
    """Whether the module runs on images whose channels are on this axis."""
    if hints.reads_images is None:
        return False
    sides = size or (tuple(shape[:2]) if axis == LAST else tuple(shape[1:]))
    return hints.reads_images(shape[axis], *sides) is True
