"""A user's own `training_step(modules, batch, step)`, which yields a name and a loss at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from surefit.data.python.live_rows import kept_randomness
from surefit.errors import describe_error
from surefit.models.named_modules import NamedModules, Part
from surefit.targets.own_loss import OwnLoss, OwnLossError, Terms, mean_as_sum, own_columns
from surefit.targets.task_spec import Batch

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.models.call import Clock

FIX = (
    "Write it as a generator: `yield name, loss`, with the name of an optimizer and a scalar "
    "tensor, for each backward pass."
)
OnLoss = Callable[[str, Any], None]
END = object()


@dataclass
class OwnStep(OwnLoss):
    """A training step of the user's own, as the loss of a Pipeline.

    The loop runs it with an optimizer step after each loss (`training/own_steps.py`). Evaluation
    takes its losses without backward, or those of a `loss_fn(modules, batch)` where one is given.
    """

    name: str = "training_step"
    parts_of: Mapping[str, Part] = field(default_factory=dict)
    """The optimizers that it may name."""
    clock: Clock | None = None
    evaluated_by: OwnLoss | None = None

    def run(
        self,
        modules: NamedModules,
        batch: Batch,
        on_loss: OnLoss,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Terms:
        """Run one step; `on_loss` gets each loss when it is yielded, and returns before the next.

        The loss is the sum of all of them; parts are the sums by name.
        """
        made = self.loss_fn(
            MappingProxyType(dict(modules.items())), own_columns(batch), self._number
        )
        if not hasattr(made, "__next__"):
            raise OwnLossError(f"training_step returned a {type(made).__name__}.", FIX)
        sums: dict[str, Any] = {}
        while True:
            with around():
                item = next(made, END)
            if item is END:
                break
            name, loss = self._read(item)
            on_loss(name, loss)
            sums[name] = sums.get(name, 0.0) + loss.detach()
        if not sums:
            raise OwnLossError("training_step yielded no loss.", FIX)
        count = mean_as_sum(1.0, batch)[1]
        parts = {name: (value * count, count) for name, value in sums.items()}
        return Terms(sum(sums.values()) * count, count, parts)

    def dry_run(self, modules: NamedModules, batch: Batch) -> Terms:
        """Run one step down to each backward, without the optimizers; gradients are left.

        Weights are marked as changed after each, as the optimizer does: a loss that was computed
        before and is yielded later fails here, too.
        """
        import torch

        def on_loss(name: str, loss: Any) -> None:
            weights = self.weights_of(name, modules)
            backward_into(loss, weights)
            with torch.no_grad():
                for weight in weights:
                    weight.mul_(1)

        with _kept_state(modules):
            return self.run(modules, batch, on_loss)

    def weights_of(self, name: str, modules: NamedModules) -> list[nn.Parameter]:
        """Return the trained weights of an optimizer."""
        held = (modules[module] for module in self.parts_of[name].modules)
        return [p for module in held for p in module.parameters() if p.requires_grad]

    @property
    def has_judge(self) -> bool:
        """Return whether a `loss_fn` says which weights are better."""
        return self.evaluated_by is not None

    def terms(self, outputs: Any, batch: Batch) -> Terms:
        """Return the losses of an evaluation; nothing of the modules is changed.

        Its random numbers are the same each time. Gradients can be computed inside of the step.
        """
        import torch

        if self.evaluated_by is not None:
            return self.evaluated_by.terms(outputs, batch)
        modules = NamedModules(getattr(outputs, "raw", outputs))
        with torch.enable_grad(), kept_randomness(0), _kept_state(modules):
            return self.run(modules, batch, lambda name, loss: None)

    @property
    def _number(self) -> int:
        return self.clock.step if self.clock is not None else 0

    def _read(self, item: Any) -> tuple[str, torch.Tensor]:
        """Return the name and the loss that were yielded; refuse anything else."""
        import torch

        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str):
            raise OwnLossError(f"training_step yielded a {type(item).__name__}.", FIX)
        name, loss = item
        if self.parts_of and name not in self.parts_of:
            names = ", ".join(self.parts_of)
            raise OwnLossError(
                f"training_step yielded a loss for {name!r}; the optimizers are {names}.", FIX
            )
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            shape = f" of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
            message = f"training_step yielded a {type(loss).__name__}{shape} for {name!r}."
            raise OwnLossError(message, FIX)
        return name, loss


def backward_into(loss: Any, weights: list[nn.Parameter]) -> None:
    """Add the gradients of a loss to these weights, and to no others."""
    import torch

    if not loss.requires_grad:
        raise OwnLossError(
            "training_step yielded a loss that does not depend on trained weights.",
            "Do not detach it, and compute it with gradients.",
        )
    try:
        torch.autograd.backward(loss, inputs=weights)
    except RuntimeError as error:
        what = describe_error(error)
        if "second time" in what:
            fix = "Detach what two losses share (x.detach()), or compute it again for each."
        elif "inplace" in what:
            fix = "Compute each loss after the yield before it: that one has changed the weights."
        else:
            raise
        message = f"The backward pass of a yielded loss failed: {what}"
        raise OwnLossError(message, fix) from error


@contextmanager
def _kept_state(modules: nn.Module) -> Iterator[None]:
    """Put back buffers and frozen weights, which the user's code may change in a step."""
    import torch

    frozen = [p for p in modules.parameters() if not p.requires_grad]
    kept = [(each, each.detach().clone()) for each in (*frozen, *modules.buffers())]
    try:
        yield
    finally:
        with torch.no_grad():
            for each, value in kept:
                each.copy_(value)
