"""The user's data as a torch Dataset that stays on disk, for your own loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from torch.utils.data import Dataset

from surefit.batches.field import Field
from surefit.data.column_types import array_rank, is_array, is_number
from surefit.data.open_data import open_table
from surefit.data.roles import get_role, resolve_roles
from surefit.data.table import Table, python_rows, take_rows
from surefit.errors import UsageError
from surefit.memory.limit import Limit, find_limit

NAMES = {"features": "inputs_embeds", "label": "labels", "mask": "attention_mask"}
"""What columns in these roles are called in a batch, as models expect them."""


class OnDisk(Dataset[dict[str, Any]]):
    """Rows of a Table, read from disk as they are asked for: arrays and numbers as tensors.

    A column of features is called `inputs_embeds`, one of labels `labels`, as models expect them;
    others keep their names, and text stays text.
    """

    def __init__(self, table: Table, limit: Limit) -> None:
        self.limit = limit
        self.table = table
        roles = (
            resolve_roles(table, ((get_role("features"),),), (get_role("label"), get_role("mask")))
            or {}
        )
        called = {column: NAMES[role] for role, column in roles.items()}
        self.columns = {called.get(column, column): column for column in table.columns}
        kinds = {name: table.column_type(column) for name, column in self.columns.items()}
        self.fields = {
            name: _field(name, kind)
            for name, kind in kinds.items()
            if is_array(kind) or is_number(kind)
        }
        self._batches = table.arrow.to_batches()
        self._ends = np.cumsum([len(batch) for batch in self._batches], dtype=np.int64)

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows at once, as a DataLoader asks for them."""
        import torch

        return [
            {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in row.items()}
            for row in self.read(rows)
        ]

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Rows by number, their numbers as arrays of their own in the fields' dtypes."""
        wrong = next((row for row in rows if not -len(self) <= row < len(self)), None)
        if wrong is not None:
            raise IndexError(f"row {wrong} of {len(self)}")
        chosen = np.asarray(rows, np.int64) % len(self)
        taken = take_rows(self._batches, self._ends, chosen)
        read = [row for batch in taken.to_batches() for row in python_rows(batch)]
        return [
            {n: self._value(n, row[column]) for n, column in self.columns.items()} for row in read
        ]

    def _value(self, name: str, value: Any) -> Any:
        field = self.fields.get(name)
        return value if field is None or value is None else np.array(value, field.numpy_dtype)

    def lengths(self) -> npt.NDArray[np.int32]:
        """Steps of each row's features; 1 where there are none, or each row is one vector."""
        column = self.columns.get("inputs_embeds")
        if column is None or self.fields["inputs_embeds"].rank < 2:
            return np.ones(len(self), np.int32)
        counts = [
            pc.list_value_length(part).to_numpy(False) for part in self.table.arrow[column].chunks
        ]
        return np.concatenate(counts).astype(np.int32)

    def row_bytes(self) -> int:
        """Bytes of the tensors of one row of the greatest length."""
        longest, total = int(self.lengths().max()), 0
        first = self.read([0])[0]
        for name, field in self.fields.items():
            shape = first[name].shape
            size = (
                int(np.prod(shape[1:])) * longest if name == "inputs_embeds" else first[name].size
            )
            total += size * field.numpy_dtype.itemsize
        return total


def _field(name: str, kind: pa.DataType) -> Field:
    """How a column of numbers becomes a tensor: whole numbers as int64, others as float32."""
    rank = array_rank(kind)
    while array_rank(kind):
        kind = kind.value_type
    dtype = "float32" if pa.types.is_floating(kind) else "int64"
    if name == "inputs_embeds":
        return Field(("time", "width")[-rank:], "float32", 0.0)
    if name == "attention_mask":
        return Field(("time",), "int64", 0, "inputs_embeds")
    return Field(tuple(f"{name}.{axis}" for axis in range(rank)), dtype)


def open_data(path: Any, max_memory_gb: float = 12) -> OnDisk:
    """Open files or folders (or an object) as a torch Dataset that stays on disk.

    The memory limit is `max_memory_gb`, or the free memory of this machine and its cgroup if that
    is less.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> np.save(f"{folder}/part.npy", np.ones((4, 3, 2), np.float32))
    >>> open_data(folder)[0]["inputs_embeds"].shape
    torch.Size([3, 2])
    """
    if max_memory_gb <= 0:
        raise UsageError(
            f"max_memory_gb is {max_memory_gb}; expected more than 0.", "Use a number of gigabytes."
        )
    return OnDisk(open_table(path), find_limit(max_memory_gb, host=True))
