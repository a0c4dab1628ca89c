"""Rows of features before any is read: their layout, and whether a batch of them fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surefit.data.row_shapes import Axis, row_shape
from surefit.data.table import Table, is_array
from surefit.encode.features.feature_layout import Hints, plan_layout, planned_axes
from surefit.findings import Finding, rule
from surefit.memory.limit import GB, find_limit
from surefit.models.config_sizes import batch_bytes, rows_that_fit

RAGGED_ROWS = rule(
    "SF426",
    "info",
    "rows of different lengths",
    why="They are padded within their batch; the mask keeps padding out of model and loss.",
    fix="",
)

BATCH_TOO_LARGE = rule(
    "SF431",
    "error",
    "a batch does not fit in memory",
    why="The rows of one batch alone take more than there is, before any model or gradient.",
    fix="Choose a smaller --batch-size, or cut rows with --max-seq-length.",
)


@dataclass(frozen=True)
class BatchBound:
    """What bounds a batch of feature rows: rows, positions of a row and of a batch, memory."""

    rows: int
    longest: int | None
    max_tokens: int | None
    max_memory_gb: float | None = None
    device_memory_gb: float | None = None


def plan_features(
    table: Table, roles: Mapping[str, str], hints: Hints, bound: BatchBound | None
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The layout of the rows' features, as the Encoder keeps it; None where there are none."""
    column = roles.get("features")
    if column is None or not is_array(table.column_type(column)):
        return None, []
    shape = row_shape(table, column)
    layout, notes = plan_layout(shape, hints, column)
    steps, width = planned_axes(shape, layout)
    if bound is not None:
        _check_batch(bound, steps, width)
    return layout.as_dict(), [*notes, *_lengths(steps, column, roles)]


def _lengths(steps: Axis, column: str, roles: Mapping[str, str]) -> list[Finding]:
    if steps.size is not None:
        return []
    mask = roles.get("mask")
    made = f"column {mask!r} is their mask" if mask else "the mask is made from their lengths"
    message = f"rows of column {column!r} have {steps} steps; {made}."
    return [RAGGED_ROWS.finding(message, column=column)]


def _check_batch(bound: BatchBound, steps: Axis, width: Axis) -> None:
    """Refuse a batch that cannot be held, before rows are read and encoded for it."""
    rows, longest = bound.rows, min(steps.most, bound.longest or steps.most)
    if bound.max_tokens is not None and longest:
        rows = min(rows, max(1, bound.max_tokens // longest))
    limit = find_limit(bound.max_memory_gb, bound.device_memory_gb)
    needed = batch_bytes(rows, longest, width.most)
    if needed <= limit.bytes:
        return
    most = rows_that_fit(limit.bytes, longest, width.most)
    one = batch_bytes(1, longest, width.most)
    fix = f"Use --batch-size {most} or less, or cut rows with --max-seq-length."
    if most == 0:
        fix = f"Cut rows with --max-seq-length; one row alone takes {one / GB:.1f} GB."
    raise BATCH_TOO_LARGE.error(
        f"A batch of {rows} rows of [{longest}, {width}] takes {needed / GB:.1f} GB; "
        f"{limit.bytes / GB:.1f} GB are {limit.meaning}.",
        fix=fix,
    )
