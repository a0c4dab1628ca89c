"""A user's own metric: a function of all predictions and labels, or an object that is updated.

An object has `update(predictions, labels)`, `compute()` and `reset()`, as those of torchmetrics.
Predictions are probabilities (N, classes) or numbers (N,), labels class numbers or numbers; both
are tensors on the CPU, in no particular order. Of two classes, a metric that does not take (N, 2)
gets the probability of the second class (N,), as the binary ones of torchmetrics do.

The figure is a number, several by name, or a vector or matrix of them, such as one per class.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surefit.errors import RunFailedError, UsageError, describe_error

if TYPE_CHECKING:
    import torch

FIX = (
    "Let it take (predictions, labels) and return a number, or numbers by name; or have update, "
    "compute and reset."
)
MOST_NUMBERS = 10_000
"""More numbers than a confusion matrix of a hundred classes are predictions, and no figure."""
STREAMING = ("update", "compute", "reset")


@dataclass(frozen=True)
class OwnMetric:
    """A metric of the user's, and what it is called."""

    name: str
    measure: Any

    @property
    def is_object(self) -> bool:
        """Whether it is updated batch by batch."""
        return is_object(self.measure)

    @property
    def keeps_all(self) -> bool:
        """Whether all predictions are in memory at the end of an evaluation."""
        states = getattr(self.measure, "_defaults", None)  # of a torchmetrics object
        lists = isinstance(states, dict) and any(isinstance(s, list) for s in states.values())
        return lists or not self.is_object

    def start(self, num_processes: int = 1) -> Collected:
        """Begin an evaluation. Several processes bring their predictions together at its end."""
        if self.is_object:
            if hasattr(self.measure, "sync_on_compute"):
                self.measure.sync_on_compute = False  # they are gathered here
            self.measure.reset()
        return Collected(self, updates=self.is_object and num_processes == 1)


@dataclass
class Collected:
    """The predictions of one evaluation, as far as they are kept."""

    metric: OwnMetric
    updates: bool
    kept: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    binary: bool | None = None
    """Whether it gets the probability of the second class alone; None until it was tried."""

    def add(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        """Take in the predictions of a batch."""
        pair = predictions.detach().to("cpu"), labels.detach().to("cpu")
        if self.updates:
            self._try(self.metric.measure.update, pair)
        else:
            self.kept.append(pair)

    def figure(self, gather: Any = lambda kept: kept) -> Any:
        """Return the metric's number for all predictions, or its numbers."""
        import torch

        measure = self.metric.measure
        if not self.updates:
            pairs = gather(self.kept)
            whole = tuple(torch.cat(parts) for parts in zip(*pairs, strict=True))
            if not self.metric.is_object:
                return self._read(self._try(measure, whole))
            self._try(measure.update, whole)
        found = self._read(self._call(measure.compute))
        measure.reset()
        return found

    def _try(self, measure: Any, pair: Any) -> Any:
        """Call with the predictions as they are; where only that works, with one number per row."""
        predictions, labels = pair
        has_two = predictions.ndim == 2 and predictions.shape[1] == 2 and labels.ndim == 1
        if self.binary is None:
            self.binary = has_two and self._takes_only_one(measure, predictions, labels)
        shown = predictions[:, 1] if self.binary and has_two else predictions
        return self._call(lambda: measure(shown, labels))

    def _takes_only_one(self, measure: Any, predictions: Any, labels: Any) -> bool:
        """Return whether it fails on (N, 2), and not on the probabilities of the second class."""
        works = []
        for tried in (predictions, predictions[:, 1]):
            with suppress(Exception):  # what fails in both forms is raised by the call after this
                measure(tried, labels)
                if self.metric.is_object:  # some look at the shapes only here
                    self.metric.measure.compute()
                works.append(tried.ndim)
            if self.metric.is_object:
                self.metric.measure.reset()
        return works == [1]

    def _call(self, run: Any) -> Any:
        try:
            return run()
        except Exception as error:
            what = describe_error(error)[:200]
            raise RunFailedError(f"The metric {self.metric.name!r} failed: {what}", FIX) from error

    def _read(self, value: Any) -> Any:
        try:
            return _figure(value)
        except Exception:
            size = getattr(value, "shape", None)
            shown = f"a {type(value).__name__}{f' of shape {list(size)}' if size else ''}"
            raise RunFailedError(f"The metric {self.metric.name!r} gave {shown}.", FIX) from None


def _figure(value: Any) -> Any:
    """Return what a metric gave as numbers that JSON holds; anything else is a ValueError or
    TypeError.

    >>> import torch
    >>> _figure({"low": torch.tensor(1), "each": torch.tensor([0.5, float("inf")])})
    {'low': 1.0, 'each': [0.5, nan]}
    """
    if isinstance(value, Mapping):
        return {str(name): _figure(part) for name, part in value.items()}
    if hasattr(value, "tolist") and getattr(value, "ndim", 0) > 0:
        if math.prod(value.shape) > MOST_NUMBERS:
            raise ValueError("too many numbers")
        value = value.tolist()
    if isinstance(value, list | tuple):
        if len(value) > MOST_NUMBERS:
            raise ValueError("too many numbers")
        return [_figure(part) for part in value]
    number = float(value)
    return number if math.isfinite(number) else math.nan


def is_object(measure: Any) -> bool:
    """Return whether a metric is updated batch by batch, as those of torchmetrics are."""
    return not isinstance(measure, type) and all(
        callable(getattr(measure, name, None)) for name in STREAMING
    )


def make_own_metric(name: str, found: Any) -> OwnMetric:
    """Return the metric of a function, an object, or a class or function that makes the object."""
    made, takes_nothing = found, False
    with suppress(TypeError, ValueError):
        takes_nothing = not inspect.signature(found).parameters
    if isinstance(found, type) or (not is_object(found) and takes_nothing):
        try:
            made = found()
        except Exception as error:
            message = f"metrics.{name}: making the metric raised {describe_error(error)}"[:300]
            raise UsageError(message, FIX) from error
        if not is_object(made):
            kind = type(made).__name__
            raise UsageError(f"metrics.{name} makes a {kind}, which is not a metric.", FIX)
    if not callable(made) and not is_object(made):
        raise UsageError(f"metrics.{name} is a {type(made).__name__}, which is not a metric.", FIX)
    return OwnMetric(name, made)


def direction_of(measure: Any) -> str | None:
    """`higher` or `lower`, where the object says which is better, as those of torchmetrics do."""
    said = getattr(measure, "higher_is_better", None)
    return None if said is None else "higher" if said else "lower"
