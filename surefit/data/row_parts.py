"""The two parts of a row, input and target, hashed: rows with equal inputs stay in one set.

Texts are compared without case, spaces and punctuation around words, files by their content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.cache import fingerprint, hash_bytes
from surefit.data.cache_entry import content_hashes
from surefit.data.cell_files import unwrapped
from surefit.data.formats.opened import cached_array
from surefit.data.row_arrays import distinct, new_array
from surefit.data.split import (
    HASH_VERSION,
    NO_CONTENT,
    Rows,
    fold_text,
    is_blank,
    value_bytes,
    without_values,
)
from surefit.data.table import CHUNK_BYTES, Table
from surefit.forked_map import forked_map, num_children

Hashes = npt.NDArray[np.uint64]
Divide = Callable[[Mapping[str, Any]], tuple[Any, Any]]
"""A task's function: a row by role to its input and its target."""
HASHED_ROWS = 2048
"""Rows that a process hashes at a time, where several do."""
WORK_COPIES = 3
"""How often a process has the rows that it reads at a time in memory: as Arrow and as values."""


@dataclass(frozen=True)
class RowParts:
    """Which values of a row are its input, and which its target."""

    columns: Mapping[str, str]
    """The column of each value, by the name that the task reads it under."""
    targets: tuple[str, ...]
    """Names of the values that are the target; all others are the input."""
    divide: Divide | None = None
    """The task's own division, where it is not by column, such as that of a dialogue."""
    content: Callable[[Any], Any] | None = None
    """What stands for a file that a cell names or holds; a hash of its bytes without one."""
    separator: str | None = None
    """The sign between several classes in one text, empty for lists: their order means nothing."""

    @property
    def key(self) -> str | None:
        """A key of how rows are divided; None for a task's own function, which may change."""
        if self.divide is not None and not self.divide.__module__.startswith("surefit."):
            return None
        by = None if self.content is None else self.content.__qualname__
        read = dict(self.columns), self.targets, by, self.separator
        return fingerprint("parts", HASH_VERSION, *read)

    def hashes(self, row: Mapping[str, Any], fold: bool = True) -> tuple[int, int]:
        """64-bit hashes of the input and of the whole row, which has the values by name."""
        given, target = self._divided(row)
        digest = hashlib.blake2b(digest_size=8)
        digest.update(value_bytes(fold_text(given) if fold else given))
        whole = digest.copy()
        whole.update(value_bytes(fold_text(target) if fold else target))
        blank = is_blank(given)
        return (
            NO_CONTENT if blank else _number(digest),
            NO_CONTENT if blank and is_blank(target) else _number(whole),
        )

    def _divided(self, row: Mapping[str, Any]) -> tuple[Any, Any]:
        if self.divide is not None:
            return self.divide(row)
        names = self.columns
        return (
            [row.get(name) for name in names if name not in self.targets],
            [self._unordered(row.get(name)) for name in names if name in self.targets],
        )

    def _unordered(self, value: Any) -> Any:
        """Several classes in one order."""
        if self.separator and isinstance(value, str):
            value = [part.strip() for part in value.split(self.separator)]
        is_set = self.separator is not None and isinstance(value, list)
        return sorted(value, key=str) if is_set else value

    def hash_table(self, table: Table, rows: Rows | None = None) -> tuple[Hashes, Hashes]:
        """The hashes of all rows of a Table, from the cache if they are there, or of some rows."""
        if rows is not None and len(rows) < table.num_rows:
            return self.hash_some(table, rows)
        if self.key is None:
            return self.hash_some(table)
        key = fingerprint(self.key, table.place_key)

        def fill(path: Path) -> None:
            hashes = self.hash_some(table)
            made = np.lib.format.open_memmap(path, "w+", np.uint64, (2, len(hashes[0])))
            made[0], made[1] = hashes  # one after the other, without a copy

        inputs, whole = cached_array(key, fill)
        return inputs, whole

    def hash_some(
        self, table: Table, rows: Rows | None = None, fold: bool = True
    ) -> tuple[Hashes, Hashes]:
        """Return the hashes of the given rows of a Table."""
        count = table.num_rows if rows is None else len(rows)
        can_share = self.key is not None and not table.files
        children = num_children(count, WORK_COPIES * CHUNK_BYTES) if can_share else 0
        if not children:
            return self._hash(table, fold, rows)
        places = (
            np.arange(at, min(at + HASHED_ROWS, count)) for at in range(0, count, HASHED_ROWS)
        )
        chunks = places if rows is None else (rows[each] for each in places)
        inputs, whole = new_array(count, np.uint64), new_array(count, np.uint64)
        end = 0
        with forked_map(partial(self._hash, table, fold), chunks, children) as hashed:
            for some in hashed:
                part = slice(end, end := end + len(some[0]))
                inputs[part], whole[part] = some
        return inputs, whole

    def _hash(self, table: Table, fold: bool, rows: Rows | None) -> tuple[Hashes, Hashes]:
        count = table.num_rows if rows is None else len(rows)
        inputs, whole = new_array(count, np.uint64), new_array(count, np.uint64)
        for place, values in enumerate(self._values(table, rows)):
            inputs[place], whole[place] = self.hashes(values, fold)
        return inputs, whole

    def divided(self, table: Table, rows: Rows) -> Iterator[tuple[Any, Any]]:
        """Return the input and the target of the given rows of a Table."""
        return (self._divided(values) for values in self._values(table, rows))

    def _values(self, table: Table, rows: Rows | None) -> Iterator[dict[str, Any]]:
        """Yield the values of rows by name; files by their content."""
        known = {name: column for name, column in self.columns.items() if column in table.columns}
        chosen = Table(
            table.arrow.select(list(dict.fromkeys(known.values()))),
            table.sources,
            table.key,
            files=table.files,
        )
        read = self.content or file_content
        for row in chosen.rows(rows):  # type: ignore[arg-type]
            yield {
                name: read(row[column]) if column in table.files else row[column]
                for name, column in known.items()
            }


def hash_columns(
    table: Table, columns: Iterable[str], fold: bool = False, rows: Rows | None = None
) -> Hashes:
    """Return a 64-bit hash of the given columns of each row; equal rows have equal hashes.

    With `fold`, so have rows whose texts differ only in case, spaces or punctuation. Rows without
    content get NO_CONTENT: they cannot be duplicates or leak.
    """
    return RowParts({name: name for name in columns}, ()).hash_some(table, rows, fold)[0]


@dataclass(frozen=True)
class HeldOut:
    """The inputs of validation rows, of which no augmented copy may have one."""

    parts: RowParts
    inputs: Hashes
    """Hashes, ascending."""

    def has_input_of(self, row: Mapping[str, Any]) -> bool:
        """Return whether a validation row has the input of this row."""
        value = np.uint64(self.parts.hashes(row)[0])
        place = int(np.searchsorted(self.inputs, value))
        return place < len(self.inputs) and bool(self.inputs[place] == value)

    @cached_property
    def key(self) -> str:
        """Changes with the inputs."""
        return hash_bytes(self.inputs.tobytes())


def hold_out(parts: RowParts, trained: Hashes, shown: Hashes) -> HeldOut:
    """Return the inputs of validation rows that no training row has."""
    return HeldOut(parts, without_values(distinct(shown[shown != NO_CONTENT])[0], trained))


def _number(digest: hashlib.blake2b) -> int:
    return int.from_bytes(digest.digest(), "little")


def file_content(value: Any) -> Any:
    """A hash of the file that a cell names or holds; the cell itself if there is no such file."""
    value = unwrapped(value)
    if not isinstance(value, str):
        return value
    return content_hashes([value])[0] or value
