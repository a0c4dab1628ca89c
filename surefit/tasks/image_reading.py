"""What tasks on images share: which columns are images, how they are measured and encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from surefit.batches.field import Field
from surefit.data.cell_files import is_empty, names_files
from surefit.data.column_types import CHANNELS, is_text
from surefit.data.data_rules import UNREADABLE_MEDIA
from surefit.data.file_kinds import IMAGES
from surefit.data.table import Table
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Encoding, RowFaultError, SkipRowError, encoded
from surefit.encode.encoder import Encoder
from surefit.encode.images.channel_axis import read_axis
from surefit.encode.images.pixel_format import read_format
from surefit.encode.images.pixel_sample import PixelSample

FitLabels = Callable[[Iterable[Mapping[str, Any]]], dict[str, Any]]
PIXELS = Field(("channel", "height", "width"), "float32")


def holds_images(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether the image column holds images or, if it is text, names of files."""
    column = roles["image"]
    return not is_text(table.column_type(column)) or names_files(table, column, IMAGES)


class ImageReader:
    """Passes rows on and learns size, mean and standard deviation of their images on the way."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.model = encoder.settings.get("image.model") or {}
        asked = encoder.settings.get("image.format") or {}
        fixed = asked.get("channels") or self.model.get("channels", 3)
        place = read_axis(encoder.settings.get("image.axis"))
        own = CHANNELS if place.channels in CHANNELS else (place.channels,)
        further = {c: role for role, c in encoder.roles.items() if c in encoder.further}
        channels = (fixed,) if fixed in own and not further else own
        self.columns = [encoder.roles["image"], *further]
        self.samples = [PixelSample(channels, place, r) for r in ("image", *further.values())]

    def watch(self, rows: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        """The rows, unchanged."""
        for sample in self.samples:
            rows = sample.watch(rows)
        return rows

    def fitted(self) -> dict[str, Any]:
        """How images are read, where the model does not set it."""
        return fit_columns(self.samples, self.columns, self.model, self.encoder.settings)


def fit_images(
    rows: Iterable[Mapping[str, Any]], encoder: Encoder, fit_labels: FitLabels
) -> dict[str, Any]:
    """What the labels are, and how images are read."""
    reader = ImageReader(encoder)
    labels = fit_labels(reader.watch(rows))
    read = reader.fitted()
    return {**labels, **read, "findings": [*labels.get("findings", ()), *read["findings"]]}


def encode_image(
    row: Mapping[str, Any], encoder: Encoder, targets: Mapping[str, Any] | None = None
) -> Encoding:
    """The pixel values, and the targets of the row."""
    return encoded({"pixel_values": read_pixels(row, encoder), **(targets or {})})


def read_pixels(row: Mapping[str, Any], encoder: Encoder) -> Any:
    """The pixel values of a row's image; a bad file is skipped where `on_bad_file` says so."""
    if is_empty(row["image"]):
        raise SkipRowError(DropReason.EMPTY)
    try:
        return read_format(encoder.fitted["pixels"]).pixel_values(row["image"])
    except RowFaultError as fault:
        if fault.rule is UNREADABLE_MEDIA and encoder.settings.get("on_bad_file") == "skip":
            raise SkipRowError(DropReason.BAD_FILE) from None
        raise


def fit_columns(
    samples: Sequence[PixelSample],
    columns: Sequence[str],
    model: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The format of the first column's images and of those like them; others have their own.

    `model` is what the model reads; `convolutions` in it are the channels of all its layers.
    """
    model = dict(model)
    layers, first = model.pop("convolutions", ()), model.get("channels")
    asked, size = settings.get("image.format") or {}, settings.get("image.size")
    for sample in samples:
        sample.require_images()
    lead, *others = samples
    own_channels = [sample.own_channels for sample in samples]
    if others and first == sum(own_channels):  # the module concatenates its images
        layers, first = own_channels, own_channels[0]
        model["channels"] = first
    reads = [own if own in layers or first is None else first for own in own_channels]
    is_alike = [
        bool(asked.get("channels") or read == reads[0]) and lead.is_like(other)
        for read, other in zip(reads[1:], others, strict=True)
    ]
    shared = lead.joined(other for other, alike in zip(others, is_alike, strict=True) if alike)
    pixels = shared.fitted(size, model, asked)
    names = [name for name, alike in zip(columns[1:], is_alike, strict=True) if alike]
    found = shared.findings(read_format(pixels), model, columns[0], *names)
    own = {}
    for sample, name, read in zip(others, columns[1:], reads[1:], strict=True):
        if name in names:
            continue
        reading = {**model, "channels": read, "inputs": None} if "channels" in model else model
        common = sample.size or (pixels["height"], pixels["width"])
        form = sample.fitted(size or common, reading, asked)
        own[name] = {"pixels": form}
        found += sample.findings(read_format(form), reading, name)
    return {"pixels": pixels, "further": own, "findings": found}
