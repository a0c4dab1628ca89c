"""The optimizer of a run: AdamW of surefit's own, or the one passed in."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from surefit.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


_FROZEN = "_surefit_frozen"
"""Marks a parameter that an earlier plan froze, so that the next one begins anew."""
SHOWN = 8


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern means a parameter: a part of its name between dots, a wildcard or a regex.

    >>> [matches(p, "bert.layer.1.bias") for p in ("layer.1", "*.bias", "bert.*[01].*", "ayer")]
    [True, True, True, False]
    """
    if f".{pattern}." in f".{name}." or fnmatchcase(name, pattern):
        return True
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return False


def find_parameters(module: nn.Module, pattern: str, key: str) -> dict[str, nn.Parameter]:
    """The parameters that a pattern of `key` means; tied ones are found by each of their names."""
    every = dict(module.named_parameters(remove_duplicate=False))
    found = {name: weight for name, weight in every.items() if matches(pattern, name)}
    if found:
        return found
    parts = dict.fromkeys(name.rpartition(".")[0] for name in every)
    ends = dict.fromkeys(part for name in every for part in name.split(".") if not part.isdigit())
    close = difflib.get_close_matches(pattern, [*ends, *parts, *every], n=3, cutoff=0.5)
    shown = close or list(every)[:SHOWN]
    raise UsageError(
        f"{key}: {pattern!r} matches no parameter of {type(module).__name__}.",
        f"{'Did you mean' if close else 'Its parameters are'}: {', '.join(shown)}"
        f"{'?' if close else ' …' if len(every) > SHOWN else '.'}",
    )


def freeze_parameters(module: nn.Module, patterns: Sequence[str], has_adapters: bool) -> None:
    """Let the parameters that the patterns mean take no gradient."""
    for weight in module.parameters():
        if getattr(weight, _FROZEN, False):
            weight.requires_grad_(True)
            delattr(weight, _FROZEN)
    if not patterns:
        return
    if has_adapters:
        raise UsageError(
            "freeze has no place beside LoRA, which freezes the model and trains its adapters.",
            "Leave freeze out, and name the layers to adapt in lora.targets.",
        )
    for pattern in patterns:
        for weight in find_parameters(module, pattern, "freeze").values():
            if weight.requires_grad:
                weight.requires_grad_(False)
                setattr(weight, _FROZEN, True)
    if not any(weight.requires_grad for weight in module.parameters()):
        raise UsageError(
            f"freeze ({', '.join(patterns)}) leaves no parameter of {type(module).__name__} to "
            "train.",
            "Leave out the pattern of the layers that are to be trained, such as the head.",
        )


def frozen_by_pattern(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that `freeze` has frozen."""
    return {name: p for name, p in module.named_parameters() if getattr(p, _FROZEN, False)}


def count_moving_statistics(module: nn.Module) -> int:
    """Batch norms whose weights are frozen; their running statistics still follow the batches."""
    from torch.nn.modules.batchnorm import _BatchNorm

    frozen = {id(weight) for weight in frozen_by_pattern(module).values()}
    layers = (layer for layer in module.modules() if isinstance(layer, _BatchNorm))
    return sum(id(layer.weight) in frozen for layer in layers if layer.track_running_stats)


def parameters_by_rate(
    module: nn.Module, lr: float, lr_by: Mapping[str, float]
) -> dict[float, list[nn.Parameter]]:
    """The trained parameters by their learning rate, those with the rate `lr` first.

    A parameter that several patterns mean has the rate of the last one.
    """
    rates: dict[int, float] = {}
    for pattern, rate in lr_by.items():
        for weight in find_parameters(module, pattern, "lr_by").values():
            rates[id(weight)] = rate
    found: dict[float, list[nn.Parameter]] = {lr: []}
    for weight in module.parameters():
        if weight.requires_grad:
            found.setdefault(rates.get(id(weight), lr), []).append(weight)
    return found


def check_rates(module: nn.Module, lr_by: Mapping[str, float], passed: Any) -> None:
    """Refuse rates that would have no effect."""
    if lr_by and passed is not None:
        raise UsageError(
            "lr_by has no effect with an optimizer of your own, which has its rates.",
            "Leave one of them out.",
        )
    for pattern in lr_by:
        found = find_parameters(module, pattern, "lr_by")
        if not any(weight.requires_grad for weight in found.values()):
            raise UsageError(
                f"lr_by: {pattern!r} matches only parameters that are frozen ({min(found)}).",
                "Leave the pattern out, or let its parameters be trained.",
            )


def describe_patterns(
    module: nn.Module, freeze: Sequence[str], lr_by: Mapping[str, float]
) -> dict[str, Any]:
    """What is frozen and what has a rate of its own, as the plan has it."""
    frozen = frozen_by_pattern(module)
    left = {id(w): n for n, w in module.named_parameters() if w.requires_grad}
    rates: dict[str, Any] = {}
    for pattern, rate in reversed([*lr_by.items()]):  # the last pattern has the parameter
        named = find_parameters(module, pattern, "lr_by").values()
        own = {id(weight): weight for weight in named if left.pop(id(weight), None) is not None}
        rates[pattern] = {"lr": rate, "parameters": sum(weight.numel() for weight in own.values())}
    about: dict[str, Any] = {}
    if freeze:
        about["frozen"] = {
            "patterns": list(freeze),
            "parameters": sum(weight.numel() for weight in frozen.values()),
            "tensors": len(frozen),
            "moving_batch_norms": count_moving_statistics(module),
        }
    return {**about, "lr_by": dict(reversed([*rates.items()]))} if lr_by else about


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
