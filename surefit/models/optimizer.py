"""The optimizer of a run: one of OPTIMIZERS, or the one passed in."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from surefit.core.patterns import matching
from surefit.errors import UsageError
from surefit.models.sharding import own_shard, reshard


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer by name: how it is made, and the size of its state."""

    make: Callable[[list[dict[str, Any]], float, frozenset[int]], Any]
    """Makes it from groups of parameters, each with its rate and weight decay, the peak rate, and
    the ids of hidden matrices."""
    share: Callable[[torch.Tensor, bool], float]
    """Bytes of its state per byte of a trained weight, which may be a hidden matrix; memory and
    disk are planned by it."""
    shards: bool = True
    """Whether each process can keep the state of its shards (parallel=fsdp)."""

    def state_bytes(self, module: nn.Module, size: Callable[[torch.Tensor], int]) -> int:
        """Return the bytes of the state of all trained weights, `size` being that of a weight."""
        hidden = hidden_matrices(module)
        trained = (weight for weight in module.parameters() if weight.requires_grad)
        return round(sum(self.share(w, id(w) in hidden) * size(w) for w in trained))


class Lion(torch.optim.Optimizer):
    """Lion (arXiv:2302.06675): steps by the sign of a momentum, which is all of its state."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step all weights that have a gradient."""
        for group in self.param_groups:
            (fast, slow), lr = group["betas"], group["lr"]
            for weight in (each for each in group["params"] if each.grad is not None):
                state = self.state[weight]
                if not state:
                    state["exp_avg"] = torch.zeros_like(weight)
                momentum = state["exp_avg"]
                weight.mul_(1 - lr * group["weight_decay"])
                weight.add_(momentum.lerp(weight.grad, 1 - fast).sign_(), alpha=-lr)
                momentum.lerp_(weight.grad, 1 - slow)


class JointOptimizer(torch.optim.Optimizer):
    """Several optimizers that are saved and stepped as one; each group names its `part`."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        for number, part in enumerate(parts):
            for group in part.param_groups:
                group["part"] = number
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let the parts use the groups and the state of this one."""
        for number, part in enumerate(self.parts):
            part.state = self.state
            part.param_groups = [each for each in self.param_groups if each["part"] == number]

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state of all parts."""
        super().load_state_dict(state_dict)
        self._share()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step each part."""
        for part in self.parts:
            part.step()


def _adamw(groups: list[dict[str, Any]], lr: float, hidden: frozenset[int]) -> Any:
    return torch.optim.AdamW(groups, lr=lr, fused=True)


def _muon(groups: list[dict[str, Any]], lr: float, hidden: frozenset[int]) -> Any:
    """Make Muon for hidden matrices, at rates that fit AdamW, and AdamW for all other weights."""
    matrices, others = (
        [
            {**group, "params": chosen}
            for group in groups
            if (chosen := [p for p in group["params"] if (id(p) in hidden) == is_hidden])
        ]
        for is_hidden in (True, False)
    )
    if not matrices:
        return _adamw(others, lr, hidden)
    muon = torch.optim.Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw")
    return JointOptimizer(muon, _adamw(others, lr, hidden)) if others else muon


def _adamw_8bit(groups: list[dict[str, Any]], lr: float, hidden: frozenset[int]) -> Any:
    optimizer = _import("bitsandbytes", "4bit").optim.AdamW8bit(groups, lr=lr)
    # Its own hides the tensors in a dict for FSDP; checkpoints store tensors by their names.
    optimizer.state_dict = partial(torch.optim.Optimizer.state_dict, optimizer)
    return optimizer


def _import(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise UsageError(
            f"The optimizer needs the package {package}, which is not installed.",
            f"Install it: pip install 'surefit[{extra}]'.",
        ) from None


def _factored(weight: torch.Tensor, is_hidden: bool) -> float:
    """Adafactor keeps a value per row and column of a matrix, and one per value of a vector."""
    return 1.0 if weight.ndim < 2 else 1 / weight.shape[-1] + 1 / weight.shape[-2]


OPTIMIZERS = {
    "adamw": OptimizerKind(_adamw, lambda weight, is_hidden: 2.0),
    "adafactor": OptimizerKind(
        lambda groups, lr, hidden: torch.optim.Adafactor(groups, lr=lr), _factored, shards=False
    ),
    "sgd": OptimizerKind(
        lambda groups, lr, hidden: torch.optim.SGD(groups, lr=lr, momentum=0.9, fused=True),
        lambda weight, is_hidden: 1.0,
    ),
    "muon": OptimizerKind(_muon, lambda weight, is_hidden: 1.0 if is_hidden else 2.0, shards=False),
    "lion": OptimizerKind(
        lambda groups, lr, hidden: Lion(groups, lr), lambda weight, is_hidden: 1.0
    ),
    "adamw-8bit": OptimizerKind(  # bitsandbytes keeps the state of small weights in float32
        _adamw_8bit, lambda weight, is_hidden: 2.0 if weight.numel() < 4096 else 0.51, shards=False
    ),
}
DEFAULT = OPTIMIZERS["adamw"]
"""The optimizer of a run; the size of its state is assumed of one that is passed in, too."""


def find_kind(name: str) -> OptimizerKind:
    """Return an optimizer by its name: one of OPTIMIZERS, or of the package pytorch-optimizer."""
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    close = difflib.get_close_matches(name, OPTIMIZERS, n=1)
    if importlib.util.find_spec("pytorch_optimizer") is None or close:
        raise UsageError(
            f"optimizer: {name!r} is not one of {', '.join(OPTIMIZERS)}.",
            f"Use {close[0]}."
            if close
            else "Correct the name, or pip install 'surefit[optimizers]' for more of them.",
        )
    try:
        make = importlib.import_module("pytorch_optimizer").load_optimizer(name)
    except NotImplementedError as error:
        raise UsageError(
            f"optimizer: {name!r} is not one of {', '.join(OPTIMIZERS)}, nor of pytorch-optimizer.",
            "`pytorch_optimizer.get_supported_optimizers()` lists the names.",
        ) from error
    return OptimizerKind(
        lambda groups, lr, hidden: make(groups, lr=lr), DEFAULT.share, shards=False
    )


def hidden_matrices(module: nn.Module) -> frozenset[int]:
    """Return the ids of the matrices between a model's embeddings and its output."""
    linear = [layer.weight for layer in module.modules() if isinstance(layer, nn.Linear)]
    ends = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Embedding)}
    return frozenset(id(weight) for weight in linear[:-1]) - ends


@dataclass(frozen=True)
class OptimizerSettings:
    """What the optimizer of a run is made from; the loop and every trial make it from here."""

    lr: float
    """The peak learning rate."""
    weight_decay: float = 0.0
    """That of matrices; biases and norms have none."""
    lr_by: Mapping[str, float] = field(default_factory=dict)
    """The rates of parameters by patterns of their names."""
    kind: OptimizerKind = DEFAULT
    passed: Any = None
    """The user's own optimizer, or the function that makes it."""
    ema: float | None = None
    """The decay of the average of the weights that the optimizer keeps in its state, if it does."""

    @property
    def keeps(self) -> OptimizerKind:
        """Return the kind, with the size of all that its state holds."""
        if self.ema is None:
            return self.kind
        share = self.kind.share
        return replace(self.kind, share=lambda weight, is_hidden: share(weight, is_hidden) + 1)

    def scaled(self, lr: float) -> OptimizerSettings:
        """Return the settings with the peak rate `lr`, and the rates by pattern changed alike."""
        lr_by = {name: rate * lr / self.lr for name, rate in self.lr_by.items()}
        return replace(self, lr=lr, lr_by=lr_by)

    def make(self, module: nn.Module) -> Any:
        """Make the optimizer, or return the one passed in.

        Parameters that a pattern of `lr_by` means have its learning rate; the first group has `lr`.
        """
        if isinstance(self.passed, torch.optim.Optimizer):
            optimizer: Any = self.passed
        elif self.passed is not None:
            optimizer = self.passed([each for each in module.parameters() if each.requires_grad])
        else:
            groups = [
                {"params": [p for p in chosen if is_matrix == (p.ndim >= 2)], "lr": rate} | decay
                for rate, chosen in parameters_by_rate(module, self.lr, self.lr_by).items()
                for is_matrix, decay in (
                    (True, {"weight_decay": self.weight_decay}),
                    (False, {"weight_decay": 0.0}),
                )
            ]
            used = [group for group in groups if group["params"]]
            optimizer = self.kind.make(used, self.lr, hidden_matrices(module))
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        if self.ema is not None and not hasattr(optimizer, AVERAGE):
            setattr(optimizer, AVERAGE, self.ema)
            optimizer.register_step_post_hook(lambda made, *_: _move_average(made, 1 - self.ema))
        return optimizer


AVERAGE = "ema"
"""The slot of an optimizer's state with the average of a weight."""


@torch.no_grad()
def _move_average(optimizer: Any, share: float) -> None:
    """Move the average of each weight with a gradient towards it; it begins as the weight."""
    averages, weights = [], []
    for weight in (each for group in optimizer.param_groups for each in group["params"]):
        if weight.grad is None:
            continue
        state = optimizer.state[weight]
        if AVERAGE in state:
            averages.append(own_shard(state[AVERAGE]))
            weights.append(own_shard(weight.detach()))
        else:
            state[AVERAGE] = weight.detach().clone()
    if averages:
        torch._foreach_lerp_(averages, weights, share)


@contextmanager
def averaged_weights(module: nn.Module, optimizer: Any) -> Iterator[None]:
    """Give the weights the values of their averages while the block runs."""
    held = [(w, state[AVERAGE]) for w, state in optimizer.state.items() if AVERAGE in state]
    if not held:
        yield
        return
    before = [weight.detach().clone() for weight, _ in held]
    _assign(module, held)
    try:
        yield
    finally:
        _assign(module, [(weight, kept) for (weight, _), kept in zip(held, before, strict=True)])


@torch.no_grad()
def _assign(module: nn.Module, values: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    reshard(module)
    for weight, value in values:
        weight.copy_(value)


_FROZEN = "_surefit_frozen"
"""Marks a parameter that an earlier plan froze, so that the next one begins anew."""
SHOWN = 8


def named_by(pattern: str, names: Iterable[str], key: str) -> frozenset[str]:
    """Return the parameters that a pattern of `key` means: a part of their name between dots, a
    wildcard or a regex.

    >>> [bool(named_by(p, ["bert.layer.1.bias"], "freeze")) for p in ("layer.1", "*.bias", "ayer")]
    [True, True, False]
    """
    every = [*names]
    plain = (n for n in every if f".{pattern}." in f".{n}." or fnmatchcase(n, pattern))
    return frozenset(plain) | matching(pattern, every, key)


def find_parameters(module: nn.Module, pattern: str, key: str) -> dict[str, nn.Parameter]:
    """The parameters that a pattern of `key` means; tied ones are found by each of their names."""
    every = dict(module.named_parameters(remove_duplicate=False))
    meant = named_by(pattern, every, key)
    if meant:
        return {name: weight for name, weight in every.items() if name in meant}
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
    """Return the parameters that `freeze` has frozen."""
    return {name: p for name, p in module.named_parameters() if getattr(p, _FROZEN, False)}


def count_moving_statistics(module: nn.Module) -> int:
    """Batch norms whose weights are frozen; their running statistics still follow the batches."""
    frozen = {id(weight) for weight in frozen_by_pattern(module).values()}
    layers = (layer for layer in module.modules() if isinstance(layer, _BatchNorm))
    return sum(id(layer.weight) in frozen for layer in layers if layer.track_running_stats)


def parameters_by_rate(
    module: nn.Module, lr: float, lr_by: Mapping[str, float]
) -> dict[float, list[nn.Parameter]]:
    """Return the trained parameters by their learning rate, those with the rate `lr` first.

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
    """Return what is frozen and what has a rate of its own, as the plan has it."""
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
