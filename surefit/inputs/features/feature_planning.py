"""Rows of features before any is read: their layout, from their shape, the labels and the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.column_types import describe_type, is_array, is_list, is_number, list_axes
from surefit.data.data_rules import DTYPE_CONVERTED
from surefit.data.row_arrays import (
    Axis,
    RowShape,
    row_shape,
)
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.findings import Finding, note
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput
from surefit.inputs.features.feature_layout import FeatureLayout, plan_layout, planned_axes
from surefit.inputs.model_hints import Hints
from surefit.inputs.row_input import Planned


def plan_features(given: Planned) -> tuple[FittedInput, list[Finding]]:
    """Choose the layout of the features: as the config, the labels, the model and the rows say."""
    table, roles, asked = given.table, given.encoder.roles, given.config.features
    hints = replace(given.hints, steps=asked.steps, width=asked.width)
    if not given.by_row:
        hints = replace(hints, reads_vectors=None)
    if given.step_labels:
        hints = hints_by_labels(table, roles, hints, asked.labels)
    column, known = roles["features"], given.encoder.input
    if not is_array(table.column_type(column)):
        return known, []
    shape = row_shape(table, column)
    with _naming_row(table, column, shape):
        layout, found = plan_layout(shape, hints, column)
    steps, _ = planned_axes(shape, layout)
    found = [*found, *_lengths(steps, column, roles), *_casts(table, column, layout)]
    return replace(known, layout=layout), found


def _casts(table: Table, column: str, layout: FeatureLayout) -> list[Finding]:
    kind = table.column_type(column)
    if layout.places or list_axes(kind)[1] == pa.float32():
        return []
    message = f"column {column!r} is {describe_type(kind)}; it is read as float32."
    return [DTYPE_CONVERTED.finding(message, column=column)]


def sequence_axes(table: Table, encoder: Encoder) -> tuple[Axis, Axis] | None:
    """Return the axes [sequence length, feature size] of the rows, once their layout is planned."""
    layout = encoder.input.layout
    if layout is None:
        return None
    return planned_axes(row_shape(table, encoder.roles["features"]), layout)


def hints_by_labels(
    table: Table, roles: Mapping[str, str], hints: Hints, asked: str | None
) -> Hints:
    """Return the hints with what labels of time steps say about the axes; `asked` is
    features.labels.

    Flat rows with a label for each value have feature size 1, unless the model reads vectors. The
    time is the one of two axes that has as many places as there are labels.
    """
    features, labels = (table.arrow[roles[role]] for role in ("features", "label"))
    axes = len(list_axes(features.type)[0])
    known = hints.steps is not None or hints.width is not None or asked == "row"
    if known or not is_list(labels.type) or axes not in (1, 2):
        return hints
    sizes = pc.list_value_length(labels).drop_null()
    longest = pc.max(sizes).as_py() or 0
    if axes == 1 and longest > 1 and sizes.equals(pc.list_value_length(features).drop_null()):
        is_vector = hints.reads_vectors is not None and hints.reads_vectors(longest)
        return hints if is_vector else replace(hints, width=1, labels=True)
    sides = [axis.size for axis in row_shape(table, roles["features"]).axes]
    if axes == 1 or pc.min(sizes).as_py() != longest or sides.count(longest) != 1:
        return hints
    if asked is None and _are_of_row(labels, as_long_as_first=sides[0] == longest):
        return hints
    return replace(hints, steps=longest, labels=True)


def _are_of_row(labels: pa.ChunkedArray, as_long_as_first: bool) -> bool:
    """Return whether lists of labels may be classes of the row: 0 and 1, as long as the features
    are wide, or one-hot.
    """
    if is_list(labels.type.value_type) or not is_number(labels.type.value_type):
        return False
    values = np.asarray(pc.list_flatten(labels).cast(pa.float64()))
    if not np.isin(values, (0, 1)).all():
        return False
    rows = values.reshape(len(labels) - labels.null_count, -1)
    return not as_long_as_first or bool((rows.sum(1) == 1).all())


@contextmanager
def _naming_row(table: Table, column: str, shape: RowShape) -> Iterator[None]:
    """Add a row of the usual size to what is found about all of them."""
    try:
        yield
    except FindingError as error:
        row = first_of_size(table, column, shape.axes[0].usual)
        where = {} if row is None else table.where(row)
        named = (replace(each, where={**where, **each.where}) for each in error.findings)
        raise FindingError(*named) from error.__cause__


def first_of_size(table: Table, column: str, size: int | None) -> int | None:
    """The first row that has an array, of this size along its first axis where rows are lists."""
    start = 0
    for chunk in table.arrow[column].chunks:
        fits = chunk.is_valid()
        if pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type):
            fits = pc.equal(pc.list_value_length(chunk), size) if size else fits
        place = pc.index(fits, True).as_py()
        if place >= 0:
            return start + int(place)
        start += len(chunk)
    return None


def _lengths(steps: Axis, column: str, roles: Mapping[str, str]) -> list[Finding]:
    if steps.size is not None:
        return []
    mask = roles.get("mask")
    origin = f"is column {mask!r}" if mask else "is made from their lengths"
    message = (
        f"Rows of column {column!r} have sequence lengths of {steps}; the attention mask {origin}."
    )
    return [note(message, column=column)]
