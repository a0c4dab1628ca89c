"""A user's own function of outputs and batch: a `loss_fn`, or a metric of the task `custom`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

from surefit.batches.field import IGNORE_INDEX, NUM_ROWS, NUM_TARGETS, OWN
from surefit.errors import UsageError
from surefit.targets.task_spec import Batch

SumCount = tuple[Any, Any]

FIX = (
    "Return a scalar tensor, the mean over the rows of the batch; a tuple (sum, count); or a dict "
    "of these with the key 'loss', whose other keys are only reported."
)


class OwnLossError(UsageError):
    """What the user's function returned is no loss."""


@dataclass(frozen=True)
class Terms:
    """A summed loss, its count, and parts of it by name, which are only reported."""

    total: Any
    count: Any
    parts: Mapping[str, SumCount] = field(default_factory=dict)


@dataclass
class OwnLoss:
    """A custom `loss_fn(outputs, batch)`, with what it returned made a sum and a count.

    `outputs` is exactly what the model returned.
    """

    loss_fn: Callable[..., Any]
    name: str = "loss_fn"
    returns_mean: bool = False
    """Whether it returned one number so far."""
    parts: tuple[str, ...] | None = None
    """The names of the parts in each batch; None before the first one."""

    def __call__(self, outputs: Any, batch: Batch) -> SumCount:
        """Return the sum and the count of a batch."""
        terms = self.terms(outputs, batch)
        return terms.total, terms.count

    def terms(self, outputs: Any, batch: Batch) -> Terms:
        """Return the sum and the count of a batch, and those of its parts."""
        value = self.loss_fn(getattr(outputs, "raw", outputs), own_columns(batch))
        named = dict(value) if isinstance(value, Mapping) else {"loss": value}
        if "loss" not in named:
            keys = ", ".join(map(repr, named))
            raise OwnLossError(f"{self.name} returned a dict without 'loss': {keys}.", FIX)
        total, count = self._sum("loss", named.pop("loss"), batch)
        names = tuple(sorted(map(str, named)))
        if self.parts not in (None, names):
            raise OwnLossError(
                f"{self.name} returned the parts {list(names)}; in earlier batches "
                f"{list(self.parts or ())}.",
                "Return the same keys for each batch; a part that a batch lacks is (0, 0).",
            )
        self.parts = names
        parts = {name: self._sum(name, named[name], batch) for name in names}
        return Terms(total, count, parts)

    def _sum(self, key: str, value: Any, batch: Batch) -> SumCount:
        """Return one value as a sum and a count; refuse what is neither a number nor these."""
        import torch

        given: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
        are_numbers = all(isinstance(each, torch.Tensor | Number) for each in given)
        if not are_numbers or len(given) != (2 if value is given else 1):
            kinds = ", ".join(type(each).__name__ for each in given)
            shown = f"({kinds})" if value is given else f"a {kinds}"
            where = "" if key == "loss" else f" as {key!r}"
            message = f"{self.name} returned {shown}{where}; expected a scalar tensor or "
            raise OwnLossError(f"{message}(sum, count).", FIX)
        if value is given:
            return given[0], given[1]
        if key == "loss":
            self.returns_mean = True
        return mean_as_sum(value, batch)


def own_columns(batch: Batch) -> Any:
    """Return the columns of a batch without surefit's own, as user code gets them.

    A batch that the user's `collate_fn` made as a tuple is one again.
    """
    own = {name: value for name, value in batch.items() if not name.startswith(OWN)}
    return tuple(own.values()) if all(map(str.isdecimal, own)) else own


def mean_as_sum(loss: Any, batch: Batch) -> tuple[Any, int]:
    """Return a scalar loss as a sum and a count: it is taken as a mean over targets or rows."""
    if NUM_TARGETS in batch:
        return loss * batch[NUM_TARGETS], batch[NUM_TARGETS]
    labels = batch.get("labels")
    if labels is not None and labels.ndim > 1 and not labels.is_floating_point():
        count = int((labels != IGNORE_INDEX).sum())
    else:
        count = batch.get(NUM_ROWS) or len(next(iter(batch.values())))
    return loss * count, count
