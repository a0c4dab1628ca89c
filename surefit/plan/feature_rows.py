"""Feature rows before any is read: their layout, and whether one batch fits in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from surefit.config import RunConfig
from surefit.data.row_shapes import Axis, row_shape
from surefit.data.table import Table, is_array
from surefit.encode.features.feature_layout import plan_layout, planned_axes
from surefit.findings import Finding, rule
from surefit.memory.gigabytes import show_gb
from surefit.memory.limit import Limit, find_limit
from surefit.models.feature_body_sizes import batch_bytes, rows_that_fit
from surefit.models.model_source import ModelSource

RAGGED_ROWS = rule(
    "SF426",
    "info",
    "rows of different lengths",
    why="They are padded within their batch; the attention mask excludes padding.",
    fix="",
)

BATCH_TOO_LARGE = rule(
    "SF431",
    "error",
    "a batch does not fit in memory",
    why="The features of one batch exceed the memory limit, even without model and gradients.",
    fix="Choose a smaller --batch-size, or truncate rows with --max-seq-length.",
)


def plan_features(
    table: Table,
    roles: Mapping[str, str],
    source: ModelSource,
    config: RunConfig,
    found: list[Finding],
) -> dict[str, Any] | None:
    """The layout of the features, as the Encoder saves it; None if there are no features."""
    column = roles.get("features")
    if column is None or not is_array(table.column_type(column)):
        return None
    shape = row_shape(table, column)
    hints = replace(source.hints(), steps=config.features.steps, width=config.features.width)
    layout, notes = plan_layout(shape, hints, column)
    steps, width = planned_axes(shape, layout)
    found += [*notes, *_lengths(steps, column, roles)]
    limit = None if source.follows_rows else source.max_positions
    if isinstance(config.batch_size, int):  # `auto` is chosen to fit
        _check_batch(min(config.batch_size, table.num_rows), steps, width, limit, config)
    return layout.as_dict()


def _lengths(steps: Axis, column: str, roles: Mapping[str, str]) -> list[Finding]:
    if steps.size is not None:
        return []
    mask = roles.get("mask")
    origin = f"is column {mask!r}" if mask else "is made from their lengths"
    message = (
        f"Rows of column {column!r} have sequence lengths of {steps}; the attention mask {origin}."
    )
    return [RAGGED_ROWS.finding(message, column=column)]


def _check_batch(
    rows: int, steps: Axis, width: Axis, positions: int | None, config: RunConfig
) -> None:
    """Refuse a batch that exceeds the memory limit, before rows are read and encoded for it."""
    lengths = (config.max_seq_length, config.max_tokens, positions)
    longest = min([steps.most, *(length for length in lengths if length is not None)])
    if config.max_tokens is not None and longest:
        rows = min(rows, max(1, config.max_tokens // longest))
    limit = _batch_limit(config)
    needed = batch_bytes(rows, longest, width.most)
    if needed <= limit.bytes:
        return
    free, one_row = limit.free_bytes, batch_bytes(1, longest, width.most)
    most = rows_that_fit(free, longest, width.most)
    fix = f"Use --batch-size {most} or less, or truncate rows with --max-seq-length."
    if most == 0:
        fix = (
            f"Truncate rows with --max-seq-length, or use more memory: one row takes "
            f"{show_gb(one_row)}, and {show_gb(free)} of the limit are free."
        )
    raise BATCH_TOO_LARGE.error(
        f"A batch of {rows} rows of [{longest}, {width}] takes {show_gb(needed)}; the memory limit "
        f"is {limit}.",
        fix=fix,
    )


def _batch_limit(config: RunConfig) -> Limit:
    """The tightest limit for a batch: it is made in host memory, then moved to the device."""
    limit = find_limit(config.max_memory_gb, config.device_memory_gb)
    if not limit.on_device or config.device_memory_gb is not None:
        return limit
    return min(limit, find_limit(host=True), key=lambda each: each.bytes)
