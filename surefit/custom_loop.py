"""The user's data for your own training loop: a torch Dataset on disk, and DataLoaders over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from torch.utils.data import DataLoader, Dataset

from surefit.batches.collate import collate
from surefit.batches.field import Field
from surefit.batches.order import Batches
from surefit.batches.permutation import block_rows
from surefit.data.cell_files import with_files
from surefit.data.column_types import array_rank, is_array, is_number
from surefit.data.open_data import open_table
from surefit.data.roles import get_role, resolve_roles
from surefit.data.row_parts import RowParts
from surefit.data.split import split_by_input
from surefit.data.table import Table, python_rows, take_rows
from surefit.errors import UsageError
from surefit.findings import rule
from surefit.gigabytes import show_gb
from surefit.memory.limit import Limit, find_limit
from surefit.memory.process_memory import anonymous_bytes
from surefit.tasks import INPUTS

LOADER_BATCH_TOO_LARGE = rule(
    "SF450",
    "error",
    "a loader's batch does not fit in memory",
    why="A batch is in memory while it is collated, while it is prefetched and while it is used.",
    fix="Use a smaller batch_size, shorter rows, or more memory.",
)


Rows = npt.NDArray[np.integer[Any]]
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
        """Return rows by number, their numbers as arrays of their own in the fields' dtypes."""
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
        """Return bytes of the tensors of one row of the greatest length."""
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


class EpochOrder:
    """A batch sampler with a new order in each epoch, determined by the seed.

    `seek(epoch, batch)` resumes at any batch; nothing is replayed.
    """

    def __init__(self, batches: Batches, rows: Rows, shuffle: bool) -> None:
        self.batches = batches
        self.rows = rows
        self.shuffle = shuffle
        self.epoch = 0
        self.first = 0

    def __len__(self) -> int:
        return self.batches.num_micro_batches()

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = self.epoch if self.shuffle else 0, self.first
        self.epoch, self.first = self.epoch + 1, 0
        for batch in range(first, self.batches.steps_per_epoch):
            yield self.rows[self.batches.step_rows(epoch, batch)].tolist()

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Start the next pass at a batch of an epoch."""
        self.epoch, self.first = epoch, batch


class Batched(Dataset[dict[str, Any]]):
    """Batches of rows: padded, with an attention mask made from the lengths."""

    def __init__(self, data: OnDisk) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return one batch of tensors; text is a list."""
        import torch

        read = self.data.read(rows)
        numbers = [{name: row[name] for name in self.data.fields} for row in read]
        arrays = collate(numbers, self.data.fields)
        texts = {
            n: [row[n] for row in read] for n in self.data.columns if n not in self.data.fields
        }
        return {**{name: torch.from_numpy(array) for name, array in arrays.items()}, **texts}

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.__getitems__([row])


def loaders(
    path: Any,
    batch_size: int,
    max_memory_gb: float = 12,
    eval_share: float = 0.1,
    *,
    seed: int = 0,
    workers: int = 0,
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Training and validation DataLoaders over data that stays on disk.

    Rows are shuffled over all files, in small blocks if all of them exceed `max_memory_gb`; the
    order is a pure function of the arguments and the epoch, also with worker processes. A batch
    that exceeds the memory limit is refused, with a size that fits.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> np.save(f"{folder}/part.npy", np.random.rand(10, 3, 2).astype("float32"))
    >>> train, evaluation = loaders(folder, batch_size=4)
    >>> [tuple(batch["inputs_embeds"].shape) for batch in train]
    [(4, 3, 2), (4, 3, 2), (1, 3, 2)]
    """
    data = open_data(path, max_memory_gb)
    if batch_size < 1 or workers < 0 or not 0 <= eval_share < 1:
        raise UsageError(
            f"batch_size {batch_size}, workers {workers}, eval_share {eval_share}: expected at "
            "least 1, at least 0, and a share below 1.",
            "Change the one that is out of range.",
        )
    check_budget(data, batch_size, workers)
    known = data.table.columns
    labels = {*get_role("label").names}
    targets = tuple(name for name in known if name.lower() in labels)
    compared = {role: each.content for role, each in INPUTS.items() if each.content is not None}
    named = {r: n for r in compared for n in reversed(known) if n.lower() in get_role(r).names}
    table = with_files(data.table, named)
    targets = targets if len(targets) < len(known) else ()
    parts = RowParts({name: name for name in known}, targets, content=next(iter(compared.values())))
    split = split_by_input(*parts.hash_table(table), eval_share, seed)
    lengths = data.lengths()
    blocks = block_rows(len(data), data.table.arrow.nbytes, int(max_memory_gb * 10**9))
    return tuple(  # type: ignore[return-value]
        _loader(
            data,
            rows,
            Batches(lengths[rows], seed, batch_size, block_rows=blocks),
            workers,
            shuffle,
        )
        for rows, shuffle in ((split.train, True), (split.evaluation, False))
    )


def _loader(
    data: OnDisk, rows: Rows, batches: Batches, workers: int, shuffle: bool
) -> DataLoader[Any]:
    return DataLoader(
        Batched(data),
        batch_sampler=EpochOrder(batches, rows, shuffle),
        collate_fn=_unchanged,
        num_workers=workers,
        persistent_workers=False,
    )


def _unchanged(batch: Any) -> Any:
    return batch


def check_budget(data: OnDisk, batch_size: int, workers: int) -> None:
    """Refuse batches that exceed the memory limit of the data."""
    row_bytes, used = data.row_bytes(), anonymous_bytes()
    copies = 2 + 2 * workers  # the rows and their batch, and two prefetched batches per worker
    free = data.limit.bytes - used
    if row_bytes * batch_size * copies <= free:
        return
    fitting = free // max(1, row_bytes * copies)
    message = (
        f"A batch of {batch_size} rows takes {show_gb(row_bytes * batch_size)}, and {copies} "
        f"copies are in memory at once. This process already uses {show_gb(used)}; the limit is "
        f"{data.limit}."
    )
    fix = f"batch_size={fitting} fits." if fitting > 0 else "Use shorter rows, or more memory."
    raise LOADER_BATCH_TOO_LARGE.error(message, fix=fix)
