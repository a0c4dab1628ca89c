"""What the tests of the collator share: a tokenizer, dtypes, numbered arrays, batches as lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

PAD = 9
TOKENIZER = SimpleNamespace(pad_token_id=PAD)

# What a batch holds of rows of each dtype: torch computes little with wide unsigned numbers.
BATCH_DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint16": torch.int32,
    "uint32": torch.int64,
    "uint64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}
NUMPY_DTYPES = [name for name in BATCH_DTYPES if name != "bfloat16"]


def as_lists(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: v.tolist() if torch.is_tensor(v) else v for name, v in batch.items()}


def numbered(shape: Sequence[int], dtype: str) -> Any:
    """An array whose values encode their positions, exact in every dtype."""
    numbers = np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 100 + 1)
    if dtype == "bfloat16":
        return torch.from_numpy(numbers).to(torch.bfloat16)
    return np.asarray(numbers % 3 == 1 if dtype == "bool" else numbers, dtype)
