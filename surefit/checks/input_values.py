"""Inputs that are not what they seem: alike in all rows, nearly black, names of files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.batches.field import Field
from surefit.checks.encoded_tokens import check_unknown_tokens
from surefit.checks.ledger import target_unit
from surefit.checks.number_values import (
    check_constant_features,
    check_magnitudes,
    of_store,
)
from surefit.config import set_option
from surefit.data.column_types import (
    AUDIO_ENDINGS,
    IMAGE_ENDINGS,
    is_list,
    is_text,
    list_axes,
)
from surefit.data.several_columns import base_role
from surefit.data.split import sample_rows
from surefit.data.table import Table
from surefit.findings import Finding, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.image.image_planes import AS_THEY_ARE
from surefit.inputs.store import Store

Array = npt.NDArray[Any]
SAME_INPUTS = rule(
    "SF246",
    "warning",
    "all training rows have the same input",
    why="Nothing can be learned from inputs that do not differ, whatever the labels are.",
    fix="Check how the inputs were made: a fixed file, zeros or a placeholder are usual causes.",
    accept="The run starts without the warning; nothing but the most common label is learned.",
)

Sides = tuple[tuple[Store, Table], tuple[Store, Table]]
CHUNK = 1 << 20
FEWEST_ROWS = 8
SHOWN = 3


def check_same_inputs(store: Store, column: str) -> Iterator[Finding]:
    """Refuse training rows that are equal in all but their labels."""
    inputs = [name for name in store.fields if name != "labels"]
    if len(store) < FEWEST_ROWS or "labels" not in store.fields or not inputs:
        return
    if not all(_all_equal(store, name) for name in inputs):
        return
    first = store.value(inputs[0], 0)
    what = f"{first.flat[0] + 0.0:g} everywhere" if np.ptp(first) == 0 else "the same values"
    message = f"column {column!r}: the inputs of all {len(store):,} training rows are equal: {what}"
    yield SAME_INPUTS.finding(f"{message} (shape {list(first.shape)}).", column=column)


def _all_equal(store: Store, name: str) -> bool:
    """Whether all rows of a column equal the first; it stops at the first chunk that does not."""
    first = store.value(name, 0)
    values = store.values(name)
    if not first.size or len(values) != len(store) * first.size:
        return False
    if store.fields[name].rank:
        ends = store.offsets(name)
        if (ends != np.arange(len(ends)) * first.size).any():
            return False
    step = max(1, CHUNK // first.size) * first.size
    flat = first.ravel()
    for start in range(0, len(values), step):
        if not (values[start : start + step].reshape(-1, flat.size) == flat).all():
            return False
    return True


MIXED_RANGES = rule(
    "SF240",
    "error",
    "images of different ranges",
    why="Images from 0 to 1 among images from 0 to 255 are black to the model.",
    fix="Save all images in one range, best as uint8 from 0 to 255.",
    accept="All images are read as ranging from 0 to 255; the others are nearly black.",
)

NEARLY_BLACK = rule(
    "SF241",
    "warning",
    "8-bit images that hold only 0 and 1",
    why="8-bit images range to 255, so that 1 is black to a model that was trained on images.",
    fix="Multiply the pixels by 255 before they are saved as 8-bit images.",
    accept="The images are trained on as they are.",
    covered_by=("SF240",),
)

MAX_IMAGES = 256
ENOUGH = 0.02
"""The share of an image's pixels that are 1 before it counts; noise on black has fewer."""


def check_float_images(table: Table, column: str) -> Iterator[Finding]:
    """Floating-point images of which some range to 1 and others to 255, among all rows."""
    axes, value = list_axes(table.column_type(column))
    if len(axes) not in (2, 3) or not pa.types.is_floating(value):
        return
    tops = np.concatenate([_largest(chunk) for chunk in table.arrow[column].chunks])
    small, large = np.flatnonzero((tops > 0) & (tops <= 1)), np.flatnonzero(tops > 1)
    if not len(small) or not len(large):
        return
    shown = " and ".join(
        f"{len(rows):,} {'has' if len(rows) == 1 else 'have'} values up to {tops[rows].max():g} "
        f"(row{'s' * (len(rows) > 1)} {', '.join(_numbers(table, rows))})"
        for rows in (small, large)
    )
    message = f"column {column!r}: of {len(tops):,} images, {shown}."
    fewer = small if len(small) <= len(large) else large
    yield MIXED_RANGES.finding(message, table.where(int(fewer[0])), column=column)


def _numbers(table: Table, rows: Array) -> list[str]:
    return [str(table.where(row)["row"]) for row in rows[:SHOWN].tolist()]


def _largest(rows: pa.Array) -> Array:
    """The largest value of each row of nested lists; 0 for rows without values."""
    starts = np.arange(len(rows) + 1, dtype=np.int64)
    values = rows
    while is_list(values.type):
        if pa.types.is_fixed_size_list(values.type):
            if values.null_count:
                return np.zeros(len(rows))  # reported by the encoding
            starts = starts * values.type.list_size
        else:
            offsets = np.asarray(values.offsets, np.int64)
            starts = (offsets - offsets[0])[starts]
        values = values.flatten()
    flat = values.to_numpy(zero_copy_only=False)
    filled = np.flatnonzero(np.diff(starts) > 0)
    found = np.zeros(len(rows))
    if len(filled):
        found[filled] = np.maximum.reduceat(flat, starts[filled])
    return np.nan_to_num(found)


def check_black_images(store: Store, table: Table, encoder: Encoder) -> Iterator[Finding]:
    """Encoded images whose pixels are only 0 and 1 of 255, on a sample spread over the rows."""
    form = encoder.input.pixels
    if "pixel_values" not in store.fields or not len(store) or form is None:
        return
    if form.float_range == AS_THEY_ARE:
        return
    std, mean = (np.asarray(each, np.float32)[:, None, None] for each in (form.std, form.mean))
    stride = -(-len(store) // MAX_IMAGES)
    sample = np.arange(0, len(store), stride)
    black = []
    for place in sample.tolist():
        pixels = np.rint((store.value("pixel_values", place) * std + mean) / form.scale)
        if pixels.max() <= 1 and (pixels == 1).mean() >= ENOUGH:
            black.append(place)
    if not black:
        return
    wheres = [table.where(int(store.source_row[place])) for place in black[:SHOWN]]
    numbers = ", ".join(str(where["row"]) for where in wheres)
    only = "has" if len(black) == 1 else "have"
    message = (
        f"column {encoder.roles['image']!r}: {len(black):,} of {len(sample):,} images looked at "
        f"{only} only the pixel values 0 and 1 of 255 (row{'s' * (len(wheres) > 1)} {numbers})."
    )
    yield NEARLY_BLACK.finding(message, wheres[0], column=encoder.roles["image"])


READ_WHOLE = ("image", "audio", "features", "text", "input_ids")
"""Roles of inputs beside which other columns are not read."""
FEATURES = ("inputs_embeds", "features")
"""The column of features in a batch: sequences, or vectors."""


def check_stores(sides: Sides, fields: Mapping[str, Field], encoder: Encoder) -> Iterator[Finding]:
    """Encoded inputs of training and validation rows."""
    (train, table), (validation, shown) = sides
    column = next((encoder.roles[role] for role in READ_WHOLE if role in encoder.roles), "")
    unknown = [*check_unknown_tokens(train, table, encoder)]
    yield from unknown or check_unknown_tokens(validation, shown, encoder)
    predicts_row = "labels" in fields and target_unit(fields) == "rows"
    if predicts_row:
        same = list(check_same_inputs(train, column))
        yield from same
        if same:
            return
    if "features" in encoder.roles:
        name = next((name for name in FEATURES if name in fields), "")
        numbers, others = (of_store(*side, name, column) for side in sides)
        found = [*check_magnitudes(numbers, "training")] if numbers is not None else []
        if numbers is not None:
            yield from check_constant_features(numbers, others)
        if others is not None and not found:
            found = [*check_magnitudes(others, "validation")]
        yield from found
    yield from check_black_images(train, table, encoder)


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
_UNMISTAKABLE = (*IMAGE_ENDINGS, *AUDIO_ENDINGS, *_ARRAYS)
"""Endings that texts do not have by chance, so that the files need not exist."""


def check_file_names(table: Table, roles: Mapping[str, str]) -> Iterator[Finding]:
    """An error for each column whose texts are mostly paths that its role does not read."""
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
        missing = [value for value in values if _is_unmistakable(value[1])]
        kind = _kind_of((paths or missing or [("", "", 0)])[0][1])
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


def _is_file(path: str) -> bool:
    if len(path) > _LONGEST or "\n" in path:
        return False
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def _is_unmistakable(text: str) -> bool:
    return bool(re.fullmatch(r"\S{1,500}", text)) and text.lower().endswith(_UNMISTAKABLE)


def _kind_of(path: str) -> str:
    return next((k for k, endings in _KINDS.items() if path.lower().endswith(endings)), "files")


def _fix(kind: str, column: str, labelled: bool) -> str:
    if kind in ("images", "audio") and not labelled:
        return (
            "Give the classes: a column label, one folder per class, or label_from, which takes "
            r"them from the file names, such as --set 'label_from=^(\w+?)_'."
        )
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
