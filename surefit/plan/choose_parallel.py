"""How several processes share a model: tried on a few micro-batches, and stored in the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surefit.batches.order import Batches
from surefit.errors import describe_error
from surefit.findings import Finding, note, rule
from surefit.inputs.store import Store
from surefit.models.call import Call, compute_losses
from surefit.models.sharding import find_units, meta_copy
from surefit.pipeline.open_pipeline import Choices, Parallel
from surefit.pipeline.pipeline import Pipeline
from surefit.plan.draft import Draft
from surefit.speed.numerics import preserved_state

if TYPE_CHECKING:
    from torch import nn

NOT_DIVISIBLE = rule(
    "SF440",
    "error",
    "this model cannot be divided over processes",
    why="parallel=fsdp gives each process a share of the rows of every parameter.",
    fix="Change the parameters that the message names, or train with parallel=ddp.",
)

PROBED_BATCHES, PROBED_ROWS = 3, 2
SHOWN = 3


def check_divided(d: Draft) -> None:
    """Refuse what cannot be trained with its parameters divided over processes."""
    check_divisible(d.pipeline.module)
    if d.config.compile == "on":
        raise NOT_DIVISIBLE.error(
            "compile=on and parallel=fsdp are both set; compiled layers of a divided model are not "
            "tested.",
            fix="Leave compile out, or train with parallel=ddp.",
        )


def choose_parallel(d: Draft) -> tuple[Choices, list[Finding]]:
    """Try what several processes need to know of the model; what is not known is the safe one."""
    module = d.pipeline.module
    names = {id(part): name for name, part in module.named_modules()}
    blocks = {names[id(unit)]: unit for unit in find_units(module)}
    if any(parameter.is_meta for parameter in module.parameters()):  # too large to try
        return Choices(parallel=Parallel()), []
    use = _try_batches(d.pipeline, d.train, d.batches, blocks)
    unused = bool(use.unused) or not _is_static(module)
    why = _why_whole(module, use) if blocks else ""
    found = []
    if why and d.config.parallel == "fsdp":
        found = [note(f"The model is gathered as a whole: {why}.")]
    return Choices(parallel=Parallel(unused, bool(why))), found


def _try_batches(
    pipeline: Pipeline, train: Store, batches: Batches, blocks: Mapping[str, nn.Module]
) -> ParameterUse:
    """Forward and backward on the first micro-batches, in training mode."""
    first = batches.micro_batches(0, 0)[:PROBED_BATCHES]
    tried = [pipeline.batch(train, rows[:PROBED_ROWS]) for rows in first]

    def loss(batch: Any) -> Any:
        total, _, added, _ = compute_losses(pipeline.call, pipeline.loss, pipeline.module, batch)
        return total if added is None else total + added

    with preserved_state(pipeline.module):
        pipeline.module.train()
        return find_use(pipeline.module, blocks, tried, loss)


def _is_static(module: nn.Module) -> bool:
    """Return whether all micro-batches are known to use the same parameters.

    Only known of classes of transformers, peft and torch without experts, dropped layers and
    learned masks; code of the user's own may do anything.
    """
    known = ("transformers.", "peft.", "torch.nn.", "surefit.models.")
    for name, part in module.named_modules():
        kind = type(part).__module__
        if not kind.startswith(known) or kind.startswith("transformers_modules"):
            return False
        if "expert" in name.rsplit(".", 1)[-1] or _drops_layers(part):
            return False
    return not any("mask" in name for name, _ in module.named_parameters())


def _drops_layers(module: nn.Module) -> bool:
    """Whether whole layers are left out at random, by an attribute or by the model's config."""
    config = getattr(module, "config", None)
    known = {**vars(module), **(vars(config) if hasattr(config, "to_dict") else {})}
    rates = (v for n, v in known.items() if "layerdrop" in n.replace("_", "").lower())
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def _why_whole(module: nn.Module, use: ParameterUse) -> str:
    """Why blocks cannot be gathered one at a time; empty where they can."""
    if use.outside:
        shown = ", ".join(sorted(use.outside)[:SHOWN])
        return f"parameters of {shown} are read outside of its forward"
    if use.uneven:
        return "not every forward pass calls the same blocks"
    if any(_drops_layers(part) for part in module.modules()):
        return "the model leaves out layers at random (layerdrop)"
    return ""


def check_divisible(module: nn.Module) -> None:
    """Refuse a model with parameters that torch's fully_shard cannot divide."""
    scalars = [name for name, p in module.named_parameters() if p.ndim == 0]
    if scalars:
        raise NOT_DIVISIBLE.error(
            f"{_list(scalars)} of shape () and cannot be divided.",
            fix="Give it the shape (1,): torch.ones(1); or train with parallel=ddp.",
        )
    whole = [n for n, p in module.named_parameters() if not p.is_floating_point()]
    if whole:
        dtype = module.get_parameter(whole[0]).dtype
        fix = "Use floating point parameters, or train with parallel=ddp."
        if any(hasattr(p, "quant_state") for p in module.parameters()):
            fix = "Leave lora.quantize out, or train with parallel=ddp."
        raise NOT_DIVISIBLE.error(f"{_list(whole)} {dtype}, and cannot be divided.", fix=fix)
    try:
        meta_copy(module, Call({}))
    except Exception as error:  # the module's own code may refuse in any way
        raise NOT_DIVISIBLE.error(
            f"The model cannot be copied: {describe_error(error)[:200]}.",
            fix="Let it hold only parameters and buffers of its own; instead of "
            "torch.nn.utils.weight_norm, use torch.nn.utils.parametrizations.weight_norm. Or "
            "train with parallel=ddp.",
        ) from None
    dtypes = Counter(p.dtype for p in module.parameters() if p.requires_grad)
    if len(dtypes) > 1:
        most = dtypes.most_common(1)[0][0]
        others = [n for n, p in module.named_parameters() if p.requires_grad and p.dtype != most]
        raise NOT_DIVISIBLE.error(
            f"Trainable parameters have several dtypes: {_list(others)} not {most}.",
            fix="Use one dtype for all trainable parameters, or train with parallel=ddp.",
        )


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN]) + (" …" if len(names) > SHOWN else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


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
