"""Rows that the report shows: training rows as augmented, validation images with their masks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.data.column_types import CHANNELS
from surefit.inputs.augment.array_augment import ArrayAugment
from surefit.inputs.augment.array_changes import ImageChanges
from surefit.inputs.encoder import Encoder
from surefit.inputs.image.image_reading import pixel_format
from surefit.inputs.image.mask_files import image_as_png, png_as_text
from surefit.tasks.image_segmentation import pixel_scores

if TYPE_CHECKING:
    from surefit.pipeline.pipeline import Job

SHOWN_ROWS, SHOWN_EPOCHS = 4, 3
MAX_POINTS, MAX_CHANNELS = 100, 3
"""How much is shown of a series."""
WIDTH, HEIGHT = 200, 60
"""Size of a drawn series, in pixels."""
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c")
_BASE64 = re.compile(r"[A-Za-z0-9+/=]*")


def make_examples(job: Job) -> list[dict[str, Any]]:
    """Some training rows as they are and in the first epochs; none without augmentation."""
    augment, encoder = job.augment, job.pipeline.encoder
    if augment is None:
        return []
    rows = np.unique(np.linspace(0, len(job.train) - 1, SHOWN_ROWS).astype(int))
    return [_example(augment, encoder, int(row)) for row in rows]


def _example(augment: ArrayAugment, encoder: Encoder, row: int) -> dict[str, Any]:
    plain, number = augment.train.row(row), int(augment.train.source_row[row])
    shown = [{"what": f"row {number}{_class(plain, encoder)}", **_drawing(plain, augment)}]
    for epoch in range(SHOWN_EPOCHS):
        what = f"epoch {epoch + 1}: {augment.describe(row, epoch)}"
        shown.append({"what": what, **_drawing(augment.row(row, epoch), augment)})
    return {"row": number, "shown": shown}


def _class(row: Mapping[str, Any], encoder: Encoder) -> str:
    labels = row.get("labels")
    if labels is None or np.ndim(labels) or encoder.target.classes is None:
        return ""
    return f", class {encoder.classes[int(labels)]}"


def _drawing(row: Mapping[str, Any], augment: ArrayAugment) -> dict[str, Any]:
    """An image as PNG in base64, or the channels of a series as numbers."""
    values = row[augment.kind.column]
    if isinstance(augment.kind, ImageChanges):
        return {"png": image_png(values, augment.kind, row.get("labels"))}
    time = augment.kind.time_axis
    by_step = np.moveaxis(values, time or 0, 0).reshape(values.shape[time or 0], -1)
    step = -(-len(by_step) // MAX_POINTS)
    return {"lines": by_step[::step, :MAX_CHANNELS].T.astype(float).round(5).tolist()}


def draw_examples(examples: Sequence[Mapping[str, Any]]) -> str:
    """The examples of a stored plan as a table, with a row for each row of the data."""
    lines = ("".join(_cells(example["shown"])) for example in examples)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{body}</table>" if body else ""


def _cells(shown: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in shown:
        drawn = _image(str(each["png"])) if "png" in each else _chart(each["lines"])
        yield f"<td>{drawn}<br><small>{escape(str(each['what']))}</small></td>"


def _image(png: str) -> str:
    if not _BASE64.fullmatch(png):
        raise ValueError("an example is not base64")
    style = f"width: {2 * MAX_SIDE}px; image-rendering: pixelated"
    return f'<img alt="" src="data:image/png;base64,{png}" style="{style}">'


def _chart(lines: Sequence[Sequence[float]]) -> str:
    """Channels as lines from left to right, or a vector of one value per channel."""
    values = np.asarray(lines, np.float64)
    low, span = values.min(), max(float(np.ptp(values)), 1e-9)
    drawn = []
    for channel, colour in zip(values, COLOURS, strict=False):
        x = np.linspace(0, WIDTH, len(channel))
        y = HEIGHT - (channel - low) / span * HEIGHT
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    return f'<svg width="{WIDTH}" height="{HEIGHT}">{"".join(drawn)}</svg>'


Array = npt.NDArray[Any]

MAX_SIDE = 64
"""Pixels of the longer side of an image that is shown."""
OPACITY = 0.5
"""Of the colours of classes over an image."""
PALETTE = np.array(
    [(255, 60, 40), (40, 130, 255), (50, 200, 80), (255, 200, 30), (190, 80, 220), (40, 210, 210)]
)
"""Colours of the classes but the first, which is shown as it is."""


def image_png(normal: Array, form: ImageChanges, classes: Any = None) -> str:
    """Pixel values (C, H, W) as PNG in base64; `classes` of pixels (H, W) colour them.

    Of images that are neither gray nor RGB nor RGBA, the first channels are shown.
    """
    from PIL import Image

    pixels = form.as_pixels(normal)
    shown = pixels if len(pixels) in CHANNELS else pixels[: 3 if len(pixels) > 3 else 1]
    levels = _levels(shown, form.high)
    if classes is not None and np.ndim(classes) == 2:
        levels = _coloured(levels, np.asarray(classes))
    image = Image.fromarray(levels[0] if len(levels) == 1 else levels.transpose(1, 2, 0))
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return png_as_text(image_as_png(image))


def _levels(pixels: Array, high: float | None) -> Array:
    """Pixels as 0 to 255; without a known range, from their least to their most."""
    low = 0.0 if high is not None else float(pixels.min())
    top = high if high is not None else max(float(pixels.max()), low + 1e-6)
    return ((pixels - low) / (top - low) * 255).clip(0, 255).round().astype(np.uint8)


def _coloured(levels: Array, classes: Array) -> Array:
    colours = levels[:3] if len(levels) >= 3 else np.repeat(levels[:1], 3, axis=0)
    over = PALETTE[(classes - 1) % len(PALETTE)].transpose(2, 0, 1)
    mixed = (1 - OPACITY) * colours + OPACITY * over
    return np.where(classes > 0, mixed, colours).astype(np.uint8)


MASK_ROWS = 6


def make_mask_examples(job: Job) -> list[dict[str, Any]]:
    """Images, true and predicted masks of some validation rows; none for other tasks."""
    import torch

    pipeline, store = job.pipeline, job.validation if len(job.validation) else job.train
    head = pipeline.task.head_for(pipeline.encoder)
    if head is None or not head.per_pixel or pipeline.collate_fn is not None:
        return []
    rows = np.unique(np.linspace(0, len(store) - 1, MASK_ROWS).astype(int))
    training = pipeline.module.training
    pipeline.module.eval()
    try:
        with torch.no_grad():
            batch = pipeline.batch(store, rows)
            logits = pipeline.predicted(batch).logits
    finally:
        pipeline.module.train(training)
    if logits is None:
        return []
    labels = batch["labels"].cpu().numpy()
    made = pixel_scores(logits.float(), labels.shape[1:]).argmax(1).cpu().numpy()
    form = ImageChanges.of({}, pixel_format(pipeline.encoder))
    found = []
    for row, image, true, guess in zip(rows, batch["pixel_values"], labels, made, strict=True):
        number, pixels = int(store.source_row[row]), image.cpu().numpy()
        right = (true == guess)[true >= 0].mean()
        shown = [
            {"what": f"row {number}", "png": image_png(pixels, form)},
            {"what": "mask", "png": image_png(pixels, form, true)},
            {"what": f"predicted: {right:.1%} right", "png": image_png(pixels, form, guess)},
        ]
        found.append({"row": number, "shown": shown})
    return found
