"""Rows that the report shows: the first batches, training rows as augmented, validation rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.inputs.augment.array_augment import ArrayAugment
from surefit.inputs.encoder import Encoder
from surefit.memory.process_memory import peak_bytes
from surefit.report.batch_view import lengths_and_targets, view_batches
from surefit.report.worst_rows import judge_rows
from surefit.targets.detected_objects import runs_of
from surefit.targets.masks import pixel_scores

if TYPE_CHECKING:
    from surefit.pipeline.pipeline import Job

SHOWN_ROWS, SHOWN_EPOCHS = 4, 3


def begin_examples(job: Job) -> dict[str, Any]:
    """Return what is shown before training: the first batches, and how long training rows are."""
    return {"batches": view_batches(job), "data": lengths_and_targets(job)}


def finish_examples(job: Job) -> dict[str, Any]:
    """Return the same with what the trained model makes of validation rows, and the peak memory."""
    return {
        **begin_examples(job),
        "classes": [str(name) for name in job.pipeline.encoder.classes],
        "predicted": make_predicted_examples(job),
        "judged": judge_rows(job),
        "peak_bytes": peak_of_device(),
    }


def peak_of_device() -> int:
    """Return the peak memory of the device, or of this process where it trains on the CPU."""
    import torch

    return int(torch.cuda.max_memory_reserved()) if torch.cuda.is_available() else peak_bytes()


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
        of_found: dict[str, Any] = {"boxes": boxes}
        if "masks" in made:
            of_found["mask_runs"] = runs_of(made["masks"][sure])
        what = f"found: {len(boxes)} with a score from {LEAST_SCORE:g} on"
        shown = [
            {"what": f"row {number}: {len(row['boxes'])} boxes", **form.picture(row)},
            {"what": what, **form.picture({form.column: row[form.column], **of_found})},
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
