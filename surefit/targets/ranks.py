"""Ordered classes: K classes are learned as K − 1 thresholds.

Output k is the log-odds that a row's class lies above class k, given that it does not lie below it
(the sequential model of ordinal regression; CORN reads its outputs in the same way). Whatever the
outputs are, the probabilities of the classes follow from them and sum to 1, so that any model with
K − 1 outputs will do. Their logarithms are scores like those of a classifier: the loss is their
cross-entropy, and class weights, label smoothing and all metrics of classes work on them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.findings import Finding, note, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import ClassLabels, ClassName, FittedTarget, as_fitted
from surefit.inputs.row_input import Row
from surefit.inputs.store import Store
from surefit.targets import classes
from surefit.targets.baselines import Baselines, class_baselines, class_figures
from surefit.targets.class_loss import class_loss, class_probabilities
from surefit.targets.metrics.class_metrics import count_confusion, usual_metrics
from surefit.targets.row_target import RowTarget
from surefit.targets.task_spec import Batch, Figures, Metric, full_precision

if TYPE_CHECKING:
    import torch

UNKNOWN_ORDER = rule(
    "SF238",
    "error",
    "the order of the classes is not known",
    why="The task ordinal learns which classes lie above which; a wrong order is learned as "
    "readily as the right one.",
    fix="Name the classes from the lowest to the highest: --set label_order=[low,medium,high].",
)
FEWEST = 3
"""Two classes have no order that a classifier would not learn as well."""
MIDDLE = "middle class"
SCALES = (
    ("very low", "low", "medium", "high", "very high"),
    ("low", "moderate", "high", "critical"),
    ("none", "minimal", "mild", "moderate", "severe", "very severe", "critical"),
    ("terrible", "bad", "okay", "good", "great", "excellent"),
    ("very bad", "bad", "neutral", "good", "very good"),
    ("very poor", "poor", "fair", "average", "good", "very good", "excellent"),
    ("very negative", "negative", "neutral", "positive", "very positive"),
    ("strongly disagree", "disagree", "neutral", "agree", "strongly agree"),
    ("strongly disagree", "disagree", "neither agree nor disagree", "agree", "strongly agree"),
    ("very dissatisfied", "dissatisfied", "neutral", "satisfied", "very satisfied"),
    ("very unlikely", "unlikely", "neutral", "likely", "very likely"),
    ("never", "rarely", "sometimes", "often", "always"),
    ("xs", "s", "m", "l", "xl", "xxl"),
    ("tiny", "small", "medium", "large", "huge"),
    ("very easy", "easy", "medium", "hard", "very hard"),
    ("beginner", "elementary", "intermediate", "advanced", "expert"),
    ("a1", "a2", "b1", "b2", "c1", "c2"),
    ("first", "second", "third", "fourth", "fifth"),
)
"""Names whose order is known, from the lowest to the highest."""


def fit_ranks(rows: Iterable[Row], encoder: Encoder) -> tuple[FittedTarget, list[Finding]]:
    """Return the classes of the training rows in their order, and what the order comes from."""
    column = encoder.roles["label"]
    found = classes.fit_classes(rows, encoder)
    if found.several:
        raise UNKNOWN_ORDER.error(
            f"column {column!r} has several classes per row, which have no rank.",
            fix="Choose a column with one class per row, or a classification task.",
            column=column,
        )
    names, source = order_names(found, encoder.settings.labels.order, column)
    if len(names) < FEWEST:
        raise UNKNOWN_ORDER.error(
            f"column {column!r} has {len(names)} classes; the order of fewer than {FEWEST} says "
            "nothing.",
            fix="Learn them with a classification task, or name all classes in label_order.",
            column=column,
        )
    counts = dict(zip(found.names, found.counts, strict=True))
    ranked = replace(found, names=names, counts=tuple(counts.get(name, 0) for name in names))
    message = f"The classes in their order, from {source}: {' < '.join(map(str, names))}."
    fix = "Nothing to do if it is right; else name the classes in label_order."
    return FittedTarget(classes=ranked), [note(message, column=column, fix=fix)]


def order_names(
    found: ClassLabels, asked: Sequence[ClassName], column: str
) -> tuple[tuple[ClassName, ...], str]:
    """Return all classes from the lowest to the highest, and what their order comes from."""
    names = found.names
    if asked:
        return _as_asked(names, asked, column), "label_order"
    if all(isinstance(name, int) for name in names):
        return names, "their numbers"  # which the classes are sorted by
    texts = [str(name) for name in names]
    for known in (_by_scale(texts), _by_number(texts)):
        if known is not None:
            return tuple(names[texts.index(text)] for text in known), "their names"
    shown = ", ".join(map(repr, texts[:6])) + (" …" if len(texts) > 6 else "")
    raise UNKNOWN_ORDER.error(
        f"column {column!r} has the classes {shown}, whose order does not follow from their names.",
        fix=f"Name them from the lowest to the highest: --set label_order=[{','.join(texts[:6])}].",
        column=column,
    )


def _as_asked(
    names: Sequence[ClassName], asked: Sequence[ClassName], column: str
) -> tuple[ClassName, ...]:
    """Return the classes as the user orders them; those that no training row has are kept."""
    known = {str(name): name for name in names}
    listed = [str(name).strip() for name in asked]
    missing = [text for text in known if text not in listed]
    if missing or len({*listed}) < len(listed):
        wrong = (
            f"label_order leaves out {', '.join(map(repr, missing[:5]))}, which rows have"
            if missing
            else "label_order names a class twice"
        )
        raise UNKNOWN_ORDER.error(
            f"{wrong} in column {column!r}.",
            fix="Name every class once, from the lowest to the highest.",
            column=column,
        )
    return tuple(known.get(text, name) for text, name in zip(listed, asked, strict=True))


def _by_scale(texts: Sequence[str]) -> list[str] | None:
    """Return the names in the order of the scale that has all of them.

    >>> _by_scale(["High", "low", "very_high"])
    ['low', 'High', 'very_high']
    """
    plain = {text: re.sub(r"[\s_-]+", " ", text).strip().casefold() for text in texts}
    for scale in SCALES:
        if len({*plain.values()}) == len(texts) and {*plain.values()} <= {*scale}:
            return sorted(texts, key=lambda text: scale.index(plain[text]))
    return None


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def _by_number(texts: Sequence[str]) -> list[str] | None:
    """Return the names by the number in each, if the same words stand before it in all.

    >>> _by_number(["10 stars", "1 star", "2 stars"]), _by_number(["26-35", "18-25", "65+"])
    (['1 star', '2 stars', '10 stars'], ['18-25', '26-35', '65+'])
    >>> _by_number(["under 18", "18-25"])
    """
    numbers = {text: found for text in texts if (found := _NUMBER.search(text))}
    before = {text[: found.start()].casefold() for text, found in numbers.items()}
    values = {text: float(found[0]) for text, found in numbers.items()}
    if len(numbers) < len(texts) or len(before) > 1 or len({*values.values()}) < len(texts):
        return None
    return sorted(texts, key=lambda text: values[text])


def rank_scores(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each class, (N, K), from K − 1 outputs; and the class."""
    return log_probabilities(full_precision(outputs.logits)), batch["labels"]


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Return log P(class k): that all thresholds below it are passed, and its own one is not.

    >>> import torch
    >>> log_probabilities(torch.zeros(1, 2)).exp().tolist()
    [[0.5, 0.25, 0.25]]
    """
    import torch
    from torch.nn.functional import logsigmoid, pad

    passed = pad(logsigmoid(logits).cumsum(-1), (1, 0))
    stopped = pad(logsigmoid(-logits), (0, 1))
    return torch.add(passed, stopped)


def rank_settings(encoder: Encoder) -> dict[str, Any]:
    """Return what the config of a transformers model says of the outputs: each has a sigmoid, and
    none is a class."""
    return {
        "ordered_classes": [str(name) for name in encoder.classes],
        "problem_type": "multi_label_classification",
    }


def decode_ranks(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the most likely class of each row and its probability."""
    return classes.decode_scores(log_probabilities(outputs.logits.float()), encoder)


def mae_of(confusion: npt.NDArray[Any]) -> float:
    """Return how many ranks predictions are off, in the mean; a line of it per true class.

    >>> mae_of(np.array([[1, 0, 1], [0, 1, 0], [0, 0, 1]]))
    0.5
    """
    total = float(confusion.sum())
    return float((confusion * _distance(len(confusion))).sum()) / total if total else math.nan


def qwk_of(confusion: npt.NDArray[Any]) -> float:
    """Return Cohen's kappa with quadratic weights; unknown where only one class occurs.

    >>> qwk_of(np.eye(3)), qwk_of(np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0]]))
    (1.0, -1.0)
    """
    total = float(confusion.sum())
    weights = _distance(len(confusion)).astype(np.float64) ** 2
    by_chance = np.outer(confusion.sum(1), confusion.sum(0)) * weights
    if not by_chance.any():
        return math.nan
    return 1 - float((confusion * weights).sum()) * total / float(by_chance.sum())


def _distance(size: int) -> npt.NDArray[Any]:
    ranks = np.arange(size)
    distance: npt.NDArray[Any] = np.abs(ranks[:, None] - ranks)
    return distance


def _metric(figure: Any, better: Any) -> Metric:
    def of_sums(sums: Mapping[str, Any]) -> float:
        return float(figure(sums["confusion"].cpu().numpy().astype(np.float64)))

    return Metric(count_confusion(rank_scores), of_sums, better=better)


def rank_figures(
    predicted: npt.NDArray[Any], labels: npt.NDArray[Any], num_classes: int
) -> dict[str, Any]:
    """Return the figures of predicted classes."""
    cells = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    confusion = cells.reshape(num_classes, num_classes).astype(np.float64)
    figures = class_figures(predicted, labels, num_classes)
    return {**figures, "mae": mae_of(confusion), "qwk": qwk_of(confusion)}


def rank_baselines(train: Store | None, validation: Store, encoder: Encoder) -> Baselines:
    """Return the majority class, the middle one (the median of the training rows), and for tables
    the column that predicts the class best."""
    found = class_baselines(train, validation, encoder, rank_figures)
    if not found:
        return found
    counts = np.cumsum(as_fitted(encoder.target.classes).counts)
    median = int(np.searchsorted(counts, counts[-1] / 2))
    labels = validation.values("labels")
    middle = rank_figures(np.full(len(labels), median), labels, len(counts))
    return {**found, MIDDLE: middle}


def judge_ranks(predicted: npt.NDArray[Any], validation: Store, encoder: Encoder) -> dict[str, Any]:
    """Return figures of a predicted class per validation row."""
    labels = validation.values("labels")
    return rank_figures(predicted.astype(np.int64), labels, len(encoder.classes))


RANKS = RowTarget(
    fit_ranks,
    classes.class_id,
    classes.label_field,
    lambda encoder: len(encoder.classes) - 1,
    rank_settings,
    class_loss(rank_scores),
    {
        **usual_metrics(rank_scores),
        "mae": _metric(mae_of, "lower"),
        "qwk": _metric(qwk_of, "higher"),
    },
    decode_ranks,
    Figures(
        rank_scores,
        predicted_values=class_probabilities(rank_scores),
        best="mae",
        baselines=rank_baselines,
        judge=judge_ranks,
    ),
    unit="thresholds between classes",
)
"""The class of a row among ordered ones."""
