"""A few validation images with their masks and the predicted ones, for the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from surefit.encode.augment.image_changes import ImageChanges
from surefit.encode.images.pixel_format import read_format
from surefit.pipeline.job import Job
from surefit.report.image_drawings import image_png
from surefit.tasks.pixel_classes import pixel_scores

SHOWN_ROWS = 6


def make_mask_examples(job: Job) -> list[dict[str, Any]]:
    """Images, true and predicted masks of some validation rows; none for other tasks."""
    import torch

    pipeline, store = job.pipeline, job.validation if len(job.validation) else job.train
    head = pipeline.task.head_for(pipeline.encoder)
    if head is None or not head.per_pixel or pipeline.collate_fn is not None:
        return []
    rows = np.unique(np.linspace(0, len(store) - 1, SHOWN_ROWS).astype(int))
    training = pipeline.module.training
    pipeline.module.eval()
    try:
        with torch.no_grad():
            batch = pipeline.batch(store, rows)
            logits = pipeline.outputs(batch).logits
    finally:
        pipeline.module.train(training)
    if logits is None:
        return []
    labels = batch["labels"].cpu().numpy()
    made = pixel_scores(logits.float(), labels.shape[1:]).argmax(1).cpu().numpy()
    form = ImageChanges.of({}, read_format(pipeline.encoder.fitted["pixels"]))
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
