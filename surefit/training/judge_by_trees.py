"""Whether a network ends clearly below gradient-boosted trees on the same rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from surefit.findings import Finding, rule
from surefit.tasks.tree_baseline import TREES

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
SQUARES_SPREAD = 4.0
"""Squared errors of n rows differ by about this / √n by chance, as a share of their mean."""
SHOWN = ("r2", "rmse", "accuracy", "macro_f1")
CERTAIN = 2.0
"""Standard errors by which accuracies must differ."""


def judge_by_trees(
    metrics: Mapping[str, Any], baselines: Mapping[str, Mapping[str, Any]], num_rows: int
) -> Finding | None:
    """A warning where the trees are better by more than chance among `num_rows` validation rows.

    >>> trees = {TREES: {"accuracy": 0.9}}
    >>> judge_by_trees({"accuracy": 0.8}, trees, 1000).code
    'SF748'
    >>> judge_by_trees({"accuracy": 0.8}, trees, 50)
    """
    trees = baselines.get(TREES, {})
    figures = {n: (metrics[n], trees[n]) for n in trees if isinstance(metrics.get(n), float)}
    if num_rows < 1 or not (_errors_differ(figures, num_rows) or _hits_differ(figures, num_rows)):
        return None
    shown = [f"{n} {ours:.4g}" for n, (ours, _) in figures.items() if n in SHOWN]
    theirs = [f"{n} {trees:.4g}" for n, (_, trees) in figures.items() if n in SHOWN]
    return TREES_ARE_BETTER.finding(
        f"The network ends at {', '.join(shown)}; {TREES} reach "
        f"{', '.join(theirs)} on the same {num_rows:,} validation rows. For this table, a network "
        "trained like this is the wrong choice."
    )


def _errors_differ(figures: Mapping[str, tuple[float, float]], num_rows: int) -> bool:
    if not {"rmse", "r2"} <= figures.keys():
        return False
    ours, trees = figures["rmse"]
    factor = 1 + max(LEAST_SHARE, SQUARES_SPREAD / math.sqrt(num_rows))
    return ours**2 > factor * trees**2 and figures["r2"][1] - figures["r2"][0] > LEAST_R2


def _hits_differ(figures: Mapping[str, tuple[float, float]], num_rows: int) -> bool:
    if "accuracy" not in figures:
        return False
    ours, trees = figures["accuracy"]
    chance = sum(each * (1 - each) / num_rows for each in (ours, trees))
    return trees - ours > max(LEAST_ACCURACY, CERTAIN * math.sqrt(chance))
