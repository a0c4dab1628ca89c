"""The public names."""

from __future__ import annotations

import surefit

NAMES = [
    "AdaptiveProjection",
    "Collator",
    "Field",
    "Finding",
    "FindingError",
    "RunFailedError",
    "SurefitError",
    "TaskSpec",
    "UsageError",
    "check",
    "evaluate",
    "explain",
    "inspect",
    "load",
    "loaders",
    "open_data",
    "predict",
    "train",
]


def test_exported_names() -> None:
    assert sorted(surefit.__all__) == sorted(NAMES)
    for name in NAMES:
        assert callable(getattr(surefit, name))
