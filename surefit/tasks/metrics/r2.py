"""r2: the share of the targets' variance that predictions explain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

CONSTANT = 1e-12
"""Targets whose variance is a smaller share of their mean square differ by rounding alone."""


def r2_of(sums: Mapping[str, Any]) -> float:
    """1 minus the squared errors over the squared distances from the mean of these rows.

    As scikit-learn defines it: of equal targets, 1 if all are predicted exactly and 0 otherwise;
    unknown for a single row.
    """
    errors, squares = float(sums["errors"]), float(sums["squares"])
    spread = squares - float(sums["labels"]) ** 2 / max(float(sums["count"]), 1.0)
    if sums["count"] < 2:
        return math.nan
    if spread <= CONSTANT * squares:
        return float(errors == 0)
    return 1 - errors / spread
