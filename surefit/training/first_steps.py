"""After the first steps of a run: gradients are not all zero, and weights have moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from surefit.errors import RunFailedError
from surefit.findings import rule
from surefit.models.shard_module import own_shard
from surefit.processes import gather
from surefit.run.events import Event, Observer
from surefit.training.after_steps import after_steps
from surefit.training.run_warnings import warning_event

if TYPE_CHECKING:
    import torch
    from torch import nn

WEIGHTS_DO_NOT_MOVE = rule(
    "SF743",
    "warning",
    "weights that get a gradient do not move",
    why=(
        "The optimizer does not hold them, or its steps are smaller than the precision of the "
        "weights."
    ),
    fix="Make the optimizer from all trainable parameters, or raise --lr.",
)

STEPS = 3
"""Steps with a learning rate above 0 after which weights are looked at."""
SHOWN = 5
CHUNK = 1 << 20
"""Values of a weight that are fingerprinted at once."""


class _Seen:
    """Which weights had a gradient, and their fingerprints before the first step."""

    def __init__(self, module: nn.Module) -> None:
        self.named = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.before: dict[str, int] = {}
        self.reached: set[str] = set()

    def look(self, *_: Any) -> None:
        """Called by the optimizer before each of the first steps."""
        self.before = self.before or {n: fingerprint(p) for n, p in self.named.items()}
        for name, weight in self.named.items():
            if (
                name not in self.reached
                and weight.grad is not None
                and own_shard(weight.grad).any()
            ):
                self.reached.add(name)

    def conclude(self) -> list[str]:
        """Weights with a gradient that are as they were; those of all processes, all call it."""
        moved = {n for n in self.named if fingerprint(self.named[n]) != self.before[n]}
        told = gather((self.reached, moved))
        self.reached = set().union(*(reached for reached, _ in told))
        return sorted(self.reached.difference(*(moved for _, moved in told)))


def watch_first_steps(
    module: nn.Module, optimizer: Any, moves_nothing: Callable[[], bool], emit: Observer
) -> Observer:
    """`emit`, which stops a run that cannot learn, and warns of weights that do not move."""
    register = getattr(optimizer, "register_step_pre_hook", None)
    if register is None:  # an optimizer that is not torch's
        return emit
    seen = _Seen(module)
    hook = register(seen.look)

    def conclude(event: Event) -> None:
        hook.remove()
        _conclude(seen, event, emit)

    return after_steps(STEPS, moves_nothing, emit, conclude)


def _conclude(seen: _Seen, event: Event, emit: Observer) -> None:
    still = seen.conclude()
    if not seen.reached:
        raise RunFailedError(
            f"The gradients of all {len(seen.named)} trainable weights were 0 in the first {STEPS} "
            "steps, so nothing can be learned.",
            "Check that the loss depends on the model's outputs and the outputs on its weights.",
        )
    if len(still) == len(seen.reached):
        raise RunFailedError(
            f"No weight has moved in the first {STEPS} steps (lr {event['lr']:.3g}).",
            "Raise --lr, use precision=fp32, or check the optimizer's parameters.",
        )
    if still:
        shown = ", ".join(still[:SHOWN]) + (" …" if len(still) > SHOWN else "")
        message = f"{len(still)} of {len(seen.named)} trainable weights get a gradient and have "
        message += f"not moved in {STEPS} steps: {shown}."
        found = WEIGHTS_DO_NOT_MOVE.finding(message)
        emit(warning_event(found, event["step"], event["epoch"]))


def fingerprint(weight: torch.Tensor) -> int:
    """A number that changes with any bit of the weight, but for chance.

    Each bit counts by its place: the two biases of a softmax move by the same amount, one up and
    one down.

    >>> import torch
    >>> fingerprint(torch.tensor([1.0, 1.5])) == fingerprint(torch.tensor([1.5, 1.0]))
    False
    """
    import torch

    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    own = own_shard(weight.detach())
    flat = own.view(whole[own.dtype.itemsize]).reshape(-1)
    places = torch.arange(1, 2 * min(len(flat), CHUNK) + 1, 2, device=flat.device)
    parts = [flat[start : start + CHUNK] for start in range(0, len(flat), CHUNK)]
    sums = [(part * places[: len(part)]).sum() for part in parts]
    return sum(n * int(part) for n, part in enumerate(sums, start=1))
