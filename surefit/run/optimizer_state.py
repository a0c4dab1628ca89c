"""The state of an optimizer as named tensors and JSON, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer


def flatten_state(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Optimizer state as named tensors and a JSON-like rest."""
    import torch

    tensors: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for index, slots in state["state"].items():
        for name, value in slots.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{index}/{name}"] = value.detach().cpu().contiguous()
            else:
                numbers[f"{index}/{name}"] = value
    return tensors, {"numbers": numbers, "param_groups": _plain(state["param_groups"])}


def named_state(
    optimizer: Optimizer, names: Mapping[int, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Optimizer state as tensors by slot and name of the parameter, and a JSON-like rest.

    `names` has the name of each parameter by its `id`. The tensors are the optimizer's own.
    """
    import torch

    state = optimizer.state_dict()
    order = parameter_order(optimizer, names)
    tensors: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for index, slots in state["state"].items():
        for slot, value in slots.items():
            is_tensor = isinstance(value, torch.Tensor)
            (tensors if is_tensor else numbers)[f"{slot}/{order[index]}"] = value
    return tensors, {
        "numbers": numbers,
        "param_groups": _plain(state["param_groups"]),
        "parameters": order,
        "dtypes": {key: str(value.dtype).removeprefix("torch.") for key, value in tensors.items()},
    }


def parameter_order(optimizer: Optimizer, names: Mapping[int, str]) -> list[str]:
    """The names of the optimizer's parameters, in the order of its state."""
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def by_index(named: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """Values of `slot/name` as values of `index/slot`, as `unflatten_state` takes them."""
    places = {name: index for index, name in enumerate(order)}
    found = {}
    for key, value in named.items():
        slot, name = key.split("/", 1)
        found[f"{places[name]}/{slot}"] = value
    return found


def _plain(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: list(v) if isinstance(v, tuple) else v for k, v in g.items()} for g in groups]


def unflatten_state(tensors: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """What `flatten_state` was given."""
    slots: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **rest["numbers"]}.items():
        index, name = key.split("/", 1)
        slots.setdefault(int(index), {})[name] = value
    groups = [
        {k: tuple(v) if k == "betas" else v for k, v in group.items()}
        for group in rest["param_groups"]
    ]
    return {"state": slots, "param_groups": groups}
