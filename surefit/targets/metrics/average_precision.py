"""Mean average precision of boxes, as COCO defines it: sums in constant memory.

Detections are matched with the boxes of their image and counted by class, threshold and score; the
scores are in bins. `map_bin_error` is the largest error that the order within bins can cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

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

    first = torch.maximum(one[:, None, :2], other[None, :, :2])
    last = torch.minimum(one[:, None, 2:], other[None, :, 2:])
    both = (last - first).clamp(min=0).prod(-1)
    areas = [(each[:, 2:] - each[:, :2]).prod(-1) for each in (one, other)]
    either = areas[0][:, None] + areas[1][None, :] - both
    return torch.where(either > 0, both / either, torch.zeros_like(both))


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
) -> dict[str, torch.Tensor]:
    """Return hits and misses by class, threshold and bin of the score, and the boxes by class.

    Each image has `boxes` (corners) and `labels` from 1 on, those found `scores` from 0 to 1, too.
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
        both = image["boxes"].detach().cpu().double(), target["boxes"].cpu().double()
        for number in sorted({*guessed.tolist()}):
            if not 0 <= number < num_classes:  # the background
                continue
            own = (guessed == number).nonzero()[:, 0]
            own = own[scores[own].argsort(descending=True, stable=True)][:MOST_DETECTIONS]
            hits = match(box_overlaps(both[0][own], both[1][labels == number]))
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
