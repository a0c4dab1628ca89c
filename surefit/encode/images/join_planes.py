"""Images of many channels whose `.npy` files, one image each, were opened as rows of planes.

An array of three axes in a file of its own may be rows [sequence length, feature size] as well as
an image. Once a model is trained on images, it is an image: it reads nothing with two axes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from surefit.data.cache import fingerprint
from surefit.data.column_types import array_rank, is_array
from surefit.data.formats.numpy_files import to_arrow
from surefit.data.row_shapes import row_shape
from surefit.data.table import Source, Table
from surefit.encode.encoder import Encoder
from surefit.encode.images.channel_axis import CHANNELS
from surefit.encode.images.pixel_format import read_format


def join_images(table: Table, encoder: Encoder) -> Table:
    """The table with one image per row, where each of its files is one; else as it is."""
    column, pixels = encoder.roles.get("image"), encoder.fitted.get("pixels")
    if column not in table.columns or column is None or pixels is None:
        return table
    kind = table.column_type(column)
    if not is_array(kind) or array_rank(kind) != 2:
        return table
    form = read_format(pixels)
    starts = [source.first_row for source in table.sources]
    sizes = {end - start for start, end in zip(starts, [*starts[1:], table.num_rows], strict=True)}
    sides = [axis.size for axis in row_shape(table, column).axes]
    are_files = all(Path(source.file).suffix == ".npy" for source in table.sources)
    if form.channels in CHANNELS or not are_files or len(sizes) != 1 or None in sides:
        return table
    shape = (sizes.pop(), *(side for side in sides if side is not None))
    if form.place.is_first(shape) is None:
        return table
    planes = np.stack([row[column] for row in table.rows()])
    arrow = table.arrow.take(starts)
    images = to_arrow(planes.reshape(-1, *shape))
    return replace(
        table,
        arrow=arrow.set_column(arrow.column_names.index(column), column, images),
        sources=tuple(Source(s.file, place) for place, s in enumerate(table.sources)),
        key=fingerprint(table.key, "images"),
    )
