"""How the images of several columns are read: alike, unless size, channels or range differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from surefit.encode.images.pixel_format import read_format
from surefit.encode.images.pixel_sample import PixelSample


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
