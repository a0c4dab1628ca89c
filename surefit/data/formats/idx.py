"""IDX files (MNIST) to images and labels, unpacked once into the cache and memory-mapped."""

from __future__ import annotations

import math
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.config import Reading
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import file_fingerprint
from surefit.data.data_rules import CORRUPT_FILE
from surefit.data.formats.numpy_files import to_arrow, with_labels
from surefit.data.formats.opened import Opened, bad_file, cached_array
from surefit.data.formats.text_decoding import open_bytes

ENDING = ".idx"
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""The third byte of a file, and the dtype it means."""
CHUNK_BYTES = 1 << 20

Array = npt.NDArray[Any]


def open_idx(path: Path, reading: Reading) -> Opened:
    """Images with the labels from the file next to them; else labels or features alone."""
    array = _map_idx(path)
    if array.ndim < 3:
        return Opened(pa.table({"label" if array.ndim == 1 else "features": to_arrow(array)}))
    return with_labels(path, {"image": array}, _map_idx)


def _map_idx(path: Path) -> Array:
    def fill(target: Path) -> None:
        with open_bytes(path) as file:
            _unpack(file, path, target)

    return cached_array(fingerprint("idx", file_fingerprint(path)), fill)


def _unpack(file: IO[bytes], path: Path, target: Path) -> None:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
        found = magic.hex(" ") or "nothing"
        what = f" is not an IDX file: it begins with {found}, expected 00 00, a type and a number"
        raise bad_file(path, f"{what} of axes.", CORRUPT_FILE.fix)
    head = file.read(4 * magic[3])
    shape = tuple(int(size) for size in np.frombuffer(head[: len(head) // 4 * 4], ">u4"))
    dtype = np.dtype(TYPES[magic[2]])
    wanted = math.prod(shape) * dtype.itemsize
    if len(shape) < magic[3]:
        raise _wrong_size(path, 4 + 4 * magic[3], 4 + len(head))
    if path.stat().st_size * 1100 < wanted:  # gzip compresses 1000:1 at most: do not allocate
        raise _wrong_size(path, wanted, path.stat().st_size)
    array = np.lib.format.open_memmap(target, "w+", dtype.newbyteorder("="), shape)
    raw, done = array.reshape(-1).view(np.uint8), 0
    while chunk := file.read(CHUNK_BYTES):
        if done + len(chunk) > wanted:
            raise _wrong_size(path, wanted, done + len(chunk))
        raw[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
        done += len(chunk)
    if done < wanted:
        raise _wrong_size(path, wanted, done)
    if not dtype.isnative:
        array.byteswap(inplace=True)


def _wrong_size(path: Path, wanted: int, found: int) -> Exception:
    what = f" has {found} bytes, but its header announces {wanted}."
    return bad_file(path, what, "Download the file again.")
