"""Rows of features before any is read: their layout, and whether a batch of them fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from surefit.config import RunConfig
from surefit.data.row_shapes import Axis, row_shape
from surefit.data.table import Table, is_array
from surefit.encode.features.feature_layout import plan_layout, planned_axes
from surefit.findings import Finding, rule
from surefit.models.config_sizes import batch_bytes, rows_that_fit
from surefit.models.model_source import ModelSource

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


GB = 10**9


def plan_features(
    table: Table,
    roles: Mapping[str, str],
    source: ModelSource,
    config: RunConfig,
    found: list[Finding],
) -> dict[str, Any] | None:
    """The layout of the rows' features, as the Encoder keeps it; None where there are none."""
    column = roles.get("features")
    if column is None or not is_array(table.column_type(column)):
        return None
    shape = row_shape(table, column)
    hints = replace(source.hints(), steps=config.features.steps, width=config.features.width)
    layout, notes = plan_layout(shape, hints, column)
    steps, width = planned_axes(shape, layout)
    found += [*notes, *_lengths(steps, column, roles)]
    limit = None if source.follows_rows else source.max_positions
    if isinstance(config.batch_size, int):  # else it is chosen to fit
        _check_batch(min(config.batch_size, table.num_rows), steps, width, limit, config)
    return layout.as_dict()


def _lengths(steps: Axis, column: str, roles: Mapping[str, str]) -> list[Finding]:
    if steps.size is not None:
        return []
    mask = roles.get("mask")
    made = f"column {mask!r} is their mask" if mask else "the mask is made from their lengths"
    message = f"rows of column {column!r} have {steps} steps; {made}."
    return [RAGGED_ROWS.finding(message, column=column)]


def _check_batch(
    rows: int, steps: Axis, width: Axis, positions: int | None, config: RunConfig
) -> None:
    """Refuse a batch that cannot be held, before rows are read and encoded for it."""
    limits = (config.max_seq_length, config.max_tokens, positions)
    longest = min([steps.most, *(limit for limit in limits if limit is not None)])
    if config.max_tokens is not None and longest:
        rows = min(rows, max(1, config.max_tokens // longest))
    limit_bytes, whose = memory_limit(config)
    needed = batch_bytes(rows, longest, width.most)
    if needed <= limit_bytes:
        return
    most = rows_that_fit(limit_bytes, longest, width.most)
    one = batch_bytes(1, longest, width.most)
    fix = f"Use --batch-size {most} or less, or cut rows with --max-seq-length."
    if most == 0:
        fix = f"Cut rows with --max-seq-length; one row alone takes {one / GB:.1f} GB."
    raise BATCH_TOO_LARGE.error(
        f"A batch of {rows} rows of [{longest}, {width}] takes {needed / GB:.1f} GB; {whose} "
        f"{limit_bytes / GB:.1f} GB.",
        fix=fix,
    )


def memory_limit(config: RunConfig) -> tuple[int, str]:
    """The bytes that may be held, and whose limit that is."""
    import psutil

    asked = getattr(config, "max_memory_gb", None)
    if asked is not None:
        return round(asked * GB), "max_memory_gb is"
    return int(psutil.virtual_memory().available), "this machine has free"
