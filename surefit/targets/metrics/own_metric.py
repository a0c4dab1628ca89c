"""A user's own metric: a function of all predictions and labels, or an object that is updated.

An object has `update(predictions, labels)`, `compute()` and `reset()`, as those of torchmetrics.
Predictions are probabilities (N, classes) or numbers (N,), labels class numbers or numbers; both
are tensors on the CPU, in no particular order. Of two classes, a metric that does not take (N, 2)
gets the probability of the second class (N,), as the binary ones of torchmetrics do.

The metrics that a run names, and its scorer of text, are put into the task here.

The figure is a number, several by name, or a vector or matrix of them, such as one per class.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from surefit.config import MetricChoice
from surefit.errors import RunFailedError, UsageError, describe_error
from surefit.targets.generation import Sample
from surefit.targets.metrics.class_metrics import CLASS_METRICS, class_metric
from surefit.targets.own_loss import OwnLoss
from surefit.targets.task_spec import Better, Metric, TaskSpec

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

    def keeps(self, num_processes: int) -> bool:
        """Return whether all predictions are in memory at the end of an evaluation."""
        states = getattr(self.measure, "_defaults", None)  # of a torchmetrics object
        lists = isinstance(states, dict) and any(isinstance(s, list) for s in states.values())
        return lists or not self.is_object or num_processes > 1

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


def with_metrics(
    task: TaskSpec, chosen: Mapping[str, MetricChoice], own: Mapping[str, Any]
) -> TaskSpec:
    """Return the task with the metrics that a config names; `own` has the code of those that are
    named as module:function or passed from Python.
    """
    built: dict[str, Any] = dict(task.metrics)
    mine: dict[str, OwnMetric] = dict(task.figures.own_metrics)
    better: dict[str, Better] = dict(task.figures.better)
    for name, choice in chosen.items():
        if choice.better is not None:
            better[name] = choice.better
        if name in own and name in task.metric_names:
            raise UsageError(
                f"metrics.{name}: {task.name} has a metric of this name.",
                "Give your metric another name.",
            )
        if name in own and task.figures.reads_outputs:
            built[name] = _of_outputs(task, name, own[name])
        elif name in own:
            mine[name] = _own(task, name, own[name])
            said = direction_of(mine[name].measure)
            if said is not None and choice.better not in (None, said):
                raise UsageError(
                    f"metrics.{name}.better is {choice.better}, but its higher_is_better says "
                    f"{said}.",
                    "Leave it out.",
                )
            if said is not None:
                better[name] = "higher" if said == "higher" else "lower"
        elif name not in task.metric_names and choice.function is None:
            built[name] = _built_in(task, name)
    figures = replace(task.figures, own_metrics=mine, better=better)
    return replace(task, metrics=built, figures=figures)


def _of_outputs(task: TaskSpec, name: str, found: Any) -> OwnLoss:
    """Return a metric that reads outputs and batch, and returns what a `loss_fn` does."""
    if not callable(found) or is_object(found):
        raise UsageError(
            f"metrics.{name} is a {type(found).__name__}; {task.name} has metrics that are "
            "functions.",
            "Let it be f(outputs, batch) -> a mean over rows, or (sum, count).",
        )
    return OwnLoss(found, f"metrics.{name}")


def _own(task: TaskSpec, name: str, found: Any) -> OwnMetric:
    if task.figures.predicted_values is None:
        raise UsageError(
            f"metrics.{name} needs a class or a number per target, and {task.name} predicts "
            "neither.",
            "For generated text, name a generate.scorer(expected, got); for a task of your own, "
            "put the metric into its TaskSpec.",
        )
    return make_own_metric(name, found)


def _built_in(task: TaskSpec, name: str) -> Metric:
    known = [*CLASS_METRICS, "top5"]
    if task.figures.class_scores is None:
        reason = f"{task.name} predicts no classes" if name in known else "there is no such metric"
        has = ", ".join(task.metric_names)
        raise UsageError(
            f"metrics: {name}: {reason}.",
            f"{task.name} has {has}; your own is named as metrics.{name}=module:function.",
        )
    found = class_metric(name, task.figures.class_scores)
    if found is None:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UsageError(
            f"metrics: there is no metric {name!r}.{hint}",
            f"Built in are {', '.join(known)}; your own: metrics.{name}=module:function.",
        )
    return found


Scorer = Callable[[str, str], Any]
"""`scorer(expected, got)` gives a number, or a dict of numbers by name; more is better."""


def with_scorer(task: TaskSpec, scorer: Scorer, example: str | None = None) -> TaskSpec:
    """Return the task with the means of `scorer` among its metrics.

    The names of a scorer that returns a dict are found by calling it on `example`.
    """
    generate = task.generate
    if generate is None or not generate.names:
        raise UsageError(
            f"generate.scorer scores generated text, and {task.name} generates none.",
            "Leave it out, or choose a task that does, such as sft or seq2seq.",
        )
    names = (score_name(scorer),) if example is None else (*score(scorer, example, example),)
    taken = next((name for name in names if name in task.metric_names), None)
    if taken is not None:
        raise UsageError(
            f"The scorer gives {taken!r}, which {task.name} has already.",
            "Give the score another name.",
        )

    def scores(sample: Sample) -> dict[str, float]:
        return {**generate.scores(sample), **score(scorer, sample.expected or "", sample.got)}

    return replace(task, generate=replace(generate, scores=scores, names=(*generate.names, *names)))


def score_name(scorer: Scorer) -> str:
    """Return what a scorer's single number is called: the function's name."""
    return getattr(scorer, "__name__", type(scorer).__name__).strip("<>")


def score(scorer: Scorer, expected: str, got: str) -> dict[str, float]:
    """Return the scorer's figures for one answer; a RunFailedError where they are none."""
    name, shown = score_name(scorer), f"expected {expected[:80]!r}, got {got[:80]!r}"
    fix = "Let it return a number, or a dict of numbers by name, for any two texts."
    try:
        made = scorer(expected, got)
        named = made if isinstance(made, Mapping) else {name: made}
        figures = {str(key): float(value) for key, value in named.items()}
    except Exception as error:
        what = f"{describe_error(error)}"[:200]
        raise RunFailedError(f"The scorer {name} failed on {shown}: {what}", fix) from error
    wrong = next((key for key, value in figures.items() if not math.isfinite(value)), None)
    if wrong is not None or not figures:
        raise RunFailedError(f"The scorer {name} gave {made!r} for {shown}.", fix)
    return figures
