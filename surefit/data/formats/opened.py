"""What opening one file gives, and what openers share: converted files, errors, label files.

Labels may be in a file of their own, beside the features or images that they belong to: `X.npy` has
`y.npy` or `labels.npy`, `X_train.npy` has `y_train.npy`, `shard-3.features.npy` has
`shard-3.labels.npy`; an IDX file `train-images-idx3-ubyte` has `train-labels-idx1-ubyte`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.config import Reading
from surefit.core.files import write_json
from surefit.core.foreign import WRONG_CONTENT, first_line, read_json
from surefit.data.arrow_types import map_arrow
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import file_fingerprint, open_entry
from surefit.data.data_rules import CORRUPT_FILE
from surefit.errors import FindingError
from surefit.findings import Finding, Rule

WRITE_AGAIN = "Write the file again."
CHUNK_BYTES = 1 << 24
TABLE, ARRAY = "table.arrow", "array.npy"
_FEATURES = ("x", "features", "feature", "inputs_embeds", "embeddings", "data", "inputs")
_LABELS = ("y", "Y", "labels", "label", "targets", "target")
IDX = re.compile(r"(.*[-._])?idx\d?(-ubyte)?")
"""The name of an IDX file, in lower case and without `.gz`."""


@dataclass(frozen=True)
class Opened:
    """The rows of one file, and what was found or assumed while it was read."""

    arrow: pa.Table
    findings: tuple[Finding, ...] = ()


def reading_key(path: Path, reading: Reading, *parts: Any) -> str:
    """Return a key that changes with a file, its place, which findings name, and its settings."""
    return fingerprint(*parts, file_fingerprint(path), str(path.resolve()), reading.model_dump())


def converted(key: str, write: Callable[[Path], Iterable[Finding]]) -> Opened:
    """Memory-map a table in the cache; if it is not there, `write` it, and return what it found."""

    def fill(folder: Path) -> None:
        found = write(folder / TABLE)
        write_json(folder / "findings.json", [asdict(each) for each in found])

    def read(folder: Path) -> Opened:
        found = read_json(folder / "findings.json", list[Finding])
        return Opened(map_arrow(folder / TABLE), tuple(found))

    return open_entry("tables", key, fill, read)


def cached_array(key: str, fill: Callable[[Path], object]) -> npt.NDArray[Any]:
    """Memory-map an array in the cache; if it is not there, `fill` writes it to a `.npy` file."""

    def read(folder: Path) -> npt.NDArray[Any]:
        return np.asarray(np.load(folder / ARRAY, mmap_mode="r", allow_pickle=False))

    return open_entry("arrays", key, lambda folder: fill(folder / ARRAY), read)


def cached_rows(
    key: str,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    rows: Callable[[slice], npt.NDArray[Any]],
) -> npt.NDArray[Any]:
    """Memory-map an array in the cache, which is written from `rows` a few megabytes at a time."""

    def fill(path: Path) -> None:
        target = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        size = max(1, CHUNK_BYTES // (max(1, math.prod(shape[1:])) * target.dtype.itemsize))
        for start in range(0, shape[0], size):
            part = slice(start, start + size)
            target[part] = rows(part)

    return cached_array(key, fill)


def bad_line(
    path: Path, line: int, what: str, fix: str = "", rule: Rule = CORRUPT_FILE
) -> FindingError:
    """Return the error about a line of a text file."""
    return rule.error(f"{path.name}, line {line}: {what}", fix=fix, file=str(path), line=line)


def bad_file(
    path: Path,
    what: str,
    fix: str = WRITE_AGAIN,
    rule: Rule = CORRUPT_FILE,
    **where: str | int | None,
) -> FindingError:
    """Return the error about a file that cannot be read; `what` goes on after its name."""
    return rule.error(f"{path.name}{what}", {"file": str(path), **where}, fix=fix)


@contextmanager
def reading_file(path: Path) -> Iterator[None]:
    """Report what an opener and its libraries did not foresee as a file that cannot be read."""
    try:
        yield
    except (*WRONG_CONTENT, pa.ArrowException) as error:
        raise bad_file(path, f" cannot be read: {first_line(error)}") from error


def labels_beside(path: Path) -> Path | None:
    """Return the label file that matches the name of a file, if it exists."""
    beside = (path.with_name(name) for name in label_names(path.name))
    return next((file for file in beside if file.is_file()), None)


def label_names(name: str) -> list[str]:
    """Return the names that the label file of a file of features or images may have."""
    if IDX.fullmatch(name.lower().removesuffix(".gz")):
        labels = name.replace("images", "labels").replace("idx3", "idx1").removesuffix(".gz")
        return [labels, f"{labels}.gz"] if "images" in name else []
    if not name.endswith(".npy"):
        return []
    words = re.split(r"([-_.])", name.removesuffix(".npy"))
    return [
        "".join([*words[:at], label, *words[at + 1 :]]) + ".npy"
        for at, word in enumerate(words)
        if word.lower() in _FEATURES
        for label in _LABELS
    ]


def without_labels(files: Sequence[Path]) -> list[Path]:
    """Return the files without the label files of others.

    A single pair of `.npy` files is kept: its arrays become two columns with their own names.
    """
    paired = [labels for file in files if (labels := labels_beside(file)) and labels in files]
    if len({*paired}) == 1 and paired[0].suffix == ".npy":
        return list(files)
    return [file for file in files if file not in paired]
