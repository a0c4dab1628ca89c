"""A state_dict of plain values and tensors as JSON, and back: no pickle, no code."""

from __future__ import annotations

from typing import Any

import numpy as np

TENSOR = "__tensor__"


def as_plain(value: Any) -> Any:
    """The value as JSON holds it; a TypeError where it is neither plain nor a tensor.

    >>> as_plain({"at": 3, "seen": (1, 2), "left": np.array([1.5])})["left"]
    {'__tensor__': 'numpy', 'dtype': 'float64', 'shape': [1], 'values': [1.5]}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: as_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(each) for each in value]
    kind = "torch" if hasattr(value, "detach") else "numpy"
    array = value.detach().cpu().numpy() if kind == "torch" else value
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise TypeError(f"a {type(value).__name__} is neither a plain value nor a tensor")
    shape, values = list(array.shape), array.ravel().tolist()
    return {TENSOR: kind, "dtype": array.dtype.name, "shape": shape, "values": values}


def from_plain(value: Any) -> Any:
    """The value that `as_plain` was given; tuples come back as lists."""
    if isinstance(value, list):
        return [from_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if TENSOR not in value:
        return {key: from_plain(each) for key, each in value.items()}
    array = np.asarray(value["values"], value["dtype"]).reshape(value["shape"])
    if value[TENSOR] == "numpy":
        return array
    import torch

    return torch.from_numpy(array)
