"""Which parameters get a gradient, and why others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surefit.checks.probes.model_profile import differ, tolerance
from surefit.findings import Finding, rule
from surefit.models.call import Call
from surefit.models.module_outputs import Key, Picked

if TYPE_CHECKING:
    from torch import nn


Loss = Callable[[Any], Any]
"""The summed loss of a batch, with its graph."""


@dataclass
class ParameterUse:
    """What the passes have shown."""

    unused: set[str] = field(default_factory=set)
    """Trainable parameters that got no gradient in some pass."""
    outside: set[str] = field(default_factory=set)
    """Blocks with a parameter that is read while the block's forward does not run."""
    uneven: bool = False
    """Whether blocks are not called in the same order in every pass."""


def find_use(
    module: nn.Module, blocks: Mapping[str, nn.Module], batches: Iterable[Any], loss: Loss
) -> ParameterUse:
    """Run forward and backward on each batch in training mode; no gradient is kept."""
    import torch

    use, orders = ParameterUse(), []
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for seed, batch in enumerate(batches):
        torch.manual_seed(seed)
        with _noting_blocks(blocks, use.outside) as order:
            total = loss(batch)
        slopes: Sequence[Any] = [None] * len(trained)
        if total.requires_grad and trained:
            slopes = torch.autograd.grad(total, [*trained.values()], allow_unused=True)
        use.unused |= {name for name, slope in zip(trained, slopes, strict=True) if slope is None}
        orders.append(list(order))
    use.uneven = any(order != orders[0] for order in orders)
    return use


@contextmanager
def _noting_blocks(blocks: Mapping[str, nn.Module], outside: set[str]) -> Iterator[list[str]]:
    """The blocks in the order of their calls; notes those whose parameters are read outside."""
    from torch import Tensor
    from torch.overrides import TorchFunctionMode

    running: list[str] = []
    order: list[str] = []
    owners = {id(p): name for name, block in blocks.items() for p in block.parameters()}

    class Reads(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            parts = found if isinstance(found, tuple | list) else (found,)
            if any(isinstance(part, Tensor) for part in parts):  # else only its shape was read
                for value in _flat((*args, *(kwargs or {}).values())):
                    owner = owners.get(id(value))
                    if owner is not None and owner not in running:
                        outside.add(owner)
            return found

    with ExitStack() as hooks:
        for name, block in blocks.items():

            def enter(*_: Any, name: str = name) -> None:
                order.append(name)
                running.append(name)

            def leave(*_: Any) -> None:
                running.pop()

            hooks.callback(block.register_forward_pre_hook(enter).remove)
            hooks.callback(block.register_forward_hook(leave, always_call=True).remove)
        with Reads():
            yield order


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        else:
            yield value


OTHER_OUTPUT_TRAINED = rule(
    "SF752",
    "error",
    "layers are not trained because another output is used",
    why=(
        "forward returns several outputs, and none is named by outputs. The loss is computed from "
        "one of them, so layers that only another one depends on stay as they are."
    ),
    fix="Name the output that the loss, metrics and predictions are computed from: --set outputs=1 "
    "(a number from 0 on, or a key), or outputs=1 from Python.",
)

SEVERAL_OUTPUTS_FIT = rule(
    "SF753",
    "warning",
    "several outputs fit the task",
    why="They have the same shape, so the output that is meant is a guess.",
    fix="Name the output that the loss, metrics and predictions are computed from: --set outputs=0 "
    "(a number from 0 on, or a key), or outputs=0 from Python.",
    accept="The first of them is used.",
)


def check_choice(picked: Picked, unused: Mapping[Key, Sequence[str]]) -> list[Finding]:
    """Judge an output that was picked by its size alone.

    `unused` are trainable parameters without a gradient that other outputs depend on, by output.
    """
    if picked.how != "size" or picked.key is None:
        return []
    used = picked.tensors[picked.key]
    if unused:
        key, names = max(unused.items(), key=lambda item: len(item[1]))
        shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        message = (
            f"output {picked.key!r} is used, and {shown} get no gradient: "
            f"output {key!r} depends on them. forward returns {_list(picked)}."
        )
        fix = (
            f"Name the output that is meant: --set outputs={key}, or outputs={key!r} from Python. "
            f"To train without these layers: outputs={picked.key}."
        )
        return [OTHER_OUTPUT_TRAINED.finding(message, fix=fix)]
    alike = [key for key, value in picked.others.items() if value.shape == used.shape]
    if not alike:
        return []
    message = (
        f"output {picked.key!r} is used, and {', '.join(f'output {key!r}' for key in alike)} "
        f"would fit as well. forward returns {_list(picked)}."
    )
    fix = f"Name the output that is meant: --set outputs={picked.key}, or outputs={alike[0]}."
    return [SEVERAL_OUTPUTS_FIT.finding(message, fix=fix)]


def _list(picked: Picked) -> str:
    return ", ".join(f"{key!r} {list(value.shape)}" for key, value in picked.tensors.items())


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
