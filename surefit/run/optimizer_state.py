"""The state of an optimizer as named tensors and JSON, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


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
