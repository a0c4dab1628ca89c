"""The sections `loss` and `metrics`, and keys that are patterns of parameter names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from surefit.config.section import Section, check_code_name


class LossOptions(Section):
    """How the classes of rows and words count in the loss."""

    class_weights: Literal["balanced"] | dict[str, float] | None = None
    """Weight of each class in the loss, by class name; classes that are not named have 1. balanced:
    all classes count the same, however many rows they have. Where rows may have several classes, it
    counts the rows with the class against those without. Default: all rows count the same."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing of the cross-entropy: this share of the target is spread over all classes."""

    @field_validator("class_weights", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if isinstance(value, Mapping):  # YAML reads class names such as 0 and 1 as numbers
            return {str(name): weight for name, weight in value.items()}
        if value is not None and value != "balanced":
            raise ValueError("expected balanced, or a weight for each class: {spam: 5, ham: 1}")
        return value

    @field_validator("class_weights")
    @classmethod
    def _above_zero(cls, value: Any) -> Any:
        wrong = [n for n, weight in value.items() if weight <= 0] if isinstance(value, dict) else []
        if wrong:
            raise ValueError(f"expected weights above 0; that of {wrong[0]!r} is not")
        return value


class MetricChoice(Section):
    """A metric that is asked for: built in, or your own."""

    function: str | None = None
    """Your own metric as module:function, f(predictions, labels) -> a number; or an object with
    update, compute and reset, such as one of torchmetrics. Default: the built-in metric."""
    better: Literal["higher", "lower"] | None = None
    """Which is better; needed where the metric decides the best step."""

    @field_validator("function")
    @classmethod
    def _named(cls, name: str | None) -> str | None:
        return check_code_name(name)


def read_metrics(value: Any) -> Any:
    """A name, a list of names, or a mapping of names to module:function, as choices by name.

    >>> read_metrics(["roc_auc"]), read_metrics({"cost": "my:cost"})
    ({'roc_auc': {}}, {'cost': {'function': 'my:cost'}})
    """
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple):
        parts = [read_metrics(one) if isinstance(one, Mapping) else {one: {}} for one in value]
        value = {str(name): choice for part in parts for name, choice in part.items()}
    if not isinstance(value, Mapping):
        return value
    return {
        str(name): {"function": one} if isinstance(one, str) else {} if one is None else one
        for name, one in value.items()
    }


def join_names(nested: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as names with dots.

    >>> join_names({"layer": {0: 1e-4}, "head": 1e-3})
    {'layer.0': 0.0001, 'head': 0.001}
    """
    joined: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            joined |= join_names(value, f"{prefix}{name}.")
        else:
            joined[f"{prefix}{name}"] = value
    return joined
