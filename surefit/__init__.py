"""surefit trains any PyTorch model on any data, and finds what would go wrong before it does.

Nothing heavy is imported before it is needed: each public name is fetched on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefit.api import check, evaluate, inspect, load, predict, train
    from surefit.batches.collator import Collator
    from surefit.batches.field import Field
    from surefit.custom_loop import loaders, open_data
    from surefit.errors import FindingError, RunFailedError, SurefitError, UsageError
    from surefit.explainer import explain
    from surefit.findings import Finding
    from surefit.models.feature_model import AdaptiveProjection
    from surefit.targets.task_spec import TaskSpec

__version__ = "0.6.0"

_HOMES = {
    "AdaptiveProjection": "surefit.models.feature_model",
    "Collator": "surefit.batches.collator",
    "Field": "surefit.batches.field",
    "Finding": "surefit.findings",
    "FindingError": "surefit.errors",
    "RunFailedError": "surefit.errors",
    "SurefitError": "surefit.errors",
    "TaskSpec": "surefit.targets.task_spec",
    "UsageError": "surefit.errors",
    "check": "surefit.api",
    "evaluate": "surefit.api",
    "explain": "surefit.explainer",
    "inspect": "surefit.api",
    "load": "surefit.api",
    "loaders": "surefit.custom_loop",
    "open_data": "surefit.custom_loop",
    "predict": "surefit.api",
    "train": "surefit.api",
}

__all__ = [
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'surefit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
