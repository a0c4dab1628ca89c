"""The optimizer of a run: AdamW of surefit's own, or the one passed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from surefit.models.parameter_patterns import parameters_by_rate

if TYPE_CHECKING:
    from torch import nn


def make_optimizer(
    module: nn.Module,
    lr: float,
    weight_decay: float,
    passed: Any = None,
    lr_by: Mapping[str, float] | None = None,
) -> Any:
    """Fused AdamW, without decay for biases and norms; or the one passed in.

    Parameters that a pattern of `lr_by` means have its learning rate; the first group has `lr`.
    """
    import torch

    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if isinstance(passed, torch.optim.Optimizer):
        optimizer: Any = passed
    elif passed is not None:
        optimizer = passed(trained)
    else:
        groups = [
            {"params": [p for p in chosen if is_matrix == (p.ndim >= 2)], "lr": rate} | decay
            for rate, chosen in parameters_by_rate(module, lr, lr_by or {}).items()
            for is_matrix, decay in (
                (True, {"weight_decay": weight_decay}),
                (False, {"weight_decay": 0.0}),
            )
        ]
        groups = [group for group in groups if group["params"]]
        optimizer = torch.optim.AdamW(groups, lr=lr, fused=True)
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return optimizer
