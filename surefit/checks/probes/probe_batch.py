"""What probes are given: a model, one real batch, and how outputs and loss are got from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surefit.batches.field import Field
from surefit.findings import Finding, rule
from surefit.kernels.numerics import largest_difference, tolerance_of

if TYPE_CHECKING:
    import torch
    from torch import nn

UNSTEADY_OUTPUTS = rule(
    "SF700",
    "info",
    "outputs differ from call to call",
    why="A model that draws random numbers in evaluation mode cannot be compared with itself.",
    fix="Draw them in training mode only (self.training), if they are not meant to be there.",
)


Batch = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model and a batch; `causal` where each label is predicted by what comes before it."""

    module: nn.Module
    batch: Batch
    forward: Callable[[Batch], Any]
    """The model's outputs, with `logits`, `loss` or both."""
    loss: Callable[[Any, Batch], tuple[Any, Any]]
    """The sum over targets, and their count."""
    fields: Mapping[str, Field] = field(default_factory=dict)
    causal: bool = False
    alone: tuple[Batch, ...] = ()
    """Each row of the batch as a batch of its own, without padding; may be empty."""
    inputs: tuple[str, ...] = ()
    """The columns that arguments of `forward` name."""
    more: Callable[[], Iterator[Batch]] = lambda: iter(())
    """Batches of further rows, where a few rows alone prove nothing: a ReLU may be off in them."""

    @property
    def num_rows(self) -> int:
        """Rows in the batch."""
        return len(next(iter(self.tensors().values())))

    def tensors(self) -> dict[str, torch.Tensor]:
        """The columns that have one entry per row."""
        return {name: value for name, value in self.batch.items() if hasattr(value, "shape")}

    def row(self, place: int) -> dict[str, Any]:
        """One row as a batch of its own, as long as it is in the batch."""
        return {name: value[place : place + 1] for name, value in self.tensors().items()}

    def loss_sum(self, batch: Batch) -> float:
        """The summed loss of a batch, without a gradient."""
        import torch

        with torch.no_grad():
            return float(self.loss(self.forward(batch), batch)[0])


def padded_by_one(batch: Batch, fields: Mapping[str, Field]) -> dict[str, Any]:
    """The batch with one more pad at the end of every axis that runs along a sequence."""
    from torch.nn.functional import pad

    longer = dict(batch)
    for name, spec in fields.items():
        if name not in batch or "time" not in spec.axes:
            continue
        value, place = batch[name], spec.axes.index("time") + 1
        widths = [0, 0] * (value.ndim - place - 1) + [0, 1]
        longer[name] = pad(value, widths, value=spec.pad)
    return longer


def differ(one: torch.Tensor, other: torch.Tensor) -> float:
    """How far two tensors are apart, as a share of their size; 0 where both are all zero."""
    apart, *sizes = largest_difference(one, other)
    return apart / max(*sizes, 1e-12)


def tolerance(value: torch.Tensor) -> float:
    """The share by which equal results may differ: kernels choose other orders of summing."""
    return tolerance_of(value).values


def is_deterministic(subject: Subject) -> list[Finding]:
    """A finding where two equal calls give different outputs; nothing where they do not."""
    import torch

    with torch.no_grad():
        one, other = (subject.forward(subject.batch) for _ in range(2))
        losses = (subject.loss(one, subject.batch)[0], subject.loss(other, subject.batch)[0])
    pairs = [(getattr(one, name, None), getattr(other, name, None)) for name in ("logits", "loss")]
    for first, second in (*pairs, losses):  # the loss reads outputs that are no logits, too
        if first is not None and second is not None and differ(first, second) > tolerance(first):
            message = (
                "The model gives other outputs each time it is called in evaluation mode, by "
                f"{differ(first, second):.2g} of their size; it cannot be probed."
            )
            return [UNSTEADY_OUTPUTS.finding(message)]
    return []
