"""Rows drawn from several sources in proportion to their weights: a pure function of the epoch.

An epoch draws so many rows of each source. The rows of a source come in a keyed permutation that
goes on from epoch to epoch, and in another one once all have been drawn: no row comes twice before
every row of its source has come once. Nothing is stored per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from surefit.batches.permutation import KeyedPermutation
from surefit.config import DataSource

if TYPE_CHECKING:
    from surefit.batches.order import Batches

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Drawn:
    """Consecutive rows of one source, and how many of them an epoch draws."""

    first: int
    num_rows: int
    draws: int


def count_draws(
    sources: Mapping[str, range], source_row: Rows, asked: Iterable[DataSource]
) -> tuple[Drawn, ...]:
    """Return what an epoch draws of each source; nothing where it draws each row once.

    A cap counts rows of the data (`source_row`), whose copies and blocks are drawn with them.

    >>> asked = DataSource(path="", name="a", weight=0.5, cap=3), DataSource(path="", name="b")
    >>> for drawn in count_draws({"a": range(10), "b": range(10, 14)}, np.arange(14), asked):
    ...     print(drawn)
    Drawn(first=0, num_rows=10, draws=3)
    Drawn(first=10, num_rows=4, draws=4)
    """
    drawn, by_name = [], {each.name: each for each in asked}
    for name, rows in sources.items():
        share, cap = by_name[name].weight, by_name[name].cap
        if cap is not None and len(rows):
            share = min(share, cap / len(np.unique(source_row[rows.start : rows.stop])))
        if len(rows):
            drawn.append(Drawn(rows.start, len(rows), max(1, round(share * len(rows)))))
    return tuple(drawn) if any(each.draws != each.num_rows for each in drawn) else ()


def drawn_rows(batches: Batches, epoch: int, numbers: Rows) -> Rows:
    """Return the row that each of these numbers of an epoch stands for.

    >>> from surefit.batches.order import Batches
    >>> mixed = Batches(np.ones(6, np.int32), 0, 2, sources=(Drawn(0, 4, 2), Drawn(4, 2, 4)))
    >>> [sorted(drawn_rows(mixed, epoch, np.arange(6)).tolist()) for epoch in (0, 1)]
    [[1, 3, 4, 4, 5, 5], [0, 2, 4, 4, 5, 5]]
    """
    if not batches.sources:
        return numbers
    rows, end = np.empty_like(numbers), 0
    for source in batches.sources:
        mine = (numbers >= end) & (numbers < end + source.draws)
        cycle, before = divmod(epoch * source.draws, source.num_rows)
        turns, inside = np.divmod(numbers[mine] - end + before, source.num_rows)
        for turn in np.unique(turns).tolist():
            chosen = turns == turn
            inside[chosen] = _shuffled(inside[chosen], source, cycle + turn, batches)
        rows[mine] = source.first + inside
        end += source.draws
    return rows


def _shuffled(places: Rows, source: Drawn, cycle: int, batches: Batches) -> Rows:
    """Return the rows of a source at some places; those beyond the last whole block come last."""
    key = (batches.seed, cycle, source.first, 0x5013)
    order = KeyedPermutation(source.num_rows // batches.block_rows, key)
    block, offset = np.divmod(places, batches.block_rows)
    whole = block < order.size
    places = places.copy()
    places[whole] = order(block[whole]) * batches.block_rows + offset[whole]
    return places
