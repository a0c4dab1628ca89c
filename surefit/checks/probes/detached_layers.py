"""Layers that the outputs depend on and that get no gradient: something detaches the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefit.checks.probes.probe_batch import differ, tolerance
from surefit.findings import Finding, rule
from surefit.models.call import Call

if TYPE_CHECKING:
    from torch import nn

DETACHED_LAYERS = rule(
    "SF734",
    "warning",
    "layers that are used get no gradient",
    why=(
        "The outputs depend on these weights, but the loss does not reach them: they stay as they "
        "are. detach(), .data, no_grad() or a conversion to NumPy between them and the loss does "
        "that."
    ),
    fix="Remove what detaches them; to keep them as they are, set requires_grad_(False).",
    accept="The layers are left as they are.",
)

MAX_WEIGHTS = 50_000_000
"""More weights than this are not tried."""


def check_detached(
    module: nn.Module, call: Call, batch: Mapping[str, Any], lost: Sequence[str]
) -> list[Finding]:
    """A finding for those of the parameters without a gradient that change the outputs."""
    import torch

    named = {name: module.get_parameter(name) for name in lost}
    if sum(weight.numel() for weight in named.values()) > MAX_WEIGHTS:
        return []
    kept = {name: weight.detach().clone() for name, weight in named.items()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        before = getattr(call(module, batch), "logits", None)
        if before is None:
            return []
        try:
            for weight in named.values():
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(noise.to(weight.device, weight.dtype))
            after = call(module, batch).logits
        finally:
            for name, weight in named.items():
                weight.copy_(kept[name])
    if after.shape != before.shape or differ(before, after) <= tolerance(before):
        return []
    shown = ", ".join(lost[:3]) + (" …" if len(lost) > 3 else "")
    what = "1 parameter changes" if len(lost) == 1 else f"{len(lost)} parameters change"
    message = f"{what} the outputs, but no gradient is computed: {shown}."
    return [DETACHED_LAYERS.finding(message)]
