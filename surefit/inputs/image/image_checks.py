"""Images that are not what they seem: of different ranges, or nearly black."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.data.column_types import is_list, list_axes
from surefit.data.table import Table
from surefit.findings import Finding, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.image.image_planes import AS_THEY_ARE
from surefit.inputs.store import Store

Array = npt.NDArray[Any]
SHOWN = 3
MIXED_RANGES = rule(
    "SF240",
    "error",
    "images of different ranges",
    why="Images from 0 to 1 among images from 0 to 255 are black to the model.",
    fix="Save all images in one range, best as uint8 from 0 to 255.",
    accept="All images are read as ranging from 0 to 255; the others are nearly black.",
)

NEARLY_BLACK = rule(
    "SF241",
    "warning",
    "8-bit images that hold only 0 and 1",
    why="8-bit images range to 255, so that 1 is black to a model that was trained on images.",
    fix="Multiply the pixels by 255 before they are saved as 8-bit images.",
    accept="The images are trained on as they are.",
    covered_by=("SF240",),
)

MAX_IMAGES = 256
ENOUGH = 0.02
"""The share of an image's pixels that are 1 before it counts; noise on black has fewer."""


def check_float_images(table: Table, column: str, encoder: Encoder) -> Iterator[Finding]:
    """Floating-point images of which some range to 1 and others to 255, among all rows."""
    pixels = encoder.input.pixels
    if pixels is not None and pixels.float_range == AS_THEY_ARE:
        return
    axes, value = list_axes(table.column_type(column))
    if len(axes) not in (2, 3) or not pa.types.is_floating(value):
        return
    tops = np.concatenate([_largest(chunk) for chunk in table.arrow[column].chunks])
    small, large = np.flatnonzero((tops > 0) & (tops <= 1)), np.flatnonzero(tops > 1)
    if not len(small) or not len(large):
        return
    shown = " and ".join(
        f"{len(rows):,} {'has' if len(rows) == 1 else 'have'} values up to {tops[rows].max():g} "
        f"(row{'s' * (len(rows) > 1)} {', '.join(_numbers(table, rows))})"
        for rows in (small, large)
    )
    message = f"column {column!r}: of {len(tops):,} images, {shown}."
    fewer = small if len(small) <= len(large) else large
    yield MIXED_RANGES.finding(message, table.where(int(fewer[0])), column=column)


def _numbers(table: Table, rows: Array) -> list[str]:
    return [str(table.where(row)["row"]) for row in rows[:SHOWN].tolist()]


def _largest(rows: pa.Array) -> Array:
    """Return the largest value of each row of nested lists; 0 for rows without values."""
    starts = np.arange(len(rows) + 1, dtype=np.int64)
    values = rows
    while is_list(values.type):
        if pa.types.is_fixed_size_list(values.type):
            if values.null_count:
                return np.zeros(len(rows))  # reported by the encoding
            starts = starts * values.type.list_size
        else:
            offsets = np.asarray(values.offsets, np.int64)
            starts = (offsets - offsets[0])[starts]
        values = values.flatten()
    flat = values.to_numpy(zero_copy_only=False)
    filled = np.flatnonzero(np.diff(starts) > 0)
    found = np.zeros(len(rows))
    if len(filled):
        found[filled] = np.maximum.reduceat(flat, starts[filled])
    return np.nan_to_num(found)


def check_black_images(store: Store, table: Table, encoder: Encoder) -> Iterator[Finding]:
    """Encoded images whose pixels are only 0 and 1 of 255, on a sample spread over the rows."""
    form = encoder.input.pixels
    if "pixel_values" not in store.fields or not len(store) or form is None:
        return
    if form.float_range == AS_THEY_ARE:
        return
    std, mean = (np.asarray(each, np.float32)[:, None, None] for each in (form.std, form.mean))
    stride = -(-len(store) // MAX_IMAGES)
    sample = np.arange(0, len(store), stride)
    black = []
    for place in sample.tolist():
        pixels = np.rint((store.value("pixel_values", place) * std + mean) / form.scale)
        if pixels.max() <= 1 and (pixels == 1).mean() >= ENOUGH:
            black.append(place)
    if not black:
        return
    wheres = [table.where(int(store.source_row[place])) for place in black[:SHOWN]]
    numbers = ", ".join(str(where["row"]) for where in wheres)
    only = "has" if len(black) == 1 else "have"
    message = (
        f"column {encoder.roles['image']!r}: {len(black):,} of {len(sample):,} images looked at "
        f"{only} only the pixel values 0 and 1 of 255 (row{'s' * (len(wheres) > 1)} {numbers})."
    )
    yield NEARLY_BLACK.finding(message, wheres[0], column=encoder.roles["image"])
