"""Rows that name files, whose content an input reads, and `.npy` files with one row each that were
opened as several.

An array in a file of its own may be many rows or one. Once a model is trained, what it reads
decides: images of many channels, vectors and sequences have one axis more than what was opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from surefit.config import set_option
from surefit.data.cache import fingerprint
from surefit.data.cell_files import AUDIO, IMAGES, names_files
from surefit.data.column_types import (
    AUDIO_ENDINGS,
    IMAGE_ENDINGS,
    array_rank,
    is_array,
    is_number,
    is_text,
)
from surefit.data.formats.numpy_files import ragged_column, to_arrow
from surefit.data.row_arrays import row_shape
from surefit.data.several_columns import base_role
from surefit.data.split import sample_rows
from surefit.data.table import Source, Table
from surefit.findings import Finding, note, rule
from surefit.inputs.encoder import Encoder

NAMES_OF_FILES = rule(
    "SF176",
    "error",
    "file names in place of their content",
    why="The model would learn the names of the files. Names often contain the label.",
    fix="Write the content of the files into the column.",
    accept="The names of the files are trained on as texts.",
)

_LOOK_AT = 64
_LONGEST = 1024
_ARRAYS = (".npy", ".npz", ".pt", ".safetensors", ".h5", ".mat")
_TEXTS = (".txt", ".md", ".html", ".xml", ".json")
_KINDS = {
    "images": IMAGE_ENDINGS,
    "audio": AUDIO_ENDINGS,
    "arrays": _ARRAYS,
    "texts": _TEXTS,
}
_READ = {"image": ("images", "files"), "audio": ("audio", "files")}
"""The roles whose files are decoded when rows are encoded, and the kinds that they read."""
_ENDINGS = "|".join(map(re.escape, (*IMAGE_ENDINGS, *AUDIO_ENDINGS, *_ARRAYS)))
_UNMISTAKABLE = re.compile(rf"(?=\S{{1,500}}\Z).*(?:{_ENDINGS})", re.IGNORECASE)
"""Names with endings that texts do not have by chance, so that the files need not exist."""


def holds_files(table: Table, roles: Mapping[str, str], role: str) -> bool:
    """Return whether a column holds images or audio or, if it is text, names of such files."""
    column, (kind,) = roles[role], [each for each in (IMAGES, AUDIO) if each.role == role]
    return not is_text(table.column_type(column)) or names_files(table, column, kind)


def check_file_names(table: Table, roles: Mapping[str, str]) -> Iterator[Finding]:
    """Yield an error for each column whose texts are mostly paths that its role does not read."""
    for role, column in roles.items():
        if column not in table.columns or not is_text(table.column_type(column)):
            continue
        rows = sample_rows(table.num_rows, _LOOK_AT, seed=0)
        plain = replace(table, arrow=table.arrow.select([column]), files=())
        written = [row[column] for row in plain.rows(rows.tolist())]
        found = [row[column] for row in replace(plain, files=(column,)).rows(rows.tolist())]
        values = [
            (path, text, row) for path, text, row in zip(found, written, rows, strict=True) if text
        ]
        paths = [value for value in values if _is_file(value[0])]
        missing = [value for value in values if _UNMISTAKABLE.fullmatch(value[1])]
        named = [value[1].lower() for value in (paths or missing)[:1]]
        kinds = (kind for kind, ends in _KINDS.items() if named and named[0].endswith(ends))
        kind = next(kinds, "files")
        is_read = kind in _READ.get(base_role(role, column), ())
        if role == "label" or is_read or 2 * max(len(paths), len(missing)) <= len(values):
            continue
        _, example, row = (paths or missing)[0]
        count = f"{len(paths)} of the {len(values)} values looked at are existing files"
        if not paths:
            count = f"the {len(values)} values looked at are names of files that were not found"
        message = f"column {column!r} ({role}) has file names: {count}, such as {example[:80]!r}."
        fix = _fix(kind, column, "label" in roles)
        yield NAMES_OF_FILES.finding(message, table.where(int(row)), fix=fix, column=column)


GIVE_CLASSES = (
    "Give the classes: a column label, one folder per class, or label_from, which takes "
    r"them from the file names, such as --set 'label_from=^(\w+?)_'."
)


def _is_file(path: str) -> bool:
    if len(path) > _LONGEST or "\n" in path:
        return False
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def _fix(kind: str, column: str, labelled: bool) -> str:
    if kind in ("images", "audio") and not labelled:
        return GIVE_CLASSES
    if kind == "images":
        named = set_option("columns.image", column)
        return f"Read them as images: --task image-classification {named}."
    if kind == "arrays":
        return (
            "Name .npy files, by paths relative to the data file; or save all arrays as one: "
            "numpy.savez('data.npz', features=numpy.stack(arrays), label=labels)."
        )
    if kind == "audio":
        named = set_option("columns.audio", column)
        return f"Read them as audio: --task audio-classification {named}, with a model for audio."
    return (
        "Write the content of the files into the column, or save each as .txt: such files are read "
        "by their paths."
    )


Shape = tuple[int, ...]


def join_parts(
    table: Table, encoder: Encoder, is_row: Callable[[Shape], bool], role: str
) -> tuple[Table, list[Finding]]:
    """Return table with one row per file, where the array of each file is one; else as it is."""
    column = encoder.roles[role]
    are_arrays = all(Path(source.file).suffix == ".npy" for source in table.sources)
    if column not in table.columns or not are_arrays:
        return table, []
    sides = _sides(table, column)
    starts = [source.first_row for source in table.sources]
    counts = np.diff([*starts, table.num_rows]).tolist()
    if sides is None or not all(counts):
        return table, []
    shapes = [(count, *sides) for count in counts]
    if not all(map(is_row, shapes)):
        return table, []
    arrow = table.arrow.take(starts)
    place = arrow.column_names.index(column)
    message = f"{table.sources[0].file}: the array {list(shapes[0])} is read as one row."
    joined = replace(
        table,
        arrow=arrow.set_column(place, column, _joined(table, column, shapes)),
        sources=tuple(Source(each.file, row) for row, each in enumerate(table.sources)),
        key=fingerprint(table.key, "one row per file"),
    )
    return joined, [note(message, file=table.sources[0].file)]


def _sides(table: Table, column: str) -> Shape | None:
    """Return the sizes of a row's axes, if all rows have the same; a number has none."""
    kind = table.column_type(column)
    if is_number(kind):
        return ()
    if not is_array(kind) or array_rank(kind) > 2:
        return None
    sizes = [axis.size for axis in row_shape(table, column).axes]
    known = tuple(size for size in sizes if size)
    return known if len(known) == len(sizes) else None


def _joined(table: Table, column: str, shapes: Sequence[Shape]) -> pa.Array:
    parts = np.stack([row[column] for row in table.rows()])
    if len({*shapes}) == 1:
        return to_arrow(parts.reshape(-1, *shapes[0]))
    return ragged_column(parts, np.cumsum([0, *(shape[0] for shape in shapes)]))
