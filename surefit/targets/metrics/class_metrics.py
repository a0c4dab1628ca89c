"""Metrics of classes that a run asks for by name: sums in constant memory, as all metrics here.

The areas under the ROC and the precision-recall curve are counted in bins of the log-odds; the
figure beside each is the largest error that the bins can cause.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from surefit.core.float64 import to_float64
from surefit.targets.class_loss import ClassScores, cross_entropy_sum, several_classes_sum
from surefit.targets.task_spec import Batch, Metric, SumAndCount

if TYPE_CHECKING:
    import torch

MOST_BINS, FEWEST_BINS, CELLS = 8192, 256, 1 << 17
"""Bins of each class: as many as keep all classes together at about so many cells."""
LARGEST_ODDS, SMALL_ODDS = 30.0, 0.05
"""Log-odds beyond ±30 share the last bins; below ±0.05 bins are of one width, beyond it they widen
with the odds, so that scores of any scale are told apart."""


def class_metric(name: str, scores: ClassScores) -> Metric | None:
    """The built-in metric of that name, for a task with these scores; None where there is none."""
    best = re.fullmatch(r"top([1-9]\d*)", name)
    if best is not None:
        return top_metric(int(best[1]), scores)
    make = CLASS_METRICS.get(name)
    return make(scores) if make is not None else None


def num_bins(num_classes: int) -> int:
    """Bins of each class.

    >>> num_bins(1), num_bins(100), num_bins(5000)
    (8192, 655, 256)
    """
    return max(FEWEST_BINS, min(MOST_BINS, CELLS // (2 * num_classes)))


def _log_odds(logits: torch.Tensor, several: bool) -> torch.Tensor:
    """Return the log-odds of each class against all others; of two classes, those of the second:
    (N, C).

    Where all classes are equally likely, they are 0.
    """
    import torch

    logits = to_float64(logits)
    if several:
        return logits
    if logits.shape[-1] == 2:
        return logits[:, 1:] - logits[:, :1]
    logs = logits.log_softmax(-1).clamp(max=-1e-15)
    return logs - torch.log(-torch.expm1(logs)) + math.log(max(logits.shape[-1] - 1, 1))


def _is_positive(labels: torch.Tensor, num_columns: int) -> torch.Tensor:
    """Return whether each row has the class of each column: (N, C)."""
    import torch

    if labels.ndim == 2:
        return labels > 0.5
    if num_columns == 1:
        return labels.unsqueeze(-1) == 1
    return labels.unsqueeze(-1) == torch.arange(num_columns, device=labels.device)


def _count_bins(scores: ClassScores) -> Callable[[Any, Batch], dict[str, Any]]:
    """Negative and positive rows of each class in each bin of the log-odds: (C, 2, bins)."""

    def sums(outputs: Any, batch: Batch) -> dict[str, Any]:
        import torch

        logits, labels = scores(outputs, batch)
        odds = _log_odds(logits, labels.ndim == 2).nan_to_num(0.0)
        labels = labels.to(odds.device)
        columns = odds.shape[-1]
        bins = num_bins(columns)
        share = (odds / SMALL_ODDS).asinh() / math.asinh(LARGEST_ODDS / SMALL_ODDS)
        place = ((share + 1) * (bins / 2)).long().clamp(0, bins - 1)
        column = torch.arange(columns, device=odds.device)
        cells = (column * 2 + _is_positive(labels, columns).long()) * bins + place
        counts = cells.flatten().bincount(minlength=columns * 2 * bins)
        return {"bins": counts.reshape(columns, 2, bins)}

    return sums


def roc_areas(bins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the area under the ROC curve of each class, and how far the bins may be off.

    Pairs of a positive and a negative row in one bin count half; in truth they count 0 to 1.
    Classes without positive or without negative rows are left out.

    >>> import torch
    >>> area, error = roc_areas(torch.tensor([[[1, 1, 0], [0, 1, 1]]]))
    >>> area.tolist(), error.tolist()
    ([0.875], [0.125])
    """
    bins = bins[(bins.sum(-1) > 0).all(-1)].double()
    negative, positive = bins[:, 0], bins[:, 1]
    pairs = negative.sum(-1) * positive.sum(-1)
    below = negative.cumsum(-1) - negative
    areas = (positive * (below + negative / 2)).sum(-1) / pairs
    return areas, (positive * negative).sum(-1) / (2 * pairs)


def pr_areas(bins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the average precision of each class, and how far the bins may be off.

    Rows in one bin count as equally likely. In truth, their negative rows may all come before the
    positive ones, or after them.
    """
    import torch

    bins = bins[(bins.sum(-1) > 0).all(-1)].double().flip(-1)
    negative, positive = bins[:, 0], bins[:, 1]
    hits, wrong = positive.cumsum(-1), negative.cumsum(-1)
    total, known = positive.sum(-1), positive > 0
    precision = hits / (hits + wrong).clamp(min=1)
    highest = hits / (hits + wrong - negative).clamp(min=1)
    # The sum over i = 1 … n of (a + i) / (b + i) is n - (b - a) (ψ(b + n + 1) - ψ(b + 1)).
    before = hits - positive + wrong
    lost = wrong * (torch.digamma(before + positive + 1) - torch.digamma(before + 1))
    lowest = (positive - lost) * known
    found = positive * precision
    error = torch.maximum((positive * highest - found).sum(-1), (found - lowest).sum(-1))
    return found.sum(-1) / total, error / total


def _mean(values: torch.Tensor) -> float:
    return float(values.mean()) if len(values) else math.nan


def _area(areas: Callable[[Any], tuple[Any, Any]]) -> Callable[[ClassScores], Metric]:
    """Return the mean area of the classes, with the largest error of the bins beside it."""

    def make(scores: ClassScores) -> Metric:
        return Metric(
            _count_bins(scores),
            lambda sums: _mean(areas(sums["bins"])[0]),
            beside=lambda sums: {"bin_error": _mean(areas(sums["bins"])[1])},
            better="higher",
        )

    return make


def _log_loss(scores: ClassScores) -> Metric:
    """Mean negative log-probability of the true class, without weights or smoothing."""

    def sums(outputs: Any, batch: Batch) -> dict[str, Any]:
        logits, labels = scores(outputs, batch)
        logits = to_float64(logits)
        labels = labels.to(logits.device)
        if labels.ndim == 2:
            total = several_classes_sum(logits, labels)
        else:
            total = cross_entropy_sum(logits, labels, {})
        return {"sum": total, "count": len(labels)}

    return Metric(sums, _per_row, better="lower")


def _per_row(totals: Mapping[str, Any]) -> float:
    return float(totals["sum"]) / float(totals["count"]) if totals["count"] else math.nan


def _count_classes(scores: ClassScores) -> Callable[[Any, Batch], dict[str, Any]]:
    """Return rows of each class that are found, predicted and true: (C,) each."""

    def sums(outputs: Any, batch: Batch) -> dict[str, Any]:
        logits, labels = scores(outputs, batch)
        size = logits.shape[-1]
        if labels.ndim == 2:
            true, made = labels > 0.5, logits > 0
            hits = (true & made).sum(0)
            return {"hits": hits, "made": made.sum(0), "true": true.sum(0), "several": 1}
        made = logits.argmax(-1)
        found = made[made == labels]
        counts = {"hits": found, "made": made, "true": labels}
        return {name: places.bincount(minlength=size) for name, places in counts.items()}

    return sums


def macro_f1_of(hits: torch.Tensor, either: torch.Tensor, multi_label: bool = False) -> float:
    """Mean F1 over the classes, as scikit-learn's `f1_score(average="macro", zero_division=0)`.

    `hits` counts the rows of each class found, `either` its true rows plus its predicted ones. A
    class that neither occurs nor is predicted is left out where a row has one class, and counts
    as 0 where it may have several.

    >>> import torch
    >>> macro_f1_of(torch.tensor([8, 10, 0]), torch.tensor([18, 22, 0]))
    0.898989...
    """
    counted = (either > 0) | multi_label
    scores = 2 * hits[counted].double() / either[counted].clamp(min=1)
    return float(scores.mean()) if len(scores) else 0.0


def _macro_f1(scores: ClassScores) -> Metric:
    def figure(sums: Mapping[str, Any]) -> float:
        either = sums["made"] + sums["true"]
        return macro_f1_of(sums["hits"], either, bool(sums.get("several")))

    return Metric(_count_classes(scores), figure)


def _accuracy(scores: ClassScores) -> SumAndCount:
    """Rows whose most likely class is the right one (of several: exactly all), and all rows."""

    def accuracy(outputs: Any, batch: Batch) -> tuple[Any, int]:
        logits, labels = scores(outputs, batch)
        if labels.ndim == 2:
            return ((logits > 0) == (labels > 0.5)).all(-1).sum(), len(labels)
        return (logits.argmax(-1) == labels).sum(), len(labels)

    return accuracy


def _share_of(divisor: str) -> Callable[[ClassScores], Metric]:
    """Precision (of the predicted rows) or recall (of the true ones), as scikit-learn's macro."""

    def make(scores: ClassScores) -> Metric:
        def shares(sums: Mapping[str, Any]) -> torch.Tensor:
            found: torch.Tensor = sums["hits"].double() / sums[divisor].clamp(min=1)
            return found

        def macro(sums: Mapping[str, Any]) -> float:
            counted = (sums["made"] + sums["true"] > 0) | bool(sums.get("several", 0))
            return _mean(shares(sums)[counted])

        def per_class(sums: Mapping[str, Any]) -> dict[str, Any]:
            return {"per_class": shares(sums).tolist()}

        return Metric(_count_classes(scores), macro, beside=per_class, better="higher")

    return make


def count_confusion(scores: ClassScores) -> Callable[[Any, Batch], dict[str, Any]]:
    """Return rows of each true class (a line) by their predicted class."""

    def sums(outputs: Any, batch: Batch) -> dict[str, Any]:
        logits, labels = scores(outputs, batch)
        if labels.ndim == 2:  # several classes per row are not confused with one another
            return {}
        size = logits.shape[-1]
        counts = (labels * size + logits.argmax(-1)).bincount(minlength=size**2)
        return {"confusion": counts.reshape(size, size)}

    return sums


def _confusion(scores: ClassScores) -> Metric:
    return Metric(count_confusion(scores), lambda sums: sums["confusion"].tolist(), is_number=False)


def usual_metrics(scores: ClassScores) -> dict[str, SumAndCount | Metric]:
    """Accuracy, macro F1 and confusion of tasks with these scores."""
    return {
        "accuracy": _accuracy(scores),
        "macro_f1": _macro_f1(scores),
        "confusion": _confusion(scores),
    }


def top_metric(count: int, scores: ClassScores) -> Metric:
    """Rows whose class is among the `count` most likely ones; the first of equally likely ones."""

    def sums(outputs: Any, batch: Batch) -> dict[str, Any]:
        logits, labels = scores(outputs, batch)
        order = logits.argsort(dim=-1, descending=True, stable=True)[:, :count]
        hits = labels.gather(1, order).amax(-1) if labels.ndim == 2 else order == labels[:, None]
        return {"sum": (hits > 0.5).sum(), "count": len(labels)}

    return Metric(sums, _per_row, better="higher")


CLASS_METRICS: dict[str, Callable[[ClassScores], Metric]] = {
    "roc_auc": _area(roc_areas),
    "pr_auc": _area(pr_areas),
    "log_loss": _log_loss,
    "precision": _share_of("made"),
    "recall": _share_of("true"),
    "confusion": _confusion,
}
"""Built-in metrics of classes, besides topK for any K."""
