"""Features as the input of a row, sequences or vectors: reading, statistics of their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import Field
from surefit.data.column_types import is_array
from surefit.data.data_rules import WRONG_SHAPE
from surefit.data.profile import Profile
from surefit.data.row_arrays import row_shape
from surefit.data.table import Table
from surefit.findings import Finding, note
from surefit.inputs.encoded_row import (
    DropReason,
    Encoding,
    RowFaultError,
    SkipRowError,
    encoded,
    refuse_overlong,
)
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FeatureStatistics, FittedInput
from surefit.inputs.features.feature_layout import FeatureLayout, Hints, plan_layout
from surefit.inputs.row_input import RowInput

Steps = npt.NDArray[Any]

FIELDS = {
    "inputs_embeds": Field(("time", "width"), "float32", 0.0),
    "attention_mask": Field(("time",), "int64", 0, "inputs_embeds"),
}
VECTOR = Field(("width",), "float32")


def are_vectors(encoder: Encoder) -> bool:
    """Whether each row is one vector rather than a sequence."""
    return layout_of(encoder).vector


def layout_of(encoder: Encoder) -> FeatureLayout:
    """The layout that was planned; by default, rows are not changed."""
    return encoder.input.layout or FeatureLayout()


def feature_fields(encoder: Encoder) -> dict[str, Field]:
    """A sequence and its mask, or one vector."""
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
    """Whether every step is a distribution over the width, as one-hot steps are.

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
        """The rows, unchanged."""
        for row in rows:
            steps = as_steps(row["features"], self.encoder)
            if steps is not None and steps.ndim == 2 and steps.size and steps.dtype.kind in "biuf":
                mask = row.get("mask")
                if mask is not None and len(mask) == len(steps):
                    steps = steps[np.asarray(mask) != 0]
                self.by_width.setdefault(steps.shape[1], Spread()).add(steps)
            yield row

    def fitted(self) -> tuple[FittedInput, list[Finding]]:
        """The width most rows agree on, and the spread of those rows."""
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


def feature_statistics(encoder: Encoder) -> FeatureStatistics:
    """Sizes and statistics of features, once they are fitted."""
    assert encoder.input.features is not None
    return encoder.input.features


def adapt_layout(encoder: Encoder, table: Table) -> tuple[Encoder, list[Finding]]:
    """The Encoder for rows whose layout may differ from that of the training rows.

    A file for evaluation or prediction may be flat although the training rows were not; the feature
    size of the trained model decides how it is read.
    """
    column, features = encoder.roles.get("features"), encoder.input.features
    if column not in table.columns or column is None or features is None or features.width is None:
        return encoder, []
    if not is_array(table.column_type(column)) or layout_of(encoder).vector:
        return encoder, []  # a vector of another size is named where it is encoded
    layout, notes = plan_layout(row_shape(table, column), Hints(trained=features.width), column)
    if layout == layout_of(encoder):
        return encoder, []
    return replace(encoder, input=replace(encoder.input, layout=layout)), notes


def as_steps(features: Any, encoder: Encoder) -> Any:
    """One row as [steps, width], by the layout that was planned for the data."""
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
    """The row's steps (T, W), its mask (T,), and how many steps are truncated."""
    name = encoder.roles["features"]
    steps = as_steps(row["features"], encoder)
    if steps is None or steps.size == 0:
        raise SkipRowError(DropReason.EMPTY)
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
        raise SkipRowError(DropReason.MASKED)
    limit = encoder.max_length
    if limit is None or len(steps) <= limit:
        return steps, mask, 0
    refuse_overlong(len(steps), encoder, "steps", name)
    return steps[:limit], mask[:limit], len(steps) - limit


def encode_steps(row: Mapping[str, Any], encoder: Encoder, targets: Mapping[str, Any]) -> Encoding:
    """The steps as float32 and their mask, or the vector, and the targets of the row."""
    steps, mask, truncated = read_steps(row, encoder)
    if are_vectors(encoder):
        return encoded({"features": steps[0], **targets})
    columns = {"inputs_embeds": steps, "attention_mask": mask, **targets}
    return encoded(columns, truncated=truncated)


FEATURES = RowInput(
    "features",
    encode_steps,
    feature_fields,
    reader=Reader,
    holds_amounts=Profile.holds_amounts,
    section="features",
    is_sequence=lambda encoder: not are_vectors(encoder),
)
