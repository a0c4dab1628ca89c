"""NumPy files to Arrow columns, memory-mapped; nothing is ever unpickled."""

from __future__ import annotations

import math
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.config import Reading
from surefit.data.cache import fingerprint, open_cache
from surefit.data.cache_entry import file_fingerprint, open_entry
from surefit.data.data_rules import (
    CORRUPT_FILE,
    FILES_DO_NOT_MATCH,
    MAX_COLUMNS,
    NOT_UTF8,
    PICKLED_DATA,
    WRONG_SHAPE,
    WRONG_TYPE,
    check_expansion,
    too_many_columns,
    unequal_rows,
)
from surefit.data.formats.opened import (
    Opened,
    bad_file,
    cached_array,
    cached_rows,
    labels_beside,
)
from surefit.data.row_arrays import new_array
from surefit.findings import Finding, note
from surefit.gigabytes import free_bytes, show_size

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

READER_FAULTS = (Exception,)
"""NumPy evaluates the header of a file, and raises all kinds of errors on a damaged one."""
ZIP_FAULTS = (NotImplementedError, RuntimeError, UnicodeDecodeError, struct.error)
"""Unknown compression, encryption, and damage that `zipfile` does not foresee."""
MOST_EMPTY = 1 << 24
"""Cells that an array without values may have by its other axes; Arrow counts them one by one."""
INT32_MAX = (1 << 31) - 1
_NUMBERED = re.compile(r"(.*?)[_.-]?(\d+)")


def map_npy(path: Path, shown: str, text_axes: int = 1) -> Array:
    """Memory-map a `.npy` file; `shown` is its name in messages.

    Text may have `text_axes`: two are the names of a class for each time step.
    """
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except READER_FAULTS as error:
        if "Python objects" in str(error):
            raise PICKLED_DATA.error(
                f"{shown} contains pickled Python objects, which surefit does not load.",
                file=shown,
            ) from None
        message = f"{shown} is not a readable .npy file: {_what_is_wrong(path, error)}."
        raise CORRUPT_FILE.error(message, fix="Write the file again.", file=shown) from None
    if array.ndim == 0:
        raise WRONG_SHAPE.error(f"{shown} contains a single value; expected rows.", file=shown)
    if array.dtype.kind not in "biufUS" or (array.dtype.kind in "US" and array.ndim > text_axes):
        raise WRONG_TYPE.error(
            f"{shown} contains {array.dtype} values in an array of {array.ndim} axes; expected "
            f"numbers, or text in {'one axis' if text_axes == 1 else 'one or two axes'}.",
            file=shown,
        )
    if array.flags.c_contiguous and array.dtype.isnative:
        return np.asarray(array)
    key, native = fingerprint("native", file_fingerprint(path)), array.dtype.newbyteorder("=")
    return cached_rows(key, array.shape, native, array.__getitem__)


def _what_is_wrong(path: Path, error: Exception) -> str:
    size = path.stat().st_size if path.is_file() else 0
    if not size:
        return "it is empty"
    if "mmap length" in str(error):
        return f"it is truncated after {size} bytes"
    return str(error).rstrip(".")


def shape_of(path: Path) -> Shape | None:
    """Return the shape of the array in a `.npy` file; None if it cannot be read."""
    try:
        return tuple(np.lib.format.open_memmap(path, mode="r").shape)
    except READER_FAULTS:
        return None


def open_npy(path: Path, reading: Reading) -> Opened:
    """Return a `.npy` file as the column `features`, with the labels from the file next to it."""
    return with_labels(path, {"features": map_npy(path, str(path))}, _map_labels)


def _map_labels(path: Path) -> Array:
    labels = map_npy(path, str(path), text_axes=2)  # several per row may be lists of 0 and 1
    return labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels


def with_labels(path: Path, columns: Mapping[str, Array], read: Callable[[Path], Array]) -> Opened:
    """Return columns of a file, and `label` from the file of labels next to it, if there is one."""
    file, found = labels_beside(path), list[Finding]()
    labels = read(file) if file is not None else None
    if file is not None and labels is not None and labels.ndim <= 2:
        array = next(iter(columns.values()))
        if len(labels) != len(array):
            counts = f"{len(array)} rows, but {file.name} has {len(labels)} labels"
            raise FILES_DO_NOT_MATCH.error(f"{path.name} has {counts}.", file=str(file))
        columns = {**columns, "label": labels}
        message = f"{path.name}: the labels are read from {file.name}."
        found.append(note(message, file=str(file)))
    return Opened(pa.table({name: to_arrow(each) for name, each in columns.items()}), tuple(found))


def open_npz(path: Path, reading: Reading) -> Opened:
    """Return the arrays of a `.npz` file as columns."""
    return Opened(arrays_to_arrow(map_npz(path), str(path)))


def map_npz(path: Path) -> dict[str, Array]:
    """Memory-map every array of a `.npz` file, unpacked once into the cache."""
    key = fingerprint("npz", file_fingerprint(path))
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            _check_room(path, sum(archive.getinfo(name).file_size for name in names))
            folder = open_entry("arrays", key, partial(_unpack, archive, names), Path)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, *ZIP_FAULTS) as error:
        what = "it is empty" if path.stat().st_size == 0 else str(error)
        raise bad_file(path, f" is not a readable .npz file: {what}") from None
    return {
        name.removesuffix(".npy"): map_npy(folder / f"{place}.npy", f"{path}:{name}", text_axes=2)
        for place, name in enumerate(names)
    }


def _check_room(path: Path, num_bytes: int) -> None:
    """Refuse an archive that would fill the disk of the cache: a small one can expand a lot."""
    check_expansion(path, num_bytes)
    free = free_bytes(open_cache())
    if num_bytes > free:
        what = f" would unpack to {show_size(num_bytes)}; the disk of the cache has "
        fix = "Choose a cache on a larger disk with --set cache=FOLDER, or save less data."
        raise bad_file(path, f"{what}{show_size(free)} free.", fix)


def _unpack(archive: zipfile.ZipFile, names: Sequence[str], folder: Path) -> None:
    for place, name in enumerate(names):
        with archive.open(name) as packed, (folder / f"{place}.npy").open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)


def arrays_to_arrow(arrays: Mapping[str, Array], shown: str) -> pa.Table:
    """Arrays of equal row count as columns; ragged rows in any of the usual layouts.

    Ragged rows are flat values with `offsets` or `lengths`, padded values with `lengths`, or
    one array per row under numbered names (`np.savez(path, *rows, y=labels)`). Within `as_stored`,
    arrays that have one value per row already stay as they are.
    """
    kept = _kept.get()
    if kept is not None and len({len(array) for array in arrays.values()}) == 1:
        kept += [name for name in arrays if _is_offsets(name) or _NUMBERED.fullmatch(name)]
        return pa.table({name: to_arrow(array) for name, array in arrays.items()})
    columns: dict[str, pa.Array] = {}
    plain = _join_numbered(arrays, columns, shown)
    offsets_name = next(filter(_is_offsets, plain), None)
    if offsets_name is not None:
        offsets = _read_offsets(plain.pop(offsets_name), offsets_name, shown)
        columns |= _cut_rows(plain, offsets, offsets_name, shown)
        plain = {name: array for name, array in plain.items() if name not in columns}
    if len(plain) > MAX_COLUMNS:
        raise too_many_columns(shown, len(plain))
    columns |= {name: to_arrow(array) for name, array in plain.items()}
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        raise FILES_DO_NOT_MATCH.error(f"{shown}: {unequal_rows(rows)}", file=shown)
    return pa.table(columns)


_OFFSETS = ("offsets", "offset", "lengths", "length", "lens")
_kept: ContextVar[list[str] | None] = ContextVar("names_as_stored", default=None)


@contextmanager
def as_stored(wanted: bool = True) -> Iterator[list[str]]:
    """Read arrays of one value per row as they are, whatever their names mean elsewhere.

    Gives the names that elsewhere would cut or join rows.
    """
    kept: list[str] = []
    token = _kept.set(kept if wanted else None)
    try:
        yield kept
    finally:
        _kept.reset(token)


def is_as_stored() -> bool:
    """Return whether arrays are read as they are."""
    return _kept.get() is not None


def _is_offsets(name: str) -> bool:
    return name.lower().split("_")[-1] in _OFFSETS


def _read_offsets(array: Array, name: str, shown: str) -> npt.NDArray[np.int64]:
    values = np.asarray(array).astype(np.int64).reshape(-1)
    if name.lower().split("_")[-1].startswith("offset"):
        offsets = values if len(values) and values[0] == 0 else np.concatenate([[0], values])
    else:
        offsets = np.concatenate([[0], np.cumsum(values)])
    lengths = np.diff(offsets)
    if (lengths < 0).any():
        row = int(np.argmax(lengths < 0))
        message = f"{shown}, row {row}: its length by {name} is {lengths[row]}."
        raise CORRUPT_FILE.error(
            message, fix=f"Write {name} again.", file=shown, row=row, column=name
        )
    return offsets


def _cut_rows(
    arrays: Mapping[str, Array], offsets: npt.NDArray[np.int64], offsets_name: str, shown: str
) -> dict[str, pa.Array]:
    """Return the arrays that the offsets split into rows: flat values, or padded rows."""
    num_rows, lengths = len(offsets) - 1, np.diff(offsets)
    longest = lengths.max(initial=0)
    flat = {n: a for n, a in arrays.items() if len(a) == offsets[-1] and len(a) != num_rows}
    padded = {n: a for n, a in arrays.items() if len(a) == num_rows and a.ndim > 1}
    fitting = {name: array for name, array in padded.items() if array.shape[1] >= longest}
    if padded and not flat and not fitting:
        name, array = next(iter(padded.items()))
        row = int(lengths.argmax())
        message = (
            f"{shown}, row {row}: its length by {offsets_name} is {longest}, but {name} has "
            f"{array.shape[1]} positions."
        )
        raise WRONG_SHAPE.error(message, file=shown, row=row, column=name)
    cut = {name: ragged_column(array, offsets) for name, array in flat.items()}
    for name, array in fitting.items():
        rows = [row[:length] for row, length in zip(array, lengths, strict=True)]
        shapes = [row.shape for row in rows]
        cut[name] = nested_column(concatenate(rows, shapes), shapes)
    return cut


def _join_numbered(
    arrays: Mapping[str, Array], columns: dict[str, pa.Array], shown: str
) -> dict[str, Array]:
    """Join arrays saved one per row under numbered names; return the other arrays."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in arrays:
        match = _NUMBERED.fullmatch(name)
        if match:
            groups.setdefault(match[1], []).append((int(match[2]), name))
    numbers = {
        prefix: {number for number, _ in members}
        for prefix, members in groups.items()
        if len(members) > 1 and all(arrays[name].ndim >= 2 for _, name in members)
    }
    sets, joined = {frozenset(each) for each in numbers.values()}, {}
    for prefix, members in groups.items():
        # vectors are rows only beside sequences of the same numbers: labels of their steps
        if prefix in numbers or frozenset(number for number, _ in members) in sets:
            rows = [arrays[name] for _, name in sorted(members)]
            columns["features" if prefix in ("", "arr") else prefix] = join_rows(rows, shown)
            joined.update(dict.fromkeys(name for _, name in members))
    return {name: array for name, array in arrays.items() if name not in joined}


def join_rows(rows: Sequence[Array], shown: str) -> pa.Array:
    """Return one array per row as one ragged column; rows may differ in one axis."""
    shapes = [row.shape for row in rows]
    odd = odd_shape(shapes)
    if odd is not None:
        raise WRONG_SHAPE.error(
            f"{shown}, row {odd}: shape {list(shapes[odd])}, but row 0 has {list(shapes[0])}; only "
            "the first axis may vary.",
            file=shown,
            row=odd,
        )
    return nested_column(concatenate(rows, shapes), shapes)


def odd_shape(shapes: Sequence[Shape]) -> int | None:
    """Return first row that differs from row 0 in another axis than the first; None without one.

    Rows of two axes may differ in the second one instead: [feature size, sequence length].
    """
    first = shapes[0]
    if len(first) == 2 and all(len(shape) == 2 and shape[0] == first[0] for shape in shapes):
        return None
    differs = (len(shape) != len(first) or shape[1:] != first[1:] for shape in shapes)
    return next((place for place, odd in enumerate(differs) if odd), None)


def concatenate(
    rows: Iterable[Array], shapes: Sequence[Shape], dtype: Any = None, key: str | None = None
) -> Array:
    """Return the values of rows of these shapes in one axis, in a file if they are many.

    With a `key` it is an entry of the cache; otherwise the file has no name, and ends with the
    array. Without a `dtype`, rows must be a sequence, and decide it.
    """

    def fill(target: Array) -> Array:
        filled = 0
        for row in rows:
            target[filled : filled + row.size] = row.reshape(-1)
            filled += row.size
        return target

    dtype = np.result_type(*{row.dtype for row in rows}) if dtype is None else dtype
    size = sum(map(math.prod, shapes))
    if key is None:
        return fill(new_array(size, dtype))
    made = np.lib.format.open_memmap
    return cached_array(key, lambda path: fill(made(path, "w+", dtype, (size,))))


def nested_column(values: Array, shapes: Sequence[Shape]) -> pa.Array:
    """Return a column of one array per row, of one rank, from the values of all rows.

    Axes of one size are lists of a fixed size, as far as all axes inside them are.

    >>> nested_column(np.zeros(10), [(2, 1), (8, 1)]).type
    LargeListType(large_list<item: fixed_size_list<item: double>[1]>)
    """
    column, sizes, is_ragged = to_arrow(values), np.array(shapes, np.int64), False
    for axis in range(sizes.shape[1] - 1, -1, -1):
        counts = sizes[:, :axis].prod(axis=1)  # how often each row has this axis
        held = sizes[counts > 0, axis]
        size = int(held[0]) if len(held) else 0
        is_ragged = is_ragged or not 0 < size <= INT32_MAX or bool((held != size).any())
        if is_ragged:
            ends = np.cumsum([0, *np.repeat(sizes[:, axis], counts)])
            column = pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), column)
        else:
            column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def ragged_column(values: Array, offsets: npt.NDArray[np.int64]) -> pa.Array:
    """Flat values and row offsets as an Arrow list column, without copying."""
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), to_arrow(values))


def to_arrow(array: Array) -> pa.Array:
    """Return an array of any rank as a column of nested fixed-size lists, without copying.

    >>> to_arrow(np.zeros((5, 3, 2), np.float32)).type
    FixedSizeListType(fixed_size_list<item: fixed_size_list<item: float>[2]>[3])
    """
    if not array.size and math.prod(filter(None, array.shape)) > MOST_EMPTY:
        raise WRONG_SHAPE.error(f"An array of the shape {list(array.shape)} holds no values.")
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise NOT_UTF8.error(
                f"An array of text contains bytes that are not UTF-8: {error}"
            ) from None
    values = np.asarray(array).reshape(-1)
    column = (
        pa.array(values.tolist(), pa.string()) if values.dtype.kind == "U" else pa.array(values)
    )
    for axis in range(array.ndim - 1, 0, -1):
        size = array.shape[axis]
        if 0 < size <= INT32_MAX:
            column = pa.FixedSizeListArray.from_arrays(column, size)
        else:  # which Arrow has not as a fixed size
            ends = np.arange(math.prod(array.shape[:axis]) + 1, dtype=np.int64) * size
            column = pa.LargeListArray.from_arrays(ends, column)
    return column
