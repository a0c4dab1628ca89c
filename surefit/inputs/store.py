"""Encoded columns on disk: flat values and offsets per column, memory-mapped.

A store is a folder: `columns.json`, and for each column `NAME.values`, with `NAME.offsets` if
rows have axes and `NAME.shapes` if they have several.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import Field
from surefit.core import files
from surefit.core.foreign import read_json
from surefit.data.cache import new_entry
from surefit.errors import RunFailedError

Array = npt.NDArray[Any]

_SYSTEM: dict[str, np.dtype[Any]] = {
    "num_targets": np.dtype(np.int64),
    "source_row": np.dtype(np.int64),
    "copy": np.dtype(np.int32),
    "length": np.dtype(np.int32),
}
_WHOLE = {**_SYSTEM, "offsets": np.dtype(np.int64), "shapes": np.dtype(np.int32)}


BUFFER_ROWS, BUFFER_BYTES = 512, 1 << 20
"""The most that a writer buffers before it writes."""


@dataclass(frozen=True)
class Columns:
    """What columns.json holds."""

    key: str
    num_rows: int
    fields: dict[str, Field]
    notes: dict[str, Any]


class Store:
    """Encoded rows, read from disk as they are needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = read_json(folder / "columns.json", Columns)
        self.key, self.num_rows = about.key, about.num_rows
        self.notes, self.fields = about.notes, about.fields
        self._values, self._offsets, self._shapes = dict[str, Array](), {}, {}
        for name, spec in self.fields.items():
            self._values[name] = map_array(folder / f"{name}.values", spec.numpy_dtype)
            if spec.rank:
                self._offsets[name] = map_array(folder / f"{name}.offsets", _WHOLE["offsets"])
            if spec.rank > 1:
                shapes = map_array(folder / f"{name}.shapes", _WHOLE["shapes"])
                self._shapes[name] = shapes.reshape(-1, spec.rank)
        self.num_targets = map_array(folder / "num_targets", _SYSTEM["num_targets"])
        self.source_row = map_array(folder / "source_row", _SYSTEM["source_row"])
        self.copy = map_array(folder / "copy", _SYSTEM["copy"])
        self.lengths = map_array(folder / "length", _SYSTEM["length"])
        self._files = {path: path.stat() for path in folder.iterdir()}

    def __len__(self) -> int:
        return self.num_rows

    def check_files(self) -> None:
        """Refuse to read a file that was cut off since it was opened: that would kill the process.

        A file that was deleted or replaced stays mapped as it was.
        """
        for path, opened in self._files.items():
            try:
                now = os.stat(path)
            except OSError:
                continue
            if now.st_size < opened.st_size and now.st_ino == opened.st_ino:
                raise RunFailedError(
                    f"The cache file {path} was cut off from {opened.st_size:,} to "
                    f"{now.st_size:,} bytes while it was in use.",
                    "Resume the run: the cache entry is rebuilt. If nobody changed the file, check "
                    "the disk.",
                )

    @property
    def sources(self) -> dict[str, range]:
        """The rows of each source that is mixed with others; empty where there is only one."""
        firsts: dict[str, int] = self.notes.get("sources", {})
        starts = np.searchsorted(self.source_row, [*firsts.values()]).tolist()
        ends = [*starts[1:], len(self)]
        return dict(zip(firsts, map(range, starts, ends), strict=True))

    def row(self, index: int) -> dict[str, Array]:
        """Return one encoded row: per column, an array over the values on disk."""
        return {name: self.value(name, index) for name in self.fields}

    def value(self, name: str, index: int) -> Array:
        """Return one column of one row."""
        values = self._values[name]
        if not self.fields[name].rank:
            return np.asarray(values[index])
        offsets = self._offsets[name]
        flat = values[offsets[index] : offsets[index + 1]]
        return flat.reshape(self._shapes[name][index]) if name in self._shapes else flat

    def values(self, name: str) -> Array:
        """Return all values of a column, concatenated."""
        return self._values[name]

    def joined(self, name: str, indices: Sequence[int] | Array) -> Array:
        """Return the values of a column in some rows, concatenated."""
        if not self.fields[name].rank:
            return np.asarray(self._values[name][indices])
        return np.concatenate([self.value(name, int(index)).ravel() for index in indices])

    def offsets(self, name: str) -> Array:
        """Return where each row of a column starts in its values, and the end of the last row."""
        return self._offsets[name]

    def columns(self, indices: Sequence[int] | Array) -> dict[str, list[Array]]:
        """Several encoded rows, column by column: lists of arrays over the values on disk."""
        self.check_files()
        chosen = np.asarray(indices, np.int64)
        found = {}
        for name, values in self._values.items():
            if name in self._shapes:
                found[name] = [self.value(name, row) for row in chosen.tolist()]
            elif name in self._offsets:
                offsets = self._offsets[name]
                starts, ends = offsets[chosen].tolist(), offsets[chosen + 1].tolist()
                found[name] = [values[a:b] for a, b in zip(starts, ends, strict=True)]
            else:
                found[name] = list(values[chosen])
        return found

    def with_columns(self, columns: Mapping[str, Array]) -> Store:
        """Return the Store with further columns of one number per row, which are in memory."""
        other = copy(self)
        numbers = {name: Field((), str(values.dtype)) for name, values in columns.items()}
        other.fields = {**self.fields, **numbers}
        other._values = {**self._values, **columns}
        return other

    def rows(self, indices: Sequence[int] | Array) -> list[dict[str, Array]]:
        """Several encoded rows."""
        return [self.row(int(index)) for index in indices]


class StoreWriter:
    """Appends encoded rows to the files of a new store."""

    def __init__(self, folder: Path, fields: Mapping[str, Field], stack: ExitStack) -> None:
        self.fields = dict(fields)
        self.num_rows = 0
        names = [*_SYSTEM]
        for name, spec in fields.items():
            names.append(f"{name}.values")
            names += [f"{name}.offsets"] * (spec.rank > 0) + [f"{name}.shapes"] * (spec.rank > 1)
        self._buffered: dict[str, list[Any]] = {name: [] for name in names}
        find = self._buffered.get
        self._columns = [
            (
                name,
                self._buffered[f"{name}.values"],
                find(f"{name}.offsets"),
                find(f"{name}.shapes"),
            )
            for name in fields
        ]
        self._size = 0
        self._files: dict[str, IO[bytes]] = {
            name: stack.enter_context((folder / name).open("wb")) for name in names
        }
        self._ends = {name: 0 for name, spec in fields.items() if spec.rank}
        for name in self._ends:
            self._buffered[f"{name}.offsets"].append(0)

    def append(
        self,
        columns: Mapping[str, Array],
        *,
        source_row: int,
        num_targets: int,
        length: int,
        copy: int = 0,
    ) -> None:
        """Add a row, or an augmented copy of one; `columns` has the fields in their dtypes."""
        buffered = self._buffered
        for name, values, offsets, shapes in self._columns:
            value = columns[name]
            values.append(value)
            self._size += value.nbytes
            if offsets is not None:
                self._ends[name] += value.size
                offsets.append(self._ends[name])
            if shapes is not None:
                shapes.append(value.shape)
        buffered["source_row"].append(source_row)
        buffered["copy"].append(copy)
        buffered["num_targets"].append(num_targets)
        buffered["length"].append(length)
        self.num_rows += 1
        if len(buffered["length"]) >= BUFFER_ROWS or self._size > BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows: many rows at once take a third of the time."""
        for name, values in self._buffered.items():
            kind = name if name in _SYSTEM else name.rpartition(".")[2]
            if kind == "values":
                content = b"".join([value.tobytes() for value in values])
            else:
                content = np.array(values, _WHOLE[kind]).tobytes()
            self._files[name].write(content)
            values.clear()
        self._size = 0


@contextmanager
def new_store(
    folder: Path, fields: Mapping[str, Field], notes: dict[str, Any], key: str = ""
) -> Iterator[StoreWriter]:
    """Write a store at `folder`; it appears when the block ends without an error.

    `notes` may be filled while the block runs; they are stored with the columns. `key` is the
    identity of the rows.
    """
    with new_entry(folder) as temporary:
        with ExitStack() as stack:
            writer = StoreWriter(temporary, fields, stack)
            yield writer
            writer.flush()
        about = Columns(key or folder.name, writer.num_rows, writer.fields, notes)
        files.write_json(temporary / "columns.json", asdict(about))


def map_array(path: Path, dtype: np.dtype[Any]) -> Array:
    """Return a file of numbers as an array that stays on disk."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    # A plain array over the mapped file: slicing a memmap takes ten times as long.
    return np.asarray(np.memmap(path, dtype, mode="r"))
