"""Figures of predictors that ignore the input, or all of it but one column of a table.

They are fitted on the training rows and judged on the validation rows. A model that does not beat
them has learned nothing from its inputs. Memory is bounded by the number of classes or tokens.
Without the training rows (`train` is None), what the Encoder has fitted gives the first two.
Of tables, gradient-boosted trees of scikit-learn stand beside the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit import __version__
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import open_json
from surefit.data.row_arrays import count_distinct
from surefit.findings import Finding, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import PLAIN, as_fitted
from surefit.inputs.store import Store
from surefit.inputs.table.table_columns import (
    ColumnMatrix,
    feature_rows,
    is_table,
    part_places,
    spread_rows,
)
from surefit.targets.class_loss import loss_of_several, loss_of_shares
from surefit.targets.classes import is_multi_label
from surefit.targets.metrics.class_metrics import macro_f1_of
from surefit.targets.number_targets import number_figures
from surefit.targets.task_spec import JudgeRows

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
    counts = np.asarray(as_fitted(encoder.target.classes).counts, np.float64)
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


TREES = "boosted trees"
NOTE = "note"
"""Where a baseline's figures keep a remark about it."""
FEWEST_ROWS = 200
"""With fewer training rows, trees are not fitted: their figures would be chance."""
MAX_WORK, MAX_CELLS = 400_000_000, 4_000_000
"""Rows × columns × models × iterations (about ten seconds of one core), and rows × columns."""
ITERATIONS, ITERATIONS_EACH = 200, 50
"""Trees for one target, and for each of several classes or targets."""
FEWEST_TO_STOP = 10
"""Rows that the rarest class must have, so that a tenth of the rows can decide when to stop."""
MISSING = "not fitted; pip install 'surefit[tables]' prints their figures here"

TREES_ARE_BETTER = rule(
    "SF748",
    "warning",
    "trees predict this table better than the network",
    why="Gradient-boosted trees were fitted on the same training rows and judged on the same "
    "validation rows. Where they are clearly better, the network has not learned what the columns "
    "say; on small and medium-sized tables that is usual.",
    fix="Use the trees (scikit-learn's HistGradientBoostingRegressor or "
    "HistGradientBoostingClassifier); or train longer, with another --lr or a larger network.",
)
LEAST_SHARE, LEAST_R2, LEAST_ACCURACY = 0.1, 0.02, 0.01
"""Smaller differences are not worth a warning: of the squared errors as a share of the trees', of
the explained variance, and of the accuracy."""
SQUARES_SPREAD, CERTAIN = 4.0, 2.0
"""Squared errors of n rows differ by about 4 / √n by chance, as a share of their mean; accuracies
must differ by two standard errors."""
SHOWN = ("r2", "rmse", "accuracy", "macro_f1")


def measure_trees(
    train: Store, validation: Store, encoder: Encoder, judge: JudgeRows
) -> dict[str, Any]:
    """Return figures of trees on the validation rows, or a note why there are none.

    Empty for rows that are not those of a table, or too few of them.
    """
    if not is_table(encoder, train) or len(train) < FEWEST_ROWS or not len(validation):
        return {}
    try:
        library = version("scikit-learn")
    except PackageNotFoundError:
        return {NOTE: MISSING}
    matrix, field = ColumnMatrix.of(encoder), train.fields["labels"]
    models, columns = len(train.value("labels", 0)) if field.rank else 1, len(matrix.places)
    if field.numpy_dtype.kind == "i" and len(encoder.classes) > 2:
        models = len(encoder.classes)
    iterations = ITERATIONS if models == 1 else ITERATIONS_EACH
    rows = spread_rows(train, min(MAX_CELLS, MAX_WORK // (models * iterations)) // columns)
    if len(rows) < FEWEST_ROWS:
        return {NOTE: f"not fitted: {columns} columns and {models} outputs need more time"}

    def figures() -> dict[str, Any]:
        predicted = _predict(matrix, rows, (train, validation), encoder, iterations)
        found: dict[str, Any] = judge(predicted, validation, encoder)
        parts = {n: list(v.values()) if isinstance(v, dict) else v for n, v in found.items()}
        known = {n: v for n, v in found.items() if np.isfinite(parts[n]).all()}
        part = f"fitted on {len(rows):,} of {len(train):,} training rows"
        return known if len(rows) == len(train) else {**known, NOTE: part}

    about = [train.key, validation.key, encoder.state(), iterations, len(rows)]
    return dict(open_json("trees", fingerprint(about, library, __version__), figures))


def _predict(
    matrix: ColumnMatrix, rows: Array, stores: tuple[Store, Store], encoder: Encoder, trees: int
) -> Array:
    """Fit one model, or one per column of the targets, and predict for the validation rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    train, validation = stores
    field = train.fields["labels"]
    inputs, asked = matrix.read(feature_rows(train, rows)), feature_rows(validation, slice(None))
    targets = np.asarray(train.values("labels")).reshape(len(train), -1)[rows]
    by_class = encoder.settings.loss.class_weights if not field.rank else None
    weights = np.asarray(by_class)[targets[:, 0]] if by_class is not None else None
    known: dict[str, Any] = {"max_iter": trees, "random_state": 0, "early_stopping": True}
    known["categorical_features"] = matrix.categories or None
    predicted = []
    for target in targets.T:
        if field.numpy_dtype.kind == "i" or is_multi_label(encoder):
            counts = np.unique(target, return_counts=True)[1]
            if len(counts) == 1:
                predicted.append(np.full(len(asked), target[0]))
                continue
            known["early_stopping"] = bool(counts.min() >= FEWEST_TO_STOP)
            model = HistGradientBoostingClassifier(**known)
        else:
            model = HistGradientBoostingRegressor(**known)
        model.fit(inputs, target, sample_weight=weights)
        predicted.append(model.predict(matrix.read(asked)))
    found = np.stack(predicted, 1).astype(np.float64)
    return found if field.rank else found[:, 0]


def judge_by_trees(
    metrics: Mapping[str, Any], baselines: Mapping[str, Mapping[str, Any]], num_rows: int
) -> Finding | None:
    """Return a warning where the trees are better by more than chance among `num_rows` rows.

    >>> trees = {TREES: {"accuracy": 0.9}}
    >>> judge_by_trees({"accuracy": 0.8}, trees, 1000).code
    'SF748'
    >>> judge_by_trees({"accuracy": 0.8}, trees, 50)
    """
    trees = baselines.get(TREES, {})
    figures = {n: (metrics[n], trees[n]) for n in trees if isinstance(metrics.get(n), float)}
    better = False
    if num_rows and {"rmse", "r2"} <= figures.keys():
        (ours, theirs), (our_r2, their_r2) = figures["rmse"], figures["r2"]
        factor = 1 + max(LEAST_SHARE, SQUARES_SPREAD / math.sqrt(num_rows))
        better = ours**2 > factor * theirs**2 and their_r2 - our_r2 > LEAST_R2
    elif num_rows and "accuracy" in figures:
        ours, theirs = figures["accuracy"]
        chance = math.sqrt(sum(each * (1 - each) / num_rows for each in (ours, theirs)))
        better = theirs - ours > max(LEAST_ACCURACY, CERTAIN * chance)
    if not better:
        return None
    shown = [", ".join(f"{n} {figures[n][at]:.4g}" for n in SHOWN if n in figures) for at in (0, 1)]
    return TREES_ARE_BETTER.finding(
        f"The network ends at {shown[0]}; {TREES} reach {shown[1]} on the same {num_rows:,} "
        "validation rows. For this table, a network trained like this is the wrong choice."
    )
