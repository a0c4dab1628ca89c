"""A few training rows beside what augmentation makes of them, for the report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from surefit.encode.augment.array_augment import ArrayAugment
from surefit.encode.augment.image_changes import ImageChanges
from surefit.encode.encoder import Encoder
from surefit.pipeline.job import Job
from surefit.report.image_drawings import MAX_SIDE, image_png

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
    if labels is None or np.ndim(labels) or "classes" not in encoder.fitted:
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
