"""Rows that the report shows: training rows as augmented, validation images with their masks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.inputs.augment.array_augment import ArrayAugment
from surefit.inputs.encoder import Encoder
from surefit.targets.masks import pixel_scores

if TYPE_CHECKING:
    from surefit.pipeline.pipeline import Job

SHOWN_ROWS, SHOWN_EPOCHS = 4, 3
WIDTH, HEIGHT = 200, 60
"""Size of a drawn series, in pixels."""
IMAGE_WIDTH = 128
"""Of an image on the page, in pixels."""
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c")
_BASE64 = re.compile(r"[A-Za-z0-9+/=]*")


def make_examples(job: Job) -> list[dict[str, Any]]:
    """Return some training rows as they are and in the first epochs; none without augmentation."""
    augment, encoder = job.augment, job.pipeline.encoder
    if augment is None:
        return []
    rows = np.unique(np.linspace(0, len(job.train) - 1, SHOWN_ROWS).astype(int))
    return [_example(augment, encoder, int(row)) for row in rows]


def _example(augment: ArrayAugment, encoder: Encoder, row: int) -> dict[str, Any]:
    plain, number = augment.train.row(row), int(augment.train.source_row[row])
    shown = [{"what": f"row {number}{_class(plain, encoder)}", **augment.kind.picture(plain)}]
    for epoch in range(SHOWN_EPOCHS):
        what = f"epoch {epoch + 1}: {augment.describe(row, epoch)}"
        shown.append({"what": what, **augment.kind.picture(augment.row(row, epoch))})
    return {"row": number, "shown": shown}


def _class(row: Mapping[str, Any], encoder: Encoder) -> str:
    labels = row.get("labels")
    if labels is None or np.ndim(labels) or encoder.target.classes is None:
        return ""
    return f", class {encoder.classes[int(labels)]}"


def draw_examples(examples: Sequence[Mapping[str, Any]]) -> str:
    """Return the examples of a stored plan as a table, with a row for each row of the data."""
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
    style = f"width: {IMAGE_WIDTH}px; image-rendering: pixelated"
    return f'<img alt="" src="data:image/png;base64,{png}" style="{style}">'


def _chart(lines: Sequence[Sequence[float]]) -> str:
    """Return channels as lines from left to right, or a vector of one value per channel."""
    values = np.asarray(lines, np.float64)
    low, span = values.min(), max(float(np.ptp(values)), 1e-9)
    drawn = []
    for channel, colour in zip(values, COLOURS, strict=False):
        x = np.linspace(0, WIDTH, len(channel))
        y = HEIGHT - (channel - low) / span * HEIGHT
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    return f'<svg width="{WIDTH}" height="{HEIGHT}">{"".join(drawn)}</svg>'


MASK_ROWS = 6


def make_predicted_examples(job: Job) -> list[dict[str, Any]]:
    """Return images of some validation rows with true and predicted masks or boxes; none for other
    tasks."""
    head = job.pipeline.task.head_for(job.pipeline.encoder)
    if head is not None and head.lists_of_images:
        return _box_examples(job)
    return make_mask_examples(job)


LEAST_SCORE = 0.5
"""Of boxes that are drawn."""


def _box_examples(job: Job) -> list[dict[str, Any]]:
    """Return some validation images with their boxes, and with those that were found."""
    import torch

    pipeline, store = job.pipeline, job.validation if len(job.validation) else job.train
    images = pipeline.task.reads.input_of(pipeline.encoder.roles)
    if pipeline.collate_fn is not None or images is None or images.changes is None:
        return []
    rows = np.unique(np.linspace(0, len(store) - 1, MASK_ROWS).astype(int))
    with torch.no_grad():
        found = pipeline.predicted(pipeline.batch(store, rows)).detections
    form, drawn = images.changes({}, pipeline.encoder, pipeline.fields), []
    for place, made in zip(rows.tolist(), found, strict=True):
        row, number = store.row(place), int(store.source_row[place])
        sure = made["scores"] >= LEAST_SCORE
        boxes = made["boxes"][sure].cpu().numpy()
        what = f"found: {len(boxes)} with a score from {LEAST_SCORE:g} on"
        shown = [
            {"what": f"row {number}: {len(row['boxes'])} boxes", **form.picture(row)},
            {"what": what, **form.picture({**row, "boxes": boxes})},
        ]
        drawn.append({"row": number, "shown": shown})
    return drawn


def make_mask_examples(job: Job) -> list[dict[str, Any]]:
    """Return images, true and predicted masks of some validation rows; none for other tasks."""
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
    images = pipeline.task.reads.input_of(pipeline.encoder.roles)
    if logits is None or images is None or images.changes is None:
        return []
    labels = batch["labels"].cpu().numpy()
    made = pixel_scores(logits.float(), labels.shape[1:]).argmax(1).cpu().numpy()
    form = images.changes({}, pipeline.encoder, pipeline.fields)
    found = []
    for row, image, true, guess in zip(rows, batch[form.column], labels, made, strict=True):
        number, pixels = int(store.source_row[row]), {form.column: image.cpu().numpy()}
        right = (true == guess)[true >= 0].mean()
        shown = [
            {"what": f"row {number}", **form.picture(pixels)},
            {"what": "mask", **form.picture({**pixels, "labels": true})},
            {"what": f"predicted: {right:.1%} right", **form.picture({**pixels, "labels": guess})},
        ]
        found.append({"row": number, "shown": shown})
    return found
