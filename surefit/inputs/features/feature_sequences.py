"""Features as the input of a row, sequences or vectors: planned, measured, encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.batches.field import Field
from surefit.data.column_types import (
    array_rank,
    describe_type,
    is_array,
    is_list,
    is_number,
    list_axes,
)
from surefit.data.data_rules import DTYPE_CONVERTED, WRONG_SHAPE
from surefit.data.profile import Profile
from surefit.data.row_arrays import (
    Axis,
    RowShape,
    row_shape,
)
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.findings import Finding, note
from surefit.inputs.augment.array_augment import SeriesChanges
from surefit.inputs.encoded_row import (
    DropReason,
    Encoding,
    RowFaultError,
    drop_row,
    encoded,
    refuse_overlong,
)
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FeatureStatistics, FittedInput
from surefit.inputs.features.feature_layout import (
    FeatureLayout,
    plan_layout,
    planned_axes,
    report_layout,
)
from surefit.inputs.file_names import join_parts
from surefit.inputs.model_hints import Hints
from surefit.inputs.row_input import Planned, ReadBy, RowInput


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


Steps = npt.NDArray[Any]

FIELDS = {
    "inputs_embeds": Field(("time", "width"), "float32", 0.0),
    "attention_mask": Field(("time",), "int64", 0, "inputs_embeds"),
}
VECTOR = Field(("width",), "float32")


def are_vectors(encoder: Encoder) -> bool:
    """Return whether each row is one vector rather than a sequence."""
    return layout_of(encoder).vector


def layout_of(encoder: Encoder) -> FeatureLayout:
    """Return the layout that was planned; by default, rows are not changed."""
    return encoder.input.layout or FeatureLayout()


def feature_fields(encoder: Encoder) -> dict[str, Field]:
    """Return a sequence and its mask, or one vector."""
    return {"features": VECTOR} if are_vectors(encoder) else FIELDS


@dataclass
class Spread:
    """Mean and squared deviations per channel, of rows that are seen one at a time."""

    rows: int = 0
    steps: int = 0
    longest: int = 0
    mean: Any = 0.0
    squares: Any = 0.0
    distributions: bool = True

    def add(self, steps: Steps) -> None:
        """Take in one row (T, W) of finite values."""
        self.rows += 1
        self.longest = max(self.longest, len(steps))
        if not len(steps) or not np.isfinite(steps).all():
            return  # encoding refuses the row
        steps = steps.astype(np.float64)
        mean, count = steps.mean(0), self.steps + len(steps)
        apart = mean - self.mean
        self.squares += ((steps - mean) ** 2).sum(0) + apart**2 * self.steps * len(steps) / count
        self.mean += apart * len(steps) / count
        self.steps = count
        self.distributions = self.distributions and are_distributions(steps)

    def fitted(self, width: int) -> FeatureStatistics:
        """Means and scales; distributions are left as they are, and are comparable already."""
        # without a finite row, both are one number for all features
        mean, scale = (np.broadcast_to(each, width) for each in (self.mean, self.squares))
        scale = np.sqrt(scale / max(self.steps, 1))
        if self.distributions:
            mean, scale = np.zeros_like(mean), np.ones_like(scale)
        scale = np.where(scale > 0, scale, 1.0)
        spread = (tuple(mean.tolist()), tuple(scale.tolist()))
        return FeatureStatistics(width, self.longest, *spread, self.distributions)


def are_distributions(steps: Steps) -> bool:
    """Return whether every step is a distribution over the width, as one-hot steps are.

    >>> are_distributions(np.array([[0.0, 1.0], [0.25, 0.75]])), are_distributions(np.eye(1))
    (True, False)
    """
    if steps.shape[1] < 2 or (steps < 0).any():
        return False
    return bool(np.abs(steps.sum(1, dtype=np.float64) - 1).max() < 1e-3)


@dataclass
class Reader:
    """Passes rows on and learns their widths, lengths and spread on the way."""

    encoder: Encoder
    by_width: dict[int, Spread] = field(default_factory=dict)

    def watch(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield the rows, unchanged."""
        for row in rows:
            steps = as_steps(row["features"], self.encoder)
            if steps is not None and steps.ndim == 2 and steps.size and steps.dtype.kind in "biuf":
                mask = row.get("mask")
                if mask is not None and len(mask) == len(steps):
                    steps = steps[np.asarray(mask) != 0]
                self.by_width.setdefault(steps.shape[1], Spread()).add(steps)
            yield row

    def fitted(self) -> tuple[FittedInput, list[Finding]]:
        """Return the width most rows agree on, and the spread of those rows."""
        known = self.encoder.input
        if not self.by_width:
            return replace(known, features=FeatureStatistics()), []
        width = max(self.by_width, key=lambda each: self.by_width[each].rows)
        fitted = self.by_width[width].fitted(width)
        longest = min(fitted.longest, self.encoder.max_length or fitted.longest)
        found = []
        if fitted.distributions and not are_vectors(self.encoder):
            column = self.encoder.roles["features"]
            message = f"every step of column {column!r} is a distribution over {width} places."
            found.append(note(message, column=column))
        return replace(known, features=replace(fitted, longest=longest)), found


def fit_features(
    rows: Iterable[Mapping[str, Any]], encoder: Encoder
) -> tuple[Encoder, list[Finding]]:
    """Return the Encoder with the feature size, longest sequence and spread of the features."""
    reader = Reader(encoder)
    for _ in reader.watch(rows):
        pass
    read, found = reader.fitted()
    return replace(encoder, input=read), found


def holds_features(table: Table, roles: Mapping[str, str]) -> bool:
    """Return whether the features are numbers; whole numbers in a flat row are ids."""
    kind = table.column_type(roles["features"])
    is_float = describe_type(kind).startswith(("float", "double", "halffloat"))
    return is_float or array_rank(kind) == 2


def adapt_layout(table: Table, encoder: Encoder) -> tuple[Table, Encoder, list[Finding]]:
    """Return table and Encoder for rows whose layout may differ from that of the training rows.

    A file for evaluation or prediction may be flat although the training rows were not; the feature
    size of the trained model decides how it is read. A file may also be a single row.
    """
    table, found = join_parts(table, encoder, partial(_is_row, encoder=encoder), "features")
    column, features = encoder.roles["features"], encoder.input.features
    if column not in table.columns or features is None or features.width is None:
        return table, encoder, found
    if not is_array(table.column_type(column)) or are_vectors(encoder):
        return table, encoder, found  # a vector of another size is named where it is encoded
    layout, notes = plan_layout(row_shape(table, column), Hints(trained=features.width), column)
    if layout == layout_of(encoder):
        return table, encoder, found
    read = replace(encoder.input, layout=layout)
    return table, replace(encoder, input=read), [*found, *notes]


def _is_row(shape: tuple[int, ...], encoder: Encoder) -> bool:
    """Return whether the array of a file has the shape of one row, and its parts cannot be rows."""
    layout, width, features = layout_of(encoder), encoder.input.width, encoder.input.features
    if layout.vector:
        return shape == (width,)
    as_stored = layout.width is None and layout.places is None and not layout.drop
    longest = 1 if features is None else features.longest
    is_sequence = as_stored and not layout.transposed and longest > 1
    predicting = encoder.predicting  # evaluated rows have their labels
    return predicting and is_sequence and len(shape) == 2 and shape[1] == width


def as_steps(features: Any, encoder: Encoder) -> Any:
    """Return one row as [steps, width], by the layout that was planned for the data."""
    if features is None:
        return None
    array = np.asarray(features) if not isinstance(features, list) else _stack(features)
    try:
        return layout_of(encoder).apply(array)
    except ValueError as error:
        raise RowFaultError(WRONG_SHAPE, str(error), "features") from None


def _stack(rows: list[Any]) -> Any:
    try:
        return np.asarray(rows)
    except ValueError:
        widths = sorted({0 if row is None else len(row) for row in rows})
        raise RowFaultError(
            WRONG_SHAPE, f"steps have different widths within the row: {widths}", "features"
        ) from None


def read_steps(row: Mapping[str, Any], encoder: Encoder) -> tuple[Steps, Any, int]:
    """Return the row's steps (T, W), its mask (T,), and how many steps are truncated."""
    name = encoder.roles["features"]
    steps = as_steps(row["features"], encoder)
    if steps is None or steps.size == 0:
        raise drop_row(DropReason.EMPTY)
    if steps.ndim != 2:
        raise RowFaultError(
            WRONG_SHAPE, f"shape {list(steps.shape)}; expected [steps, width] in each row", name
        )
    expected = encoder.input.width
    if steps.shape[1] != expected:
        raise RowFaultError(
            WRONG_SHAPE, f"width {steps.shape[1]}; the other rows have width {expected}", name
        )
    mask = row.get("mask")
    mask = np.ones(len(steps), np.int64) if mask is None else mask
    if not np.any(mask):  # a mean over no steps would be NaN, and so would every weight
        raise drop_row(DropReason.MASKED)
    limit = encoder.max_length
    if limit is None or len(steps) <= limit:
        return steps, mask, 0
    refuse_overlong(len(steps), encoder, "steps", name)
    return steps[:limit], mask[:limit], len(steps) - limit


def encode_steps(row: Mapping[str, Any], encoder: Encoder, targets: Mapping[str, Any]) -> Encoding:
    """Return the steps as float32 and their mask, or the vector, and the targets of the row."""
    steps, mask, truncated = read_steps(row, encoder)
    if are_vectors(encoder):
        return encoded({"features": steps[0], **targets})
    columns = {"inputs_embeds": steps, "attention_mask": mask, **targets}
    return encoded(columns, truncated=truncated)


def read_by_name(table: Table, arrays: Sequence[str], hints: Hints) -> str | None:
    """Return the first of several columns that forward names, if it has vectors or sequences."""
    named = [name for name in hints.arguments if name in arrays]
    is_flat = bool(named) and array_rank(table.column_type(named[0])) <= 2
    return named[0] if is_flat and len(arrays) > 1 else None


def feature_changes(
    changes: Mapping[str, float], encoder: Encoder, fields: Mapping[str, Field]
) -> SeriesChanges:
    """Return the changes of sequences or vectors, with the mean and the scale of each feature."""
    known, is_vector = encoder.input.statistics, are_vectors(encoder)
    column, time, channel = ("features", None, 0) if is_vector else ("inputs_embeds", 0, 1)
    made = SeriesChanges(changes, column, time, channel, known.mean, known.scale)
    made.require_axes("features", "each row is one vector, without time steps")
    return made


FEATURES = RowInput(
    "features",
    encode_steps,
    feature_fields,
    ReadBy(is_sequence=lambda encoder: not are_vectors(encoder)),
    Reader,
    holds_amounts=Profile.holds_amounts,
    section="features",
    read_by=read_by_name,
    content_name="series or vectors of features",
    changes=feature_changes,
    plan=plan_features,
    axes=sequence_axes,
    report_layout=report_layout,
    adapt=adapt_layout,
    is_small=are_vectors,
    amounts=lambda encoder: "features" if are_vectors(encoder) else "inputs_embeds",
)
