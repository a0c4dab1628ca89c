"""Gradient-boosted trees of scikit-learn on the rows of a table, beside the network's result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit import __version__
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import open_json
from surefit.findings import Finding, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.store import Store
from surefit.inputs.table.table_columns import ColumnMatrix, feature_rows, is_table, spread_rows
from surefit.targets.classes import is_multi_label
from surefit.targets.task_spec import JudgeRows

Array = npt.NDArray[Any]
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
