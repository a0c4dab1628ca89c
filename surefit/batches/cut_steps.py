"""The order of rows in an epoch, cut into steps, and steps into micro-batches."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.mixing import drawn_rows
from surefit.batches.permutation import RowOrder

if TYPE_CHECKING:
    from surefit.batches.order import Batches

Rows = npt.NDArray[np.integer[Any]]

SECTION_STEPS = 128
"""Consecutive steps that are computed at once, and of `grouped` sorted together by length."""
SECTION_ROWS = 1 << 18
"""Rows of a section, about: where steps are large, it has fewer steps."""
SCANNED_ROWS = 1 << 13
"""Lengths that are read at once."""
WINDOW_BLOCKS = 4096
WINDOW_STEPS = 32
"""Steps of a window, at least: where steps are large, so are windows."""
BLOCKS_PER_STEP_ROW = 4
"""Blocks of a window for each row of a step, at least. If all rows of a block are alike, the mean
of a step then spreads √(1 + 1/4) = 1.12 times as far as in a plain shuffle."""
ROOM = 32
"""Steps of so many rows or more leave this part of their tokens free, or one row too many would
need a further micro-batch, which keeps all processes but one waiting."""


@dataclass(frozen=True)
class Section:
    """The rows of some consecutive steps in order, and where each step starts."""

    first_step: int
    rows: Rows
    starts: Rows  # indices into rows, and the end
    turns: Rows | None = None
    """Which step is trained on at which place, if not as they come."""

    def step_rows(self, step: int) -> Rows:
        """Return the rows of a step of the epoch."""
        place = step - self.first_step
        turn = place if self.turns is None else int(self.turns[place])
        return self.rows[self.starts[turn] : self.starts[turn + 1]]


def section_steps(batches: Batches) -> int:
    """Steps of a section, but for the last one."""
    return min(SECTION_STEPS, max(1, SECTION_ROWS // usual_step_rows(batches)))


def usual_step_rows(batches: Batches) -> int:
    """Return rows of a step; where tokens bound it, the mean."""
    if batches.max_tokens is None:
        return batches.effective_rows
    return max(1, _step_tokens(batches) * batches.num_rows // max(num_tokens(batches), 1))


@lru_cache(maxsize=8)
def row_order(batches: Batches, epoch: int) -> RowOrder:
    """Return order of an epoch; it depends on the effective batch size where blocks are large."""
    num_rows, step_rows = batches.num_rows, usual_step_rows(batches)
    window_rows = max(WINDOW_BLOCKS * batches.block_rows, WINDOW_STEPS * step_rows)
    num_windows = -(-num_rows // window_rows)
    block_rows = max(1, num_rows // num_windows // (BLOCKS_PER_STEP_ROW * step_rows))
    block_rows = min(batches.block_rows, 1 << (block_rows.bit_length() - 1))
    return RowOrder(num_rows, block_rows, window_rows, batches.seed, epoch)


def rows_at(batches: Batches, epoch: int, first: int, end: int) -> Rows:
    """Return the rows at the places of an epoch from `first` to `end`."""
    return drawn_rows(batches, epoch, row_order(batches, epoch).rows(first, end))


@lru_cache(maxsize=2)  # the section being trained on, and the next one while prefetching
def make_section(batches: Batches, epoch: int, number: int) -> Section:
    """Some steps of an epoch; those before them are not computed."""
    size = section_steps(batches)
    first = number * size
    num_steps = min(size, batches.steps_per_epoch - first)
    starts = _step_starts(batches, epoch, first, first + num_steps)
    rows: Rows = rows_at(batches, epoch, int(starts[0]), int(starts[-1]))
    starts = starts - starts[0]
    if batches.chosen_order != "grouped":
        return Section(first, rows, starts)
    rows = rows[np.argsort(batches.lengths[rows], kind="stable")]
    if batches.max_tokens is not None:
        lengths = _counted(batches.lengths[rows])
        starts = _cut_by_tokens([lengths], len(rows), _step_tokens(batches), num_steps)
    turns = np.random.default_rng([batches.seed, epoch, number]).permutation(num_steps)
    return Section(first, rows, starts, turns)


def _step_starts(batches: Batches, epoch: int, first: int, end: int) -> Rows:
    """Return the places in an epoch at which steps start, and the end of the last of them."""
    if batches.max_tokens is not None:
        return _token_starts(batches, epoch)[first : end + 1]
    starts = np.arange(first, end + 1) * batches.effective_rows
    if end == batches.steps_per_epoch:
        starts[-1] = batches.num_rows
    return starts


def find_step(batches: Batches, epoch: int, place: int) -> int:
    """Return the step that a place of an epoch is in."""
    if batches.max_tokens is not None:
        return int(np.searchsorted(_token_starts(batches, epoch), place, "right")) - 1
    return min(place // batches.effective_rows, batches.steps_per_epoch - 1)


@lru_cache(maxsize=2)
def _token_starts(batches: Batches, epoch: int) -> Rows:
    """Return where the steps of an epoch start if tokens bound them: 8 bytes a step."""
    steps = count_steps(batches)
    lengths = _lengths_in_order(batches, epoch)
    total = num_tokens(batches, epoch if batches.sources else 0)
    return _cut_by_tokens(lengths, batches.num_rows, _step_tokens(batches), steps, total)


@lru_cache(maxsize=8)
def count_steps(batches: Batches) -> int:
    """Steps in an epoch: as many in each, so that any step can be sought.

    Where tokens bound them, as many as the rows of the first epoch fill. Rows too few for a
    micro-batch belong to the step before.

    >>> from surefit.batches.order import Batches
    >>> [count_steps(Batches(np.ones(9, np.int32), 0, 4, min_rows=n)) for n in (1, 2)]
    [3, 2]
    """
    num_rows = batches.num_rows
    if batches.max_tokens is not None and num_rows:
        lengths, budget = _lengths_in_order(batches, 0), _step_tokens(batches)
        if ROOM * num_tokens(batches) <= num_rows * budget:
            budget -= budget // ROOM
        return len(_cut_by_tokens(lengths, num_rows, budget)) - 1
    whole, left = divmod(num_rows, batches.effective_rows)
    return max(whole + (left >= batches.min_rows), min(num_rows, 1))


def _step_tokens(batches: Batches) -> int:
    assert batches.max_tokens is not None
    return batches.max_tokens * batches.micro_per_step


@lru_cache(maxsize=8)
def num_tokens(batches: Batches, epoch: int = 0) -> int:
    """Return tokens of the rows that an epoch draws, at least one each."""
    parts = (drawn_rows(batches, epoch, numbers) for numbers in _scanned(batches))
    return sum(int(_counted(batches.lengths[rows]).sum()) for rows in parts)


def _counted(lengths: Rows) -> Rows:
    return np.maximum(lengths, 1).astype(np.int64)


def _scanned(batches: Batches) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the numbers of the rows of an epoch, some at a time."""
    for first in range(0, batches.num_rows, SCANNED_ROWS):
        yield np.arange(first, min(first + SCANNED_ROWS, batches.num_rows))


def _lengths_in_order(batches: Batches, epoch: int) -> Iterator[Rows]:
    for part in _scanned(batches):
        rows = rows_at(batches, epoch, int(part[0]), int(part[-1]) + 1)
        yield _counted(batches.lengths[rows])


def _cut_by_tokens(
    parts: Iterable[Rows],
    num_rows: int,
    budget: int,
    num_steps: int | None = None,
    total: int | None = None,
) -> Rows:
    """Return where steps start in consecutive rows, and the end.

    Each takes as many rows as its budget of tokens allows. If there are to be `num_steps`, all have
    about as many tokens, which may exceed the budget by a part of a row.

    >>> lengths = np.array([3, 3, 3, 1, 1, 1])
    >>> [_cut_by_tokens([lengths], 6, 6, n).tolist() for n in (None, 3)]
    [[0, 2, 6], [0, 1, 2, 6]]
    """
    if num_steps is not None:
        if total is None:
            parts = [*parts]
            total = sum(int(part.sum()) for part in parts)
        budget = max(budget, total // num_steps + total // num_rows)
    starts, begun, before, read = array("q", [0]), 0, 0, 0
    for part in parts:
        ends = before + np.cumsum(part)
        while num_steps is None or len(starts) < num_steps:
            target = begun + budget
            if num_steps is not None and total is not None:
                target = min(target, total * len(starts) // num_steps)
            if target >= ends[-1] or starts[-1] == read + len(part):
                break  # the step goes on in the next part
            place = max(read + int(np.searchsorted(ends, target, "right")), starts[-1] + 1)
            if num_steps is not None:
                place = min(place, num_rows - num_steps + len(starts))
            starts.append(place)
            begun = int(ends[place - read - 1]) if place > read else before
        before, read = int(ends[-1]), read + len(part)
    starts.append(num_rows)
    return np.unique(np.array(starts))  # a last row over the budget may have ended a step already


def micro_sizes(num_rows: int, batches: Batches) -> Rows:
    """Return the sizes of the micro-batches of a step.

    >>> from surefit.batches.order import Batches
    >>> [micro_sizes(5, Batches(np.ones(5, np.int32), 0, 2, min_rows=n)).tolist() for n in (1, 2)]
    [[2, 2, 1], [2, 3]]
    """
    sizes = np.diff(np.append(np.arange(0, num_rows, batches.batch_size), num_rows))
    if len(sizes) > 1 and sizes[-1] < batches.min_rows:
        sizes = np.append(sizes[:-2], sizes[-2] + sizes[-1])
    return sizes


def divide_step(step: Rows, batches: Batches) -> list[Rows]:
    """Return the micro-batches of one step."""
    if batches.max_tokens is not None:
        return _parts_of_tokens(step, batches, batches.max_tokens)
    divided, sizes = divide_steps(step[None], batches)
    return [divided[0, a:b] for a, b in pairwise(to_starts(sizes))]


def divide_steps(steps: Rows, batches: Batches) -> tuple[Rows, Rows]:
    """Steps (a row each) with their rows ordered by micro-batch, and the size of each.

    >>> from surefit.batches.order import Batches
    >>> lengths = np.array([9, 1, 5, 7], np.int32)
    >>> [divide_steps(np.arange(4)[None], Batches(lengths, 0, 2, 2, padding_free=free))[0].tolist()
    ...     for free in (False, True)]
    [[[1, 2, 3, 0]], [[0, 1, 3, 2]]]
    """
    num_rows = steps.shape[1]
    sizes = micro_sizes(num_rows, batches)
    count = len(sizes)
    if count <= 1 or (batches.chosen_order == "shuffle" and not batches.padding_free):
        return steps, sizes
    by_length = np.argsort(batches.lengths[steps], axis=1, kind="stable")
    if batches.padding_free:  # from the longest: to the first, the second, …, and back again
        turns = np.resize(np.concatenate([np.arange(count), np.arange(count)[::-1]]), num_rows)
        by_length = by_length[:, ::-1][:, np.argsort(turns, kind="stable")]
        sizes = np.bincount(turns)
    return np.take_along_axis(steps, by_length, axis=1), sizes


def _parts_of_tokens(step: Rows, batches: Batches, max_tokens: int) -> list[Rows]:
    lengths = batches.lengths
    if batches.padding_free or batches.chosen_order == "windowed":
        step = step[np.argsort(lengths[step], kind="stable")]
    if batches.padding_free:
        return _fill(step[::-1], lengths, max_tokens, batches.num_processes)
    return [step[a:b] for a, b in pairwise(_cut(lengths[step], max_tokens))]


def _fill(
    rows: Rows, lengths: npt.NDArray[np.int32], max_tokens: int, processes: int = 1
) -> list[Rows]:
    """Return rows, the longest first, as micro-batches: each row goes to the one with the fewest
    tokens.

    There are as many micro-batches for each of the processes, unless rows are too long for that.

    >>> [part.tolist() for part in _fill(np.arange(4), np.array([6, 5, 3, 2], np.int32), 8)]
    [[0, 3], [1, 2]]
    """
    own = lengths[rows].tolist()
    turns = max(1, -(-sum(own) // (max_tokens * processes)))
    parts: list[list[int]] = [[] for _ in range(turns * processes)]
    fewest = [(0, place) for place in range(len(parts))]  # a heap of the tokens in each
    for row, length in zip(rows.tolist(), own, strict=True):
        total, place = fewest[0]
        if parts[place] and total + length > max_tokens:
            heapq.heappush(fewest, (length, len(parts)))
            parts.append([row])
        else:
            heapq.heapreplace(fewest, (total + length, place))
            parts[place].append(row)
    return [np.array(part, rows.dtype) for part in parts if part]


def _cut(lengths: npt.NDArray[np.int32], max_tokens: int) -> list[int]:
    """Return where padded micro-batches start and end in consecutive rows.

    >>> _cut(np.array([1, 2, 2, 3], np.int32), 4)
    [0, 2, 3, 4]
    """
    edges, longest = [0], 0
    for place, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if place > edges[-1] and (place + 1 - edges[-1]) * longest > max_tokens:
            edges.append(place)
            longest = length
    return [*edges, len(lengths)]


def to_starts(sizes: Rows) -> Rows:
    """Return where consecutive groups of these sizes start, and the end of the last."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts
