"""Images as the input of a row: planned, measured on training rows, encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.batches.field import Field
from surefit.data.column_types import CHANNELS, array_rank, is_array, is_list, list_axes
from surefit.data.profile import Profile
from surefit.data.row_arrays import row_shape
from surefit.data.table import Table
from surefit.findings import Finding, rule
from surefit.inputs.encoded_row import Encoding, encoded
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput, as_fitted
from surefit.inputs.file_names import holds_files, join_parts
from surefit.inputs.image.image_changes import image_changes
from surefit.inputs.image.image_files import (
    AS_THEY_ARE,
    FIRST,
    LAST,
    ChannelAxis,
    convertible,
    image_content,
    own_axis,
)
from surefit.inputs.image.pixel_format import ImageHints
from surefit.inputs.image.pixel_sample import PixelSample
from surefit.inputs.model_hints import Hints
from surefit.inputs.row_input import Planned, ReadBy, RowInput
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


PIXELS = Field(("channel", "height", "width"), "float32")


class ImageReader:
    """Passes rows on and learns size, mean and standard deviation of their images on the way."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        hints = encoder.input.image_hints
        fixed, place = hints.channels or hints.model.get("channels", 3), hints.place
        own = CHANNELS if place.channels in CHANNELS else (place.channels,)
        further = {c: role for role, c in encoder.roles.items() if c in encoder.further}
        channels = (fixed,) if fixed in own and not further else own
        self.columns = [encoder.roles["image"], *further]
        self.samples = [PixelSample(channels, place, r) for r in ("image", *further.values())]

    def watch(self, rows: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        """Return the rows, unchanged."""
        for sample in self.samples:
            rows = sample.watch(rows)
        return rows

    def fitted(self) -> tuple[FittedInput, list[Finding]]:
        """Return how images are read: the format of the first column and of those like it; others
        have their own. `convolutions` of the model are the channels of all its layers.
        """
        samples, columns, hints = self.samples, self.columns, self.encoder.input.image_hints
        model, size = dict(hints.model), hints.size
        layers, first = model.pop("convolutions", ()), model.get("channels")
        for sample in samples:
            sample.require_images()
        lead, *others = samples
        own_channels = [sample.own_channels for sample in samples]
        if others and first == sum(own_channels):  # the module concatenates its images
            layers, first = own_channels, own_channels[0]
            model["channels"] = first
        reads = [own if own in layers or first is None else first for own in own_channels]
        is_alike = [
            bool(hints.channels or read == reads[0]) and lead.is_like(other)
            for read, other in zip(reads[1:], others, strict=True)
        ]
        shared = lead.joined(other for other, alike in zip(others, is_alike, strict=True) if alike)
        pixels = shared.fitted(size, model, hints)
        names = [name for name, alike in zip(columns[1:], is_alike, strict=True) if alike]
        found = shared.findings(pixels, model, columns[0], *names)
        own = {}
        for sample, name, read in zip(others, columns[1:], reads[1:], strict=True):
            if name in names:
                continue
            reading = {**model, "channels": read, "inputs": None} if "channels" in model else model
            common = sample.size or (pixels.height, pixels.width)
            own[name] = sample.fitted(size or common, reading, hints)
            found += sample.findings(own[name], reading, name)
        return replace(self.encoder.input, pixels=pixels, further_pixels=own), found


def encode_image(row: Mapping[str, Any], encoder: Encoder, targets: Mapping[str, Any]) -> Encoding:
    """Return the pixel values, and the targets of the row."""
    form = as_fitted(encoder.input.pixels)
    return encoded({"pixel_values": form.pixel_values(row["image"]), **targets})


def plan_images(given: Planned) -> tuple[FittedInput, list[Finding]]:
    """Note what the user sets, what the model's files say, and where arrays have their channels."""
    image, encoder = given.config.image, given.encoder
    asked = ImageHints(image.size, image.channels, image.mean, image.std, given.image)
    shape = usual_shape(given.table, encoder.roles["image"])
    hints = asked if shape is None else find_channels(shape, given.hints, asked)
    return replace(encoder.input, image_hints=hints), []


def find_channels(shape: Sequence[int], hints: Hints, asked: ImageHints) -> ImageHints:
    """Return the hints with the axis of the channels, and how many of them the module reads."""
    model = dict(hints.image or {})
    wanted = asked.channels or model.get("channels")
    accepted = [axis for axis in (FIRST, LAST) if _is_read(shape, axis, hints, asked.size)]
    suited = [axis for axis in (FIRST, LAST) if shape[axis] == wanted]
    possible = suited if asked.channels else accepted or suited
    axis = possible[0] if len(possible) == 1 else own_axis(shape)
    found = replace(asked, place=ChannelAxis(axis, shape[axis]))
    if axis in accepted and not convertible(shape[axis], model.get("channels") or 1):
        return replace(found, model={**model, "channels": shape[axis]})
    return found


def usual_shape(table: Table, column: str) -> tuple[int, ...] | None:
    """Return the most frequent sizes of images in arrays of three axes; None for other columns."""
    kind = table.column_type(column)
    if not is_array(kind) or array_rank(kind) != 3:
        return None
    axes = row_shape(table, column).axes
    return tuple(axis.usual for axis in axes) if len(axes) == 3 else None


def _is_read(shape: Sequence[int], axis: int, hints: Hints, size: tuple[int, int] | None) -> bool:
    """Return whether the module runs on images whose channels are on this axis."""
    if hints.reads_images is None:
        return False
    sides = size or (tuple(shape[:2]) if axis == LAST else tuple(shape[1:]))
    return hints.reads_images(shape[axis], *sides) is True


def read_as_image(table: Table, arrays: Sequence[str], hints: Hints) -> str | None:
    """Return the only column of arrays, if a module reads it as images and not as sequences."""
    ranks = [array_rank(table.column_type(name)) for name in arrays]
    if hints.image is None or ranks not in ([2], [3]):
        return None
    sizes = [axis.size for axis in row_shape(table, arrays[0]).axes]
    if ranks == [3] and 1 not in sizes:
        return arrays[0]  # features have two axes
    known, channels = [size for size in sizes if size is not None], hints.image["channels"]
    if len(known) < len(sizes) or hints.reads_images is None or channels is None:
        return None
    as_sequence = ranks == [2] and hints.accepts is not None and hints.accepts(*known)
    sides = known if ranks == [2] else known[1:] if own_axis(known) == FIRST else known[:2]
    is_read = not as_sequence and hints.reads_images(channels, *sides) is not False
    return arrays[0] if is_read else None


def adapt_images(table: Table, encoder: Encoder) -> tuple[Table, Encoder, list[Finding]]:
    """Return the table with one row per file, where an array of channels was opened as rows."""
    form = encoder.input.pixels

    def is_row(shape: tuple[int, ...]) -> bool:
        if form is None or len(shape) != 3 or form.channels in CHANNELS:
            return False  # a plane is a gray image
        return form.place.is_first(shape) is not None

    table, found = join_parts(table, encoder, is_row, "image")
    return table, encoder, found


IMAGE = RowInput(
    "image",
    encode_image,
    lambda encoder: {"pixel_values": PIXELS},
    ReadBy("AutoModelForImageClassification"),
    ImageReader,
    takes=partial(holds_files, role="image"),
    holds_amounts=partial(Profile.holds_amounts, whole=False),
    section="image",
    content_name="images",
    changes=image_changes,
    plan=plan_images,
    read_by=read_as_image,
    adapt=adapt_images,
    content=image_content,
    is_small=lambda encoder: True,
    check_cells=check_float_images,
    check=check_black_images,
)
