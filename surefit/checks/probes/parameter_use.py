"""Which parameters a few real micro-batches use, and from where.

Processes that train together meet in every backward pass, and in every forward pass if they divide
the model. What differs from one micro-batch to the next would let them wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    for seed, batch in enumerate(batches):
        torch.manual_seed(seed)
        reached: set[str] = set()
        with _noting_gradients(module, reached):
            with _noting_blocks(blocks, use.outside) as order:
                total = loss(batch)
            if total.requires_grad:
                total.backward()
        use.unused |= trained - reached
        orders.append(list(order))
    use.uneven = any(order != orders[0] for order in orders)
    return use


@contextmanager
def _noting_gradients(module: nn.Module, reached: set[str]) -> Iterator[None]:
    """Note the parameters that get a gradient, which is dropped at once."""
    with ExitStack() as hooks:
        weights: list[tuple[str, Any]] = list(module.named_parameters())
        for name, parameter in weights:
            if parameter.requires_grad:

                def note(weight: Any, name: str = name) -> None:
                    reached.add(name)
                    weight.grad = None

                hook = parameter.register_post_accumulate_grad_hook(note)
                hooks.callback(hook.remove)
        yield


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
