"""The optimizer of a run: AdamW of surefit's own, or the one passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def make_optimizer(module: nn.Module, lr: float, weight_decay: float, passed: Any = None) -> Any:
    """Fused AdamW, without decay for biases and norms; or the one passed in."""
    import torch

    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if isinstance(passed, torch.optim.Optimizer):
        optimizer: Any = passed
    elif passed is not None:
        optimizer = passed(trained)
    else:
        groups = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        optimizer = torch.optim.AdamW(groups, lr=lr, fused=True)
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return optimizer
