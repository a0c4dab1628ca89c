"""Objects in an image: boxes, classes and masks, for modules of torchvision's convention.

Such a module takes a list of images and a list of dicts with `boxes` (corners, in pixels of the
image it gets), `labels` (from 1 on; 0 is the background) and `masks`, if the data has them. It
returns losses, or what it found.

Mean average precision is COCO's, in constant memory: detections are matched with the boxes of their
image and counted by class, threshold and score; the scores are in bins. `map_bin_error` is the
largest error that the order within bins can cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from surefit.batches.field import IGNORE_INDEX, Field
from surefit.data.cell_files import is_empty
from surefit.data.column_types import array_rank, is_array, is_list
from surefit.data.data_rules import MISALIGNED_COLUMNS
from surefit.data.roles import Role
from surefit.data.table import Table
from surefit.findings import Finding, note, rule
from surefit.inputs.encoded_row import (
    DropReason,
    Encoded,
    Encoding,
    RowFaultError,
    drop_row,
)
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import ClassLabels, FittedTarget, as_fitted
from surefit.inputs.file_names import holds_files
from surefit.inputs.image.image_reading import PIXELS, ImageReader
from surefit.inputs.image.object_masks import (
    as_coco,
    as_runs,
    check_masks,
    mask_overlaps,
    read_masks,
    resized,
)
from surefit.inputs.row_input import Row
from surefit.targets.boxes import (
    ORDERS,
    BoxSample,
    as_boxes,
    check_corners,
    scaled,
    split_targets,
    to_corners,
)
from surefit.targets.classes import class_name
from surefit.targets.masks import image_size
from surefit.targets.task_spec import Batch, Metric

if TYPE_CHECKING:
    import torch

MOST_DETECTIONS = 100
"""Detections of an image that count, those with the highest scores."""
NUM_THRESHOLDS = 10
"""Of the overlap (IoU): 0.50, 0.55 … 0.95."""
RECALLS = 101
"""Recalls at which the precision is read off: 0, 0.01 … 1."""
MOST_BINS, FEWEST_BINS, CELLS = 8192, 512, 1 << 20
"""Bins of the scores: as many as keep all classes and thresholds at about so many cells."""
LARGEST_ODDS = 16.0
"""Scores are told apart by their log-odds, up to ±16."""


def num_bins(num_classes: int) -> int:
    """Bins of each class and threshold.

    >>> num_bins(1), num_bins(80)
    (8192, 655)
    """
    return max(FEWEST_BINS, min(MOST_BINS, CELLS // (2 * NUM_THRESHOLDS * max(num_classes, 1))))


def box_overlaps(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union of boxes as corners: (N, M).

    >>> import torch
    >>> box_overlaps(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[0.0, 1, 2, 3]])).tolist()
    [[0.333...]]
    """
    import torch

    one, other = one.double(), other.double()
    first = torch.maximum(one[:, None, :2], other[None, :, :2])
    last = torch.minimum(one[:, None, 2:], other[None, :, 2:])
    both = (last - first).clamp(min=0).prod(-1)
    areas = [(each[:, 2:] - each[:, :2]).prod(-1) for each in (one, other)]
    either = areas[0][:, None] + areas[1][None, :] - both
    return torch.where(either > 0, both / either, torch.zeros_like(both))


OVERLAPS = {"boxes": box_overlaps, "masks": mask_overlaps}


def match(overlaps: torch.Tensor) -> torch.Tensor:
    """Return which detections hit a box, at each threshold: (thresholds, N).

    `overlaps` (N, M) has the detections of one class in an image, best score first: each takes the
    free box that it overlaps most.
    """
    import torch

    found, boxes = overlaps.shape
    hits = torch.zeros(NUM_THRESHOLDS, found, dtype=torch.bool)
    free = torch.ones(NUM_THRESHOLDS, boxes, dtype=torch.bool)
    least = torch.arange(NUM_THRESHOLDS, dtype=torch.float64) * 0.05 + 0.5
    every = torch.arange(NUM_THRESHOLDS)
    for place in range(found if boxes else 0):
        # Of equal overlaps, pycocotools takes the last box.
        open_to = torch.where(free, overlaps[place], -torch.ones(())).flip(-1)
        best, at = open_to.max(-1)
        at = boxes - 1 - at
        hits[:, place] = best >= least - 1e-10
        free[every[hits[:, place]], at[hits[:, place]]] = False
    return hits


def count_matches(
    found: Sequence[Mapping[str, torch.Tensor]],
    true: Sequence[Mapping[str, torch.Tensor]],
    num_classes: int,
    shape: Literal["boxes", "masks"] = "boxes",
) -> dict[str, torch.Tensor]:
    """Return hits and misses by class, threshold and bin of the score, and the objects by class.

    Each image has `boxes` (corners) or `masks` and `labels` from 1 on, those found `scores` from 0
    to 1, too.
    """
    import torch

    bins = num_bins(num_classes)
    counts = torch.zeros(num_classes * NUM_THRESHOLDS * bins, 2, dtype=torch.long)
    boxes = torch.zeros(num_classes, dtype=torch.long)
    for image, target in zip(found, true, strict=True):
        labels = target["labels"].cpu().long() - 1
        boxes += labels.bincount(minlength=num_classes)[:num_classes]
        scores = image["scores"].detach().cpu().double()
        guessed = image["labels"].detach().cpu().long() - 1
        both = image[shape].detach().cpu(), target[shape].cpu()
        for number in sorted({*guessed.tolist()}):
            if not 0 <= number < num_classes:  # the background
                continue
            own = (guessed == number).nonzero()[:, 0]
            own = own[scores[own].argsort(descending=True, stable=True)][:MOST_DETECTIONS]
            hits = match(OVERLAPS[shape](both[0][own], both[1][labels == number]))
            odds = scores[own].logit(eps=1e-12).clamp(-LARGEST_ODDS, LARGEST_ODDS)
            at = ((odds / LARGEST_ODDS + 1) / 2 * (bins - 1)).round().long()
            rows = torch.arange(NUM_THRESHOLDS)[:, None] + number * NUM_THRESHOLDS
            cells = (rows * bins + at[None]).flatten()
            counts[:, 0] += (cells[hits.flatten()]).bincount(minlength=len(counts))
            counts[:, 1] += (cells[~hits.flatten()]).bincount(minlength=len(counts))
    return {"matches": counts.view(num_classes, NUM_THRESHOLDS, bins, 2), "boxes": boxes}


def average_precisions(sums: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the average precision by class and threshold, and its largest error; NaN for classes
    without boxes.

    Within a bin, hits may come first or last: the figure is the middle of both, the error half of
    what lies between.
    """
    first, last = (_precisions(sums, hits_first) for hits_first in (True, False))
    return (first + last) / 2, (first - last) / 2


def _precisions(sums: Mapping[str, Any], hits_first: bool) -> Any:
    import torch

    counts, boxes = sums["matches"].double().flip(2), sums["boxes"].double()
    hits, misses = counts[..., 0].cumsum(-1), counts[..., 1].cumsum(-1)
    # At the end of a bin both orders agree; within it, precision changes in one direction.
    before = (hits - counts[..., 0], misses - counts[..., 1])
    if hits_first:
        corners = ((hits, before[1]), (hits, misses))
    else:
        corners = ((before[0], misses), (hits, misses))
    hits, misses = (torch.stack([c[n] for c in corners], -1).flatten(-2) for n in (0, 1))
    precision = hits / (hits + misses).clamp(min=1)
    precision = precision.flip(-1).cummax(-1).values.flip(-1)
    # As pycocotools compares them, so that no recall is reached a rounding earlier or later.
    recalls = (hits / boxes[:, None, None].clamp(min=1)).contiguous()
    wanted = torch.from_numpy(np.linspace(0, 1, RECALLS)).expand(*hits.shape[:2], -1)
    place = torch.searchsorted(recalls, wanted.contiguous())
    reached = place < hits.shape[-1]
    read = precision.gather(-1, place.clamp(max=hits.shape[-1] - 1))
    made = torch.where(reached, read, torch.zeros(())).mean(-1)
    return torch.where(boxes[:, None] > 0, made, torch.nan)


NO_BOXES = rule(
    "SF344",
    "error",
    "no box in the training rows",
    why="Without a single object there is nothing to learn.",
    fix="Check the column of boxes; for COCO or YOLO folders, that annotations name the images.",
)
SHOWN = 5

FIELDS = {
    "pixel_values": PIXELS,
    "boxes": Field(("box", "corner"), "float32"),
    "box_classes": Field(("box",), "int64", IGNORE_INDEX),
    "image_size": Field(("side",), "int64"),
}
RUNS = {"mask_runs": Field(("run",), "int32")}


def fields(encoder: Encoder) -> dict[str, Field]:
    """Return the columns of a batch, with masks if the data has them."""
    return {**FIELDS, **RUNS} if "masks" in encoder.roles else FIELDS


def _may_be_boxes(kind: pa.DataType) -> bool:
    """Return whether a column has lists of lists of numbers, or only empty lists."""
    is_empty = is_list(kind) and pa.types.is_null(kind.value_type)
    return is_empty or (is_array(kind) and array_rank(kind) == 2)


BOXES = Role(
    "boxes",
    (
        "boxes",
        "bboxes",
        "bbox",
        "box",
        *(f"{n}_{o}" for n in ("boxes", "bbox") for o in ORDERS),
    ),
    accepts=lambda kind, named: _may_be_boxes(kind),
    endings=ORDERS,
)
MASKS = Role(
    "masks",
    ("masks", "instance_masks", "segmentation", "segmentations", "polygons"),
    accepts=lambda kind, named: is_list(kind),
)
LABELS = Role(
    "label",
    (
        *("labels", "label", "classes", "class", "categories", "category", "category_id"),
        *("category_ids", "class_ids", "class_labels", "box_labels"),
    ),
    accepts=lambda kind, named: is_list(kind),
)


def runs_of(masks: torch.Tensor) -> Any:
    """Return predicted masks as run lengths."""
    return as_runs(masks.cpu().numpy())


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Return whether the columns found have images and a list of boxes for each."""
    return holds_files(table, roles, "image")


def _targets(row: Row) -> tuple[Any, list[Any]]:
    """Return the boxes of a row as the data has them, and their classes; one of each, and a mask
    where there are masks."""
    if row["boxes"] is None or row["label"] is None:
        raise drop_row(DropReason.NO_LABEL)
    boxes, classes = as_boxes(row["boxes"]), [*row["label"]]
    if len(boxes) != len(classes):
        message = f"the row has {len(boxes)} boxes and {len(classes)} classes"
        fix = "Give each box its class."
        raise RowFaultError(MISALIGNED_COLUMNS, message, "label", fix)
    masks = row.get("masks", boxes)
    if masks is None or len(masks) != len(boxes):
        message = f"the row has {len(boxes)} boxes and {len(masks or ())} masks"
        raise RowFaultError(MISALIGNED_COLUMNS, message, "masks", "Give each box its mask.")
    return boxes, classes


def fit(rows: Iterable[Row], encoder: Encoder) -> tuple[Encoder, list[Finding]]:
    """Return the classes and the format of the boxes; and how images are read."""
    reader, counts = ImageReader(encoder), Counter[Any]()
    sample = BoxSample(encoder.roles["boxes"], encoder.settings.box_format)
    for row in reader.watch(rows):
        try:
            boxes, classes = _targets(row)
        except RowFaultError as fault:
            if fault.reason:
                continue
            raise
        sample.add(boxes)
        counts.update(map(class_name, classes))
    names = tuple(sorted(counts, key=lambda name: (isinstance(name, str), name)))
    column = encoder.roles["label"]
    if not names:
        raise NO_BOXES.error(
            f"column {encoder.roles['boxes']!r} has no box in any training row.",
            column=encoder.roles["boxes"],
        )
    form = sample.fitted()
    labels = ClassLabels(names, tuple(counts[name] for name in names), several=True)
    learned = FittedTarget(classes=labels, boxes=form)
    shown = ", ".join(f"{at} = {name!r}" for at, name in enumerate(names[:SHOWN], start=1))
    shown += " …" if len(names) > SHOWN else ""
    message = (
        f"column {column!r}: the module gets classes as numbers from 1 on, 0 is the background: "
        f"{shown}. A function with a size argument, such as num_classes, gets {len(names) + 1}."
    )
    read, notes = reader.fitted()
    found = [*sample.findings(form), note(message, column=column)]
    return replace(encoder, target=learned, input=read), [*found, *notes]


def encode(row: Row, encoder: Encoder) -> Encoding:
    """Return the pixel values, the size of the image in its file, and its boxes in the pixels that
    the module gets."""
    if is_empty(row["image"]):
        raise drop_row(DropReason.EMPTY)
    targets = None if encoder.predicting else _targets(row)
    form = as_fitted(encoder.input.pixels)
    height, width = image_size(row["image"], form.place)
    pixels = form.pixel_values(row["image"])
    columns = {"pixel_values": pixels, "image_size": np.array([height, width])}
    if targets is None:
        return Encoding(lambda tokens: Encoded(columns))
    given, names = targets
    numbers = [encoder.class_ids.get(class_name(name)) for name in names]
    if None in numbers:
        raise drop_row(DropReason.UNKNOWN_LABEL)
    classes = np.array(numbers, np.int64) + 1
    read = as_fitted(encoder.target.boxes)
    corners = to_corners(given, read.order)
    corners = scaled(corners, width, height) if read.relative else corners
    corners, faults = check_corners(corners, classes, given, (height, width), read.order)
    columns["boxes"] = scaled(corners, form.width / width, form.height / height)
    columns["box_classes"] = classes
    if "masks" in row:
        made = (form.height, form.width)
        masks = read_masks(row["masks"], (height, width), made, read.relative)
        columns["mask_runs"] = as_runs(masks)
        faults = (*faults, *check_masks(masks, columns["boxes"]))
    return Encoding(lambda tokens: Encoded(columns, faults=faults))


def loss(outputs: Any, batch: Batch) -> tuple[Any, int]:
    """Raise: the module returns its losses, which `with_module_loss` takes."""
    raise AssertionError("a module of another convention is refused before")


def _sums(outputs: Any, batch: Batch, encoder: Encoder) -> dict[str, torch.Tensor]:
    found, true = outputs.detections, split_targets(batch)
    sums = count_matches(found, true, len(encoder.classes))
    if all("masks" in each for each in (*found, *true)):
        of_masks = count_matches(found, true, len(encoder.classes), "masks")
        sums |= {f"masks_{name}": value for name, value in of_masks.items()}
    return sums


def _precision_figures(sums: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    by_class, error = average_precisions(sums)
    shares = by_class.mean(1).tolist()
    figures = {
        "": float(by_class.nanmean()),
        "50": float(by_class[:, 0].nanmean()),
        "bin_error": float(error.nanmean()),
        "per_class": [None if share != share else share for share in shares],
    }
    return {f"{start}{name}".removesuffix("_"): value for name, value in figures.items()}


def _beside(sums: Mapping[str, Any], encoder: Encoder) -> dict[str, Any]:
    figures = _precision_figures(sums)
    of_masks = {n.removeprefix("masks_"): v for n, v in sums.items() if n.startswith("masks_")}
    if of_masks:
        figures |= _precision_figures(of_masks, "masks_")
    return {name: value for name, value in figures.items() if name}


MAP = Metric(
    _sums,
    lambda sums: float(average_precisions(sums)[0].nanmean()),
    beside=_beside,
    better="higher",
    uses_encoder=True,
)
"""The mean over classes and over the thresholds of IoU from 0.50 to 0.95; beside it, `map_50`, and
`map_masks` by the overlap of masks, where the data has masks and the module returns them."""


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the objects found in each image, best first, with boxes in the pixels of its file, and
    masks as COCO's run lengths."""
    form, found = as_fitted(encoder.input.pixels), []
    names = dict(enumerate(encoder.classes, start=1))
    for made, (height, width) in zip(outputs.detections, batch["image_size"].tolist(), strict=True):
        order = made["scores"].argsort(descending=True, stable=True).tolist()
        labels, scores = made["labels"].tolist(), made["scores"].tolist()
        boxes = scaled(
            made["boxes"].double().cpu().numpy(), width / form.width, height / form.height
        ).tolist()
        objects = [
            {"box": boxes[at], "label": names[labels[at]], "score": scores[at]}
            for at in order
            if labels[at] in names
        ]
        if "masks" in made:
            kept = [at for at in order if labels[at] in names]
            masks = resized(made["masks"].cpu().numpy()[kept], (height, width))
            for each, mask in zip(objects, masks, strict=True):
                each["mask"] = as_coco(mask)
        found.append({"prediction": objects})
    return found
