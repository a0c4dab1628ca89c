"""Values of inputs and targets that shapes and types say nothing about: scale, text, dates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from surefit.batches.field import Field
from surefit.checks.blank_cells import check_blanks
from surefit.checks.constant_inputs import (
    Sides,
    check_constant_columns,
    check_constant_features,
    check_same_inputs,
)
from surefit.checks.image_range import check_black_images, check_float_images
from surefit.checks.ledger import target_unit
from surefit.checks.magnitudes import check_features, check_number_columns
from surefit.checks.number_dates import check_number_dates
from surefit.checks.target_markers import check_target_markers
from surefit.checks.text_dates import check_text_dates
from surefit.checks.unknown_tokens import check_unknown_tokens
from surefit.checks.wrong_encoding import check_encoding
from surefit.data.joint_columns import target_columns
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.encode.encoder import Encoder
from surefit.encode.images.image_planes import AS_THEY_ARE
from surefit.findings import Finding
from surefit.tasks.column_account import account_columns
from surefit.tasks.task_spec import TaskSpec

TableSides = tuple[tuple[Table, Rows], tuple[Table, Rows]]
FEATURES = ("inputs_embeds", "features")
"""The column of features in a batch: sequences, or vectors."""
INPUTS = ("image", "audio", "features", "text")


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
        yield from check_blanks([*tables.values()], encoder.fitted["columns"])
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
