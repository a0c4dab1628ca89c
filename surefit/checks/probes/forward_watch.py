"""What happens inside one forward pass: reshapes, changed inputs, weights that nobody owns."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.checks.module_checks import UNREGISTERED_LAYERS, find_strays
from surefit.findings import Finding, Place, rule

if TYPE_CHECKING:
    import torch
    from torch import nn

AXES_EXCHANGED = rule(
    "SF736",
    "warning",
    "reshape where axes are to be exchanged",
    why="reshape and view keep the order of the numbers: giving them the sizes in another order "
    "tears rows, steps or channels apart and mixes them.",
    fix="Exchange axes with transpose(1, 2) or permute.",
    accept="The values are used in the order that the reshape gives them.",
)

INPUT_CHANGED = rule(
    "SF702",
    "warning",
    "forward changes its inputs in place",
    why="A second pass over the same batch then reads other values: the loss, the metrics and the "
    "gradients of a step do not belong to the data.",
    fix="Leave the inputs as they are: x = x + 1 rather than x += 1, masked_fill rather than "
    "masked_fill_; or begin with x = x.clone().",
    accept="The module gets to change each batch.",
)

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
OWN_PACKAGE = str(Path(__file__).parents[2])


def is_own_code(file: str) -> bool:
    """Return whether a file is no library's."""
    return not file.startswith((*LIBRARIES, OWN_PACKAGE, "<"))


@dataclass
class Watch:
    """One forward pass, watched: use it as a context around the call."""

    batch: Mapping[str, Any]
    exchanged: dict[tuple[str, int], tuple[list[int], list[int]]] = field(default_factory=dict)
    """The lines with a reshape that gives sizes in another order: before and after."""
    changed: list[str] = field(default_factory=list)

    def __enter__(self) -> Watch:
        import torch
        from torch.overrides import TorchFunctionMode

        shapes = {torch.reshape, torch.Tensor.reshape, torch.Tensor.view}
        watch = self

        class Reshapes(TorchFunctionMode):
            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                made = func(*args, **(kwargs or {}))
                if func in shapes:
                    watch.look(args[0], made)
                return made

        self._kept = {n: v.clone() for n, v in self.batch.items() if hasattr(v, "clone")}
        mode: Any = Reshapes()
        self._mode = mode
        mode.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._mode.__exit__(*raised)
        for name, before in self._kept.items():
            now = self.batch[name]
            if now.shape != before.shape or bool(((now != before) & (before == before)).any()):
                self.changed.append(name)

    def look(self, given: torch.Tensor, made: torch.Tensor) -> None:
        """Keep a reshape whose sizes are those before in another order, but for sizes of 1."""
        before, after = list(given.shape), list(made.shape)
        moved = [size for size in before if size > 1], [size for size in after if size > 1]
        if moved[0] == moved[1] or sorted(moved[0]) != sorted(moved[1]):
            return
        frame = sys._getframe(2)  # of the line that calls reshape
        if is_own_code(frame.f_code.co_filename):
            self.exchanged[frame.f_code.co_filename, frame.f_lineno] = before, after


def check_watch(watch: Watch, module: nn.Module, total: torch.Tensor) -> Iterator[Finding]:
    """Yield what the watched pass shows; `total` is the loss that it led to."""
    for (file, line), (before, after) in [*watch.exchanged.items()][:1]:
        code = linecache.getline(file, line).strip()
        message = f"{file}:{line}: {code!r} makes {after} of {before}."
        place: Place = {"file": file, "line": line}
        yield AXES_EXCHANGED.finding(message, place)
    if watch.changed:
        message = f"After forward, {', '.join(watch.changed)} of the batch held other values."
        yield INPUT_CHANGED.finding(message, column=watch.changed[0])
    own = {id(each) for each in module.parameters()} | find_strays(module).keys()
    made = [leaf for leaf in _leaves(total) if id(leaf) not in own]
    if made:
        sizes = ", ".join(str(list(leaf.shape)) for leaf in made[:3])
        yield UNREGISTERED_LAYERS.finding(
            f"The loss depends on {len(made)} weights that are not part of "
            f"{type(module).__name__}, of the shapes {sizes}: they are made anew in each forward, "
            "or belong to another module.",
            fix="Make layers and parameters in __init__, as attributes of the module.",
        )


def _leaves(total: torch.Tensor) -> list[Any]:
    """Return the tensors that a gradient would be computed for."""
    found, seen, left = [], set(), [total.grad_fn]
    while left:
        node: Any = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        left += [before for before, _ in node.next_functions]
    return found
