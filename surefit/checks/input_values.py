"""Values of inputs and targets that shapes and types say nothing about: scale, text, dates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.batches.field import Field
from surefit.checks.date_columns import check_number_dates, check_text_dates
from surefit.checks.image_range import check_black_images, check_float_images
from surefit.checks.ledger import target_unit
from surefit.checks.magnitudes import check_features, check_number_columns
from surefit.checks.target_markers import check_target_markers
from surefit.checks.unknown_tokens import check_unknown_tokens
from surefit.checks.wrong_encoding import check_encoding
from surefit.config import set_option
from surefit.data.column_types import is_number, is_text
from surefit.data.label_columns import target_columns
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.encode.encoder import Encoder
from surefit.encode.images.image_planes import AS_THEY_ARE
from surefit.encode.store import Store
from surefit.findings import Finding, note, rule
from surefit.tasks.numeric_columns import account_columns
from surefit.tasks.task_spec import TaskSpec

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

CONSTANT_IN_TRAINING = rule(
    "SF248",
    "warning",
    "constant in training, but not in validation",
    why=("What other values mean cannot be learned, so the evaluation is on rows of another kind."),
    fix="Draw both sets from the same rows (leave --eval-data out), or leave the column out.",
    accept="The sets stay as they are.",
)

Array = npt.NDArray[Any]
Sides = tuple[tuple[Store, Table], tuple[Store, Table]]
CHUNK = 1 << 20
UNLIKELY = 1e-4
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


def check_constant_features(sides: Sides, name: str, column: str) -> Iterator[Finding]:
    """Features that are constant in training rows; a warning where they are not in validation."""
    (train, _), (validation, shown) = sides
    if name not in train.fields or len(train) < FEWEST_ROWS:
        return
    width = int(train.value(name, 0).shape[-1])
    low, high = _ranges(train, name, width)
    constant = np.flatnonzero(low == high)
    if not len(constant) or len(constant) == width:
        return
    varied = _rows_unlike(validation, name, constant, low[constant])
    odd = [
        (int(feature), rows)
        for feature, rows in zip(constant, varied, strict=True)
        if _is_unlikely(len(rows), len(validation), len(train), width)
    ]
    numbers = ", ".join(map(str, constant[:SHOWN])) + (" …" if len(constant) > SHOWN else "")
    if not odd:
        message = f"column {column!r}: {len(constant)} of {width} features never change: {numbers}."
        yield note(message, column=column)
        return
    feature, rows = odd[0]
    where = shown.where(int(validation.source_row[rows[0]]))
    message = (
        f"column {column!r}: feature {feature} is {low[feature] + 0.0:g} in all {len(train):,} "
        f"training rows, and another value in {len(rows):,} of {len(validation):,} validation "
        f"rows (row {where['row']}, for example). Features of this kind: {len(odd)} of {width}."
    )
    yield CONSTANT_IN_TRAINING.finding(message, where, column=column)


def _ranges(store: Store, name: str, width: int) -> tuple[Array, Array]:
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    flat = store.values(name)
    step = max(1, CHUNK // width) * width
    for start in range(0, len(flat), step):
        chunk = flat[start : start + step].reshape(-1, width)
        low, high = np.minimum(low, chunk.min(0)), np.maximum(high, chunk.max(0))
    return low, high


def _rows_unlike(store: Store, name: str, features: Array, known: Array) -> list[Array]:
    """The rows in which each feature has another value than the known one."""
    found: list[list[Array]] = [[] for _ in features]
    if not len(store):
        return [np.empty(0, np.int64) for _ in features]
    flat, offsets = store.values(name), store.offsets(name)
    width = int(store.value(name, 0).shape[-1])
    step = max(1, CHUNK // width) * width
    for start in range(0, len(flat), step):
        chunk = flat[start : start + step].reshape(-1, width)[:, features]
        for at in np.flatnonzero((chunk != known).any(0)).tolist():
            places = start + np.flatnonzero(chunk[:, at] != known[at]) * width
            found[at].append(np.searchsorted(offsets, places, side="right") - 1)
    none = [np.empty(0, np.int64)]
    return [np.unique(np.concatenate(each or none)) for each in found]


def _is_unlikely(hits: int, shown: int, trained: int, tried: int) -> bool:
    """Whether chance hardly puts all rows with a value into one set, for one of `tried` columns."""
    if hits < 2 or not shown:
        return False
    return hits * math.log(shown / (shown + trained)) + math.log(tried) < math.log(UNLIKELY)


def check_constant_columns(
    sides: tuple[tuple[Table, Rows], tuple[Table, Rows]], columns: Sequence[str]
) -> Iterator[Finding]:
    """Columns of a table with one value in the training rows and others in the validation rows."""
    (table, train), (other, validation) = sides
    if len(train) < FEWEST_ROWS or not len(validation):
        return
    for column in columns:
        kind = table.column_type(column)
        if not (is_number(kind) or is_text(kind)) or column not in other.columns:
            continue
        value = table.arrow[column][int(train[0])]
        if not value.is_valid or not _equal(table, column, value)[train].all():
            continue
        unlike = validation[~_equal(other, column, value)[validation]]
        if _is_unlikely(len(unlike), len(validation), len(train), len(columns)):
            yield _varies(other, column, (value.as_py(), unlike), (train, validation))


def _equal(table: Table, column: str, value: pa.Scalar) -> Array:
    values = table.arrow[column]
    if values.type != value.type:  # the sides are read from files of their own
        values, value = values.cast(pa.string()), value.cast(pa.string())
    return np.asarray(pc.equal(values, value).fill_null(False))


def _varies(
    table: Table, column: str, values: tuple[Any, Rows], rows: tuple[Rows, Rows]
) -> Finding:
    known, unlike = values
    named: Mapping[int, Any] = {
        int(table.where(int(row))["row"]): table.arrow[column][int(row)].as_py()
        for row in unlike[:SHOWN]
    }
    shown = ", ".join(f"{value!r} in row {row}" for row, value in named.items())
    message = (
        f"column {column!r} is {known!r} in all {len(rows[0]):,} training rows, and another value "
        f"in {len(unlike):,} of {len(rows[1]):,} validation rows: {shown}."
    )
    fix = (
        "Draw both sets from the same rows (leave --eval-data out), or leave the column out: "
        f"{set_option('ignore', column)}."
    )
    return CONSTANT_IN_TRAINING.finding(
        message, table.where(int(unlike[0])), fix=fix, column=column
    )


TableSides = tuple[tuple[Table, Rows], tuple[Table, Rows]]
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
    numbers = [name for name, role in read.items() if role != "label"]
    image, label = encoder.roles.get("image"), encoder.roles.get("label")
    as_they_are = encoder.fitted.get("pixels", {}).get("float_range") == AS_THEY_ARE
    if image in table.columns and not as_they_are:
        yield from check_float_images(table, image)
    if task.whole_rows:
        yield from check_number_columns(table, numbers)
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
        yield from check_constant_features(sides, name, column)
        found = [*check_features(train, table, name, column, "training")]
        yield from found or check_features(validation, shown, name, column, "validation")
    yield from check_black_images(train, table, encoder)
