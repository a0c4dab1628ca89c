"""Whether rows are shuffled all at once or in windows; the plan stores it for a resumed run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.order import Batches
from surefit.batches.window_order import Windows, choose_windows
from surefit.errors import UsageError
from surefit.findings import Finding, rule

SHUFFLED_IN_WINDOWS = rule(
    "SF504",
    "info",
    "rows are shuffled in windows",
    why="An order of all rows would take memory and time that grow with them. Each epoch draws "
    "shards of consecutive rows in random order, and shuffles the rows of many shards together. "
    "Padding, the largest micro-batch and time are estimated from some of the steps.",
    fix="Nothing to do; docs/order.md compares it with a plain shuffle.",
)

UNEVEN_SHARES = rule(
    "SF505",
    "info",
    "processes wait for the slowest",
    why="A step ends when its slowest process does, and each has whole micro-batches.",
    fix="Use smaller micro-batches with more gradient accumulation, or max_tokens.",
)

MUCH_WAITING = 0.25
SIZES = ("rows", "shard_rows")
"""Sizes of windows that the plan stores."""


def choose_order_windows(
    lengths: npt.NDArray[np.int32], earlier: Mapping[str, Any]
) -> tuple[tuple[Windows | None, dict[str, int]], list[Finding]]:
    """The windows of the order and the choice for the plan; a resumed run keeps those it has."""
    if earlier:
        windows = _stored_windows(lengths, earlier.get("order_windows"))
    else:
        windows = choose_windows(lengths)
    if windows is None:
        return (None, {}), []
    message = (
        f"{len(lengths):,} training rows are shuffled in windows of about {windows.rows:,} rows, "
        f"each of random shards of up to {windows.shard_rows} consecutive rows."
    )
    return (windows, {"rows": windows.rows, "shard_rows": windows.shard_rows}), [
        SHUFFLED_IN_WINDOWS.finding(message)
    ]


def _stored_windows(lengths: npt.NDArray[np.int32], stored: Any) -> Windows | None:
    if not stored:
        return None
    sizes = [stored.get(name) if isinstance(stored, dict) else None for name in SIZES]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise UsageError(
            f"choices.order_windows of the run's plan.json is {stored!r}; expected positive "
            f"numbers {' and '.join(SIZES)}.",
            "Put back the plan.json that the run was begun with.",
        )
    return Windows(lengths, stored["rows"], stored["shard_rows"])


def check_shares(batches: Batches) -> Iterator[Finding]:
    """Say so if processes spend much of their time waiting for the slowest."""
    waiting = batches.imbalance()
    if waiting > MUCH_WAITING:
        yield UNEVEN_SHARES.finding(
            f"{batches.num_processes} processes spend {waiting:.0%} of their time waiting for the "
            "slowest of a step."
        )
