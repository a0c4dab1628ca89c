"""Finds scores that have been through a sigmoid: they stay between 0 and 1, whatever the weights.

Fresh modules often return small positive numbers, so values between 0 and 1 alone prove nothing.
Only if they stay there while noise on the weights grows are they probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from surefit.checks.probes.perturbed_weights import perturb, perturbed_copy
from surefit.kernels.preserve_state import preserved_state
from surefit.models.call import Call

if TYPE_CHECKING:
    import torch
    from torch import nn

TRIES = 4
"""How often noise is added, and then how often the weights are multiplied."""
GROWTH = 8.0
MAX_COPIED_WEIGHTS = 200_000_000
"""Larger modules are not copied to look at them."""

Batch = Mapping[str, Any]
Scores = Callable[[Any], "torch.Tensor"]


def stays_in_unit(
    module: nn.Module, call: Call, batch: Batch, scores: Scores, outputs: Any
) -> bool:
    """Whether the scores of the outputs are between 0 and 1, and for other weights, too."""
    if not _in_unit(scores(outputs)):
        return False
    if sum(weight.numel() for weight in module.parameters()) > MAX_COPIED_WEIGHTS:
        return False
    with perturbed_copy(module, call) as copied:
        if copied is None:
            return False
        for seed in range(1, TRIES + 1):
            if not _in_unit(_run(*copied, batch, scores)):
                return False
            perturb(copied[0], seed)  # on top of the noise before it
        found = _run(*copied, batch, scores)
        if found is None or not bool((found > 0).any()):  # as of a ReLU that is off
            return False
        for _ in range(TRIES):
            _multiply(copied[0], GROWTH)
            found = _run(*copied, batch, scores)
            if found is None or not bool(found.isfinite().all()):  # too large for the layers
                break
            if not _in_unit(found):
                return False
    return True


def _multiply(module: nn.Module, factor: float) -> None:
    import torch

    with torch.no_grad():
        for weight in module.parameters():
            if weight.is_floating_point():
                weight.mul_(factor)


def _in_unit(found: torch.Tensor | None) -> bool:
    return found is not None and bool(((found >= 0) & (found <= 1)).all())


def _run(module: Any, call: Any, batch: Batch, scores: Scores) -> torch.Tensor | None:
    import torch

    with preserved_state(module), torch.no_grad():
        try:
            return scores(call(module, batch))
        except Exception:  # with other weights, the module's own code may fail
            return None
