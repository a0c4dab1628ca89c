"""Values of inputs and targets that shapes and types say nothing about: scale, text, dates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.batches.field import Field
from surefit.checks.date_columns import check_number_dates, check_text_dates
from surefit.checks.encoded_tokens import check_unknown_tokens
from surefit.checks.ledger import target_unit
from surefit.checks.number_values import (
    TableSides,
    check_constant_columns,
    check_constant_features,
    check_magnitudes,
    check_target_markers,
    of_store,
    of_table,
)
from surefit.checks.wrong_encoding import check_encoding
from surefit.config import set_option
from surefit.data.column_types import is_list, is_number, is_text, list_axes
from surefit.data.several_columns import target_columns
from surefit.data.table import Table
from surefit.findings import Finding, note, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.image.image_planes import AS_THEY_ARE
from surefit.inputs.image.pixel_format import read_format
from surefit.inputs.store import Store
from surefit.targets.numeric_columns import account_columns
from surefit.targets.task_spec import TaskSpec

UNSEEN_BLANKS = rule(
    "SF267",
    "warning",
    "blank cells in a column that has none in the training rows",
    why="The model has never seen a blank there, so the prediction for such a row may be wrong.",
    fix="Fill the cells, or train on rows that have blanks, too.",
    accept="The blanks are read as the mean, or as an unknown category.",
)

MOST = 8


def check_blanks(
    tables: Sequence[Table], parts: Sequence[Mapping[str, Any]], label: str | None = None
) -> Iterator[Finding]:
    """Blanks per column that is read; one remark per table, and a warning for unseen ones.

    Rows without a label are dropped, so that their blanks are not unseen ones.
    """
    by_column: dict[str, Mapping[str, Any]] = {}
    for part in parts:  # of the parts of a column, the number says how blanks are read
        by_column.setdefault(part["column"], part)
    for table in tables:
        counts = {name: count_blanks(table, name) for name in by_column if name in table.columns}
        blank = {name: count for name, count in counts.items() if count}
        seen = {name: count for name, count in blank.items() if _is_seen(by_column[name])}
        if seen:
            yield _describe(table, seen, by_column)
        for name in blank.keys() - seen.keys():
            if label in table.columns and label != name:
                used = table.arrow.select([name, label]).filter(pc.is_valid(pc.field(label)))
                if not count_blanks(replace(table, arrow=used), name):
                    continue
            yield _warn(table, name, blank[name], by_column[name])


def count_blanks(table: Table, column: str) -> int:
    """How many cells of a column are empty, spaces or NaN.

    >>> from surefit.data.open_data import open_table
    >>> count_blanks(open_table([{"a": " "}, {"a": None}, {"a": "x"}]), "a")
    2
    """
    return sum(int(pc.sum(_blanks(chunk)).as_py() or 0) for chunk in table.arrow[column].chunks)


def _blanks(chunk: Any) -> Any:
    """Whether each cell of an array is blank."""
    if is_text(chunk.type):
        return pc.fill_null(pc.equal(pc.utf8_trim_whitespace(chunk), ""), True)
    return pc.is_null(chunk, nan_is_null=bool(pa.types.is_floating(chunk.type)))


def _first_blank(table: Table, column: str) -> int:
    start = 0
    for chunk in table.arrow[column].chunks:
        at = pc.index(_blanks(chunk), True).as_py()
        if at >= 0:
            return start + int(at)
        start += len(chunk)
    return 0


def _is_seen(part: Mapping[str, Any]) -> bool:
    """Whether the training rows have blanks in the column."""
    return bool(part["blank"]) if part["kind"] == "number" else None in part["values"]


def _describe(
    table: Table, counts: Mapping[str, int], parts: Mapping[str, Mapping[str, Any]]
) -> Finding:
    ways: dict[str, list[str]] = {}
    ordered = sorted(counts, key=lambda name: -counts[name])
    for name in ordered[:MOST]:
        kind = "date" if "order" in parts[name] else parts[name]["kind"]
        shown = f"{name!r} {counts[name]:,} ({counts[name] / table.num_rows:.1%})"
        ways.setdefault(WAYS[kind], []).append(shown)
    listed = "; ".join(f"{', '.join(names)}: {way}" for way, names in ways.items())
    more = f"; and {len(ordered) - MOST} further columns" if len(ordered) > MOST else ""
    where = table.where(_first_blank(table, ordered[0]))
    return note(f"blanks in {table.num_rows:,} rows: {listed}{more}.", where, column=ordered[0])


WAYS = {
    "number": "read as the mean of the training rows, with a flag for blanks",
    "date": "the parts of the date are read as their means, with a flag for blanks",
    "category": "blank is a category of its own",
}


def _warn(table: Table, column: str, count: int, part: Mapping[str, Any]) -> Finding:
    read = "an unknown category" if part["kind"] == "category" else "the mean, without a flag"
    where = table.where(_first_blank(table, column))
    return UNSEEN_BLANKS.finding(
        f"column {column!r} is blank in {count:,} of {table.num_rows:,} rows (first row "
        f"{where['row']}), and in no training row; these cells are read as {read}.",
        where,
        fix=f"Fill the cells, or leave the column out: {set_option('ignore', column)}.",
        column=column,
    )


SAME_INPUTS = rule(
    "SF246",
    "warning",
    "all training rows have the same input",
    why="Nothing can be learned from inputs that do not differ, whatever the labels are.",
    fix="Check how the inputs were made: a fixed file, zeros or a placeholder are usual causes.",
    accept="The run starts without the warning; nothing but the most common label is learned.",
)

Array = npt.NDArray[Any]
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
    if "pixel_values" not in store.fields or not len(store) or "pixels" not in encoder.fitted:
        return
    form = read_format(encoder.fitted["pixels"])
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


FEATURES = ("inputs_embeds", "features")
"""The column of features in a batch: sequences, or vectors."""
INPUTS = ("image", "audio", "features", "text", "input_ids")


def check_tables(sides: TableSides, task: TaskSpec, encoder: Encoder) -> Iterator[Finding]:
    """Columns that are read, of training data and of evaluation data; one finding per cause."""
    seen = set()
    tables = {table.key: table for table, _ in sides}
    for table in tables.values():
        for found in _check_table(table, task, encoder):
            cause = (found.code, found.where.get("column"))
            if cause not in seen:
                seen.add(cause)
                yield found
    if "columns" in encoder.fitted:
        label = encoder.roles.get("label")
        yield from check_blanks([*tables.values()], encoder.fitted["columns"], label)
    if task.whole_rows and not set(INPUTS) & encoder.roles.keys():
        label = encoder.roles.get("label")
        yield from check_constant_columns(sides, [c for c in sides[0][0].columns if c != label])


def _check_table(table: Table, task: TaskSpec, encoder: Encoder) -> Iterator[Finding]:
    roles = account_columns(table.columns, task, encoder)
    read = {name: role for name, role in roles.items() if role is not None}
    kinds = {name: table.column_type(name) for name, role in read.items() if role != "label"}
    numbers = [n for n, t in kinds.items() if is_number(t) and not pa.types.is_boolean(t)]
    image, label = encoder.roles.get("image"), encoder.roles.get("label")
    as_they_are = encoder.fitted.get("pixels", {}).get("float_range") == AS_THEY_ARE
    if image in table.columns and not as_they_are:
        yield from check_float_images(table, image)
    if task.whole_rows:
        for name in numbers:
            yield from check_magnitudes(of_table(table, name))
        yield from check_number_dates(table, numbers)
    if (parts := encoder.fitted.get("columns")) is not None:
        yield from check_text_dates(table, [c for c in table.columns if c != label], parts)
    if label in table.columns and "mean" in encoder.fitted:
        for targets, name in target_columns(table, label):
            yield from check_target_markers(targets, name)
    yield from check_encoding(table, [*read])


def check_stores(sides: Sides, fields: Mapping[str, Field], encoder: Encoder) -> Iterator[Finding]:
    """Encoded inputs of training and validation rows."""
    (train, table), (validation, shown) = sides
    column = next((encoder.roles[role] for role in INPUTS if role in encoder.roles), "")
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
