"""Figures of predictors that ignore the input, or all of it but one column of a table.

They are fitted on the training rows and judged on the validation rows. A model that does not beat
them has learned nothing from its inputs. Memory is bounded by the number of classes or tokens.
Without the training rows (`train` is None), what the Encoder has fitted gives the first two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.row_arrays import count_distinct
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import PLAIN
from surefit.inputs.store import Store
from surefit.inputs.table.table_columns import feature_rows, is_table, part_places, spread_rows
from surefit.targets.class_loss import loss_of_several, loss_of_shares
from surefit.targets.classes import class_labels, is_multi_label
from surefit.targets.metrics.class_metrics import macro_f1_of
from surefit.targets.number_targets import number_figures

Array = npt.NDArray[Any]
Baselines = dict[str, dict[str, Any]]
"""Figures by metric, by baseline; the best single column has its name under `column`."""
JudgeClasses = Callable[[Array, Array, int], dict[str, Any]]
"""Predicted and true classes, and how many there are, to figures as the metrics have them."""

MAJORITY, MEAN, UNIGRAM = "majority class", "mean", "unigram"
SINGLE_COLUMN = "best single column"
_CHUNK = 1 << 20
MAX_ROWS = 20_000
"""Training rows that a rule is fitted on, spread evenly."""
NUM_GROUPS, GROUP_ROWS = 16, 10
"""Numbers are divided into so many groups of one size, fewer where they would have fewer rows."""


def class_baselines(
    train: Store | None, validation: Store, encoder: Encoder, judge: JudgeClasses | None = None
) -> Baselines:
    """Return the most frequent class; for tables, also the column that predicts the class best."""
    judge = judge or class_figures
    if not len(validation):
        return {}
    count, judged = len(encoder.classes), validation.values("labels")
    judged = judged[judged >= 0]  # a step may have no class
    counts = np.asarray(class_labels(encoder).counts, np.float64)
    if is_multi_label(encoder):
        if train is None or not len(train):
            return {}
        shares = counts / count_distinct(train.source_row)
        several = validation.values("labels").reshape(-1, count) > 0.5
        made = np.broadcast_to(shares > 0.5, several.shape)
        loss = loss_of_several(encoder.settings.loss, shares, several)
        return {MAJORITY: {**label_figures(made, several), "loss": loss}}
    shares = counts / counts.sum()
    constant = np.full(len(judged), shares.argmax())
    figures = judge(constant, judged, count)
    loss = cross_entropy(shares, judged)
    options = encoder.settings.loss
    if options != PLAIN:
        loss = loss_of_shares(options, counts, np.bincount(judged, minlength=count))
    found: Baselines = {MAJORITY: {**figures, "loss": loss}}
    by_column = predict_by_column(train, validation, encoder, num_classes=count)
    if by_column is not None:
        figures = judge(by_column.predictions.astype(np.int64), judged, count)
        found[SINGLE_COLUMN] = {"column": by_column.column, **figures}
    return found


def number_baselines(train: Store | None, validation: Store, encoder: Encoder) -> Baselines:
    """Return the mean of the training rows; for tables, also the best line or threshold on one
    column.

    Each of several targets has its own best column.
    """
    if not len(validation):
        return {}
    judged = np.asarray(validation.values("labels"), np.float64).reshape(len(validation), -1)
    found: Baselines = {MEAN: number_figures(np.zeros(judged.shape), judged, encoder)}
    best = [
        predict_by_column(train, validation, encoder, num_classes=None, target=at)
        for at in range(judged.shape[1])
    ]
    by_column = [each for each in best if each is not None]
    if by_column:
        predictions = np.stack([each.predictions for each in by_column], axis=1)
        columns = dict.fromkeys(each.column for each in by_column)
        figures = number_figures(predictions.astype(np.float64), judged, encoder)
        found[SINGLE_COLUMN] = {"column": ", ".join(columns), **figures}
    return found


@dataclass(frozen=True)
class ByColumn:
    """The column that fits the training rows best, and what it predicts for validation rows."""

    column: str
    predictions: Array


def predict_by_column(
    train: Store | None,
    validation: Store,
    encoder: Encoder,
    num_classes: int | None,
    target: int = 0,
) -> ByColumn | None:
    """Return the best rule on one column; None where the rows are not those of a table.

    `num_classes` is None for numbers, of which `target` is the one to predict. The rule is
    chosen by its errors on training rows, which count more the more values it was fitted by.
    """
    if train is None or not len(train) or not is_table(encoder, train):
        return None
    places = spread_rows(train, MAX_ROWS)
    rows, judged = feature_rows(train, places), feature_rows(validation, slice(None))
    labels = np.asarray(train.values("labels")).reshape(len(train), -1)[places, target]
    best: tuple[float, str, Array] | None = None
    for part, start, end in part_places(encoder):
        is_number = part.kind == "number"
        inputs, tried = (
            each[:, start] if is_number else each[:, start:end].argmax(1) for each in (rows, judged)
        )
        for predict, size in _rules(inputs, labels, num_classes):
            differs = predict(inputs) - labels
            error = float((differs != 0 if num_classes else np.square(differs)).mean())
            error *= (len(labels) + size) / max(len(labels) - size, 1)  # expected on other rows
            if best is None or error < best[0]:
                best = error, part.column, predict(tried)
    return None if best is None else ByColumn(best[1], best[2])


def _rules(
    inputs: Array, labels: Array, num_classes: int | None
) -> Iterator[tuple[Callable[[Array], Array], int]]:
    """Yield the majority class, or the mean, of each group of values; for two numbers, also a line.

    Each with the number of values that were fitted.
    """
    num_groups = max(2, min(NUM_GROUPS, len(inputs) // GROUP_ROWS))
    bounds = np.unique(np.quantile(inputs, np.linspace(0, 1, num_groups + 1)[1:-1]))
    if inputs.dtype.kind == "i":
        bounds = np.arange(inputs.max() + 1)  # each category is a group
    groups, size = np.searchsorted(bounds, inputs), len(bounds) + 1
    if num_classes is not None:
        cells = np.bincount(groups * num_classes + labels, minlength=size * num_classes)
        counts = cells.reshape(size, num_classes)
        counts[counts.sum(1) == 0] = np.bincount(labels, minlength=num_classes)
        chosen: Array = counts.argmax(1)
    else:
        counts, sums = np.bincount(groups, minlength=size), np.bincount(groups, labels, size)
        chosen = np.where(counts > 0, sums / np.maximum(counts, 1), labels.mean())
    yield lambda tried: chosen[np.searchsorted(bounds, tried)], size
    if num_classes is None and inputs.dtype.kind != "i" and inputs.min() < inputs.max():
        slope, offset = np.polyfit(inputs.astype(np.float64), labels.astype(np.float64), 1)
        yield lambda tried: slope * tried.astype(np.float64) + offset, 2


def token_baselines(train: Store | None, validation: Store, encoder: Encoder) -> Baselines:
    """Return how often each token is a label, whatever comes before it."""
    found, options = _tokens(train, validation, UNIGRAM), encoder.settings.loss
    if options != PLAIN and train is not None and found:
        size = 1 + max(_largest(train), _largest(validation))
        size = max(size, len(encoder.tokenizer or ()))
        found[UNIGRAM]["loss"] = loss_of_shares(
            options, *(_count(s, size) for s in (train, validation))
        )
    return found


def tag_baselines(train: Store | None, validation: Store, encoder: Encoder) -> Baselines:
    """Return the most frequent tag of a word."""
    found = _tokens(train, validation, MAJORITY)
    options = encoder.settings.loss
    if options != PLAIN and train is not None and found:
        counts = (_count(store, len(encoder.classes)) for store in (train, validation))
        found[MAJORITY]["loss"] = loss_of_shares(options, *counts)
        del found[MAJORITY]["perplexity"]
    return found


def class_figures(predicted: Array, labels: Array, num_classes: int) -> dict[str, Any]:
    """Accuracy and macro F1 of predicted classes.

    >>> class_figures(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 1]), 2)
    {'accuracy': 0.75, 'macro_f1': 0.428...}
    """
    import torch

    cells = labels * num_classes + predicted
    confusion = np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)
    hits, either = confusion.diagonal().copy(), confusion.sum(0) + confusion.sum(1)
    macro_f1 = macro_f1_of(torch.from_numpy(hits), torch.from_numpy(either))
    return {"accuracy": float((predicted == labels).mean()), "macro_f1": macro_f1}


def judge_classes(predicted: Array, validation: Store, encoder: Encoder) -> dict[str, Any]:
    """Return figures of a class, or of 0 and 1 for each of several classes, per validation row."""
    count = len(encoder.classes)
    if is_multi_label(encoder):
        return label_figures(predicted > 0.5, validation.values("labels").reshape(-1, count) > 0.5)
    return class_figures(predicted.astype(np.int64), validation.values("labels"), count)


def judge_numbers(predicted: Array, validation: Store, encoder: Encoder) -> dict[str, Any]:
    """Return figures of the numbers of each validation row, in units of the targets' spread."""
    judged = np.asarray(validation.values("labels"), np.float64).reshape(len(validation), -1)
    return number_figures(predicted.reshape(judged.shape), judged, encoder)


def cross_entropy(shares: Array, labels: Array) -> float:
    """Mean loss of predicting the shares of the classes for every row."""
    return float(-np.log(np.maximum(shares[labels], 1e-12)).mean())


def label_figures(made: Array, judged: Array) -> dict[str, float]:
    """Accuracy and macro F1 where a row may have several classes: (N, C) each."""
    import torch

    hits, either = (judged & made).sum(0), judged.sum(0) + made.sum(0)
    return {
        "accuracy": float((judged == made).all(1).mean()),
        "macro_f1": macro_f1_of(torch.from_numpy(hits), torch.from_numpy(either), True),
    }


def _tokens(train: Store | None, validation: Store, name: str) -> Baselines:
    if train is None or not len(validation) or "labels" not in train.fields:
        return {}
    size = 1 + max(_largest(train), _largest(validation), 0)
    known, judged = _count(train, size), _count(validation, size)
    if not known.sum() or not judged.sum():
        return {}
    loss = unigram_loss(known, judged)
    accuracy = float(judged[known.argmax()] / judged.sum())
    perplexity = math.exp(min(loss, 700.0))
    return {name: {"loss": loss, "perplexity": perplexity, "token_accuracy": accuracy}}


def unigram_loss(known: Array, judged: Array) -> float:
    """Mean loss per judged token; unseen tokens share the mass of those seen once (Good-Turing).

    >>> round(unigram_loss(np.array([2, 2, 0]), np.array([1, 1, 0])), 2)
    0.76
    """
    total = known.sum()
    unseen = max(int((known == 1).sum()), 1) / (total + 1)
    shares = (1 - unseen) * known / total + unseen / len(known)
    return float(-(judged * np.log(shares)).sum() / judged.sum())


def _chunks(store: Store) -> Iterator[Array]:
    values = store.values("labels")
    for start in range(0, len(values), _CHUNK):
        yield np.asarray(values[start : start + _CHUNK])


def _largest(store: Store) -> int:
    return max((int(chunk.max()) for chunk in _chunks(store)), default=-1)


def _count(store: Store, size: int) -> Array:
    """Return how often each id is a label; ignored positions are below 0."""
    counts = np.zeros(size, np.int64)
    for chunk in _chunks(store):
        counts += np.bincount(chunk[chunk >= 0], minlength=size)
    return counts
