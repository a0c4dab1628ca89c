"""What LoRA is meant to train is trained: checked before step 1, and again after two steps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from surefit.errors import RunFailedError
from surefit.models.shard_module import own_shard
from surefit.processes import gather
from surefit.run.events import Event, Observer
from surefit.training.after_steps import after_steps

if TYPE_CHECKING:
    import torch
    from torch import nn

STEPS = 2
"""An adapter is a product of two matrices, one of which starts at zero: the other only moves in
the second step, when the first one is no longer zero."""
SHOWN = 5


def check_trained(module: nn.Module, meant: Collection[str]) -> None:
    """Require that exactly the named parameters take gradients."""
    taking = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    frozen, extra = sorted(set(meant) - taking), sorted(taking - set(meant))
    if frozen:
        raise RunFailedError(
            f"{len(frozen)} weights that are to be trained take no gradient: {_shown(frozen)}.",
            "Let nothing change requires_grad between the plan and the run.",
        )
    if extra:
        raise RunFailedError(
            f"{len(extra)} weights that are to stay frozen take gradients: {_shown(extra)}.",
            "Let nothing change requires_grad between the plan and the run.",
        )


def watch_moves(
    module: nn.Module, meant: Collection[str], moves_nothing: Callable[[], bool], emit: Observer
) -> Observer:
    """`emit`, which also requires that two steps with a rate above zero move each parameter."""
    named = {name: p for name, p in module.named_parameters() if name in meant}
    before: dict[str, torch.Tensor] = {n: own_shard(p.detach()).clone() for n, p in named.items()}

    def require_moves(event: Event) -> None:
        moved = {n for n, start in before.items() if not start.equal(own_shard(named[n]))}
        still = sorted(before.keys() - set().union(*gather(moved)))
        before.clear()
        if still:
            raise RunFailedError(
                f"After {STEPS} steps {len(still)} of {len(named)} weights that are to be "
                f"trained have not moved: {_shown(still)}.",
                "Raise --lr, use precision=fp32, or check the optimizer's parameters.",
            )

    return after_steps(STEPS, moves_nothing, emit, require_moves)


def _shown(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (" …" if len(names) > SHOWN else "")
