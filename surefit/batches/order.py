"""Batches: which rows are batched together and in which order, as a pure function.

All rows are shuffled anew in every epoch. `order` then says how steps are made of them:

- `shuffle` cuts the shuffled rows into optimizer steps, and each step into micro-batches.
- `windowed` makes the same steps, and sorts the rows of each by length before it is cut into
  micro-batches: padded micro-batches then have rows of similar length.
- `grouped` sorts windows of many steps by length, cuts them into steps, and shuffles the steps. It
  has the least padding, but a step has rows of one length only, which harms training where length
  and target are related (`bench/order.py`).

Padding-free micro-batches of a step get long and short rows in turn, so that all have about as many
tokens.

Nothing is stored or replayed. The rows of a step depend on the effective batch size, not on how
micro-batches and processes divide it. Every row occurs exactly once per epoch; the last step may be
smaller.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.integer[Any]]

Order = Literal["shuffle", "windowed", "grouped"]

GROUPED_STEPS = 128
"""Optimizer steps per window of `grouped`: enough for little padding."""
EXAMINED_ROWS = 2_000_000
EXAMINED_STEPS = 1_000
SORTED_ROWS = 8_192
"""How many rows are sorted within their steps at once."""


@dataclass(frozen=True)
class Share:
    """The micro-batches of one process in one step, and their weight in the loss.

    A process for which the last step of an epoch has no rows runs one of the step's rows with
    weight 0, so that all processes take part in the gradient all-reduce.
    """

    micro_batches: tuple[Rows, ...]
    weight: float


@dataclass(frozen=True)
class Epoch:
    """The rows of one epoch in order, and where micro-batches and steps start."""

    rows: Rows
    micro_starts: Rows  # indices into rows, and the end
    step_starts: Rows  # indices into micro_starts, and the end

    def micro_batches(self, step: int) -> list[Rows]:
        """The micro-batches of a step."""
        first, end = self.step_starts[step], self.step_starts[step + 1]
        starts = self.micro_starts[first : end + 1]
        return [self.rows[a:b] for a, b in pairwise(starts)]


@dataclass(frozen=True, eq=False)
class Batches:
    """The order of all rows in all epochs."""

    lengths: npt.NDArray[np.int32]
    seed: int
    batch_size: int
    grad_accum: int = 1
    num_processes: int = 1
    max_tokens: int | None = None
    padding_free: bool = False
    order: Order | None = None
    """Default: `shuffle` where batches are padding-free, else `windowed`."""

    @property
    def chosen_order(self) -> Order:
        """The order that is used."""
        return self.order or ("shuffle" if self.padding_free else "windowed")

    @property
    def micro_per_step(self) -> int:
        """Micro-batches in one optimizer step, over all processes."""
        return self.grad_accum * self.num_processes

    def epoch(self, epoch: int) -> Epoch:
        """The order of one epoch."""
        return _make_epoch(self, epoch)

    def num_steps(self, epoch: int) -> int:
        """Optimizer steps in an epoch."""
        return len(self.epoch(epoch).step_starts) - 1

    def num_micro_batches(self, epoch: int = 0) -> int:
        """Micro-batches in an epoch, over all processes."""
        return len(self.epoch(epoch).micro_starts) - 1

    def share(self, epoch: int, step: int, process: int = 0) -> Share:
        """The share of a step that one process trains on."""
        micro = self.epoch(epoch).micro_batches(step)
        mine = tuple(micro[place] for place in self._assigned(micro)[process])
        return Share(mine, 1.0) if mine else Share((micro[0][:1],), 0.0)

    def imbalance(self, epoch: int = 0) -> float:
        """Share of the processes' time in an epoch that is spent waiting for the slowest."""
        if self.num_processes == 1:
            return 0.0
        slowest = total = 0
        for step in range(min(self.num_steps(epoch), EXAMINED_STEPS)):
            micro = self.epoch(epoch).micro_batches(step)
            assigned = self._assigned(micro)
            costs = [sum(self._cost(micro[place]) for place in places) for places in assigned]
            slowest, total = slowest + max(costs), total + sum(costs)
        return 1 - total / (slowest * self.num_processes) if slowest else 0.0

    def _assigned(self, micro_batches: list[Rows]) -> list[list[int]]:
        """The micro-batches of each process: the costliest first, to the one with the least."""
        if self.num_processes == 1:
            return [[*range(len(micro_batches))]]
        costs = [self._cost(rows) for rows in micro_batches]
        assigned: list[list[int]] = [[] for _ in range(self.num_processes)]
        totals = [0] * self.num_processes
        for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
            process = totals.index(min(totals))
            assigned[process].append(place)
            totals[process] += costs[place]
        return [sorted(places) for places in assigned]

    def _cost(self, rows: Rows) -> int:
        """Positions that a micro-batch computes, at least 1."""
        lengths = self.lengths[rows]
        computed = int(lengths.sum()) if self.padding_free else len(rows) * int(lengths.max())
        return max(computed, 1)

    def step_rows(self, epoch: int, step: int) -> Rows:
        """All rows of a step, over all processes."""
        order = self.epoch(epoch)
        first, end = order.micro_starts[order.step_starts[step : step + 2]]
        return order.rows[first:end]

    def padding_share(self, epoch: int = 0) -> float:
        """Share of an epoch's positions that are padding."""
        if self.padding_free:
            return 0.0
        rows, longest = self._micro_shapes(epoch)
        padded = int((rows * longest).sum())
        return 1 - int(self.lengths.sum(dtype=np.int64)) / padded if padded else 0.0

    def random_padding_share(self) -> float:
        """The `padding_share` of a plain shuffle, padded."""
        shuffled = np.random.default_rng(self.seed).permutation(self.lengths)
        starts = np.arange(0, len(shuffled), self.batch_size)
        sizes = np.diff(np.append(starts, len(shuffled)))
        padded = int((np.maximum.reduceat(shuffled, starts) * sizes).sum())
        return 1 - int(shuffled.sum(dtype=np.int64)) / padded if padded else 0.0

    def longest(self, epoch: int = 0) -> tuple[int, int]:
        """Rows and padded length of the micro-batch with the most positions.

        For padding-free batches: the most rows of a micro-batch, and the length of the longest row.
        """
        rows, longest = self._micro_shapes(epoch)
        if self.padding_free:
            return int(rows.max()), int(longest.max())
        worst = int((rows * longest).argmax())
        return int(rows[worst]), int(longest[worst])

    def positions(self, epoch: int = 0) -> Rows:
        """Positions of each micro-batch of an epoch, including padding."""
        if self.padding_free:
            order = self.epoch(epoch)
            lengths = self.lengths[order.rows]
            return np.add.reduceat(lengths, order.micro_starts[:-1], dtype=np.int64)
        rows, longest = self._micro_shapes(epoch)
        return rows * longest

    def worst_rows(self, epochs: int = 1) -> Rows:
        """The rows of the micro-batch with the most positions, over all epochs.

        As many epochs are examined as can be computed in about a second.
        """
        return _find_worst(self, epochs)

    def _micro_shapes(self, epoch: int) -> tuple[Rows, Rows]:
        order = self.epoch(epoch)
        longest = np.maximum.reduceat(self.lengths[order.rows], order.micro_starts[:-1])
        return np.diff(order.micro_starts), longest.astype(np.int64)


@lru_cache(maxsize=8)  # a few rows each; read by every memory prediction
def _find_worst(batches: Batches, epochs: int) -> Rows:
    num_epochs = min(epochs, max(1, EXAMINED_ROWS // max(len(batches.lengths), 1)))
    found = []
    for epoch in range(num_epochs):
        positions = batches.positions(epoch)
        order, micro = batches.epoch(epoch), int(positions.argmax())
        rows = order.rows[order.micro_starts[micro] : order.micro_starts[micro + 1]]
        found.append((int(positions[micro]), rows.copy()))
    return max(found, key=lambda pair: pair[0])[1]


@lru_cache(maxsize=2)  # the epoch being trained on, and the next one while prefetching
def _make_epoch(batches: Batches, epoch: int) -> Epoch:
    random = np.random.default_rng([batches.seed, epoch, 0xBA7C])
    num_rows = len(batches.lengths)
    rows: Rows = np.arange(num_rows, dtype=np.int32 if num_rows < 2**31 else np.int64)
    random.shuffle(rows)
    if batches.chosen_order == "grouped":
        return _grouped_steps(rows, batches, random)
    if batches.max_tokens is None:
        return _steps_of_rows(rows, batches)
    return _steps_of_tokens(rows, batches, batches.max_tokens)


def _steps_of_rows(rows: Rows, batches: Batches) -> Epoch:
    """Steps of the same number of rows, as they come; the last one may be smaller."""
    size, per_step = batches.batch_size, batches.micro_per_step * batches.batch_size
    whole = len(rows) - len(rows) % per_step
    at_once = per_step * max(1, SORTED_ROWS // per_step)  # sorting all at once would hold memory
    for start in range(0, whole, at_once):
        steps = rows[start : min(start + at_once, whole)]
        steps[:] = _divide(steps.reshape(-1, per_step), batches)[0].reshape(-1)
    last, last_sizes = _divide(rows[None, whole:], batches)
    rows[whole:] = last[0]
    first_micro = np.arange(0, whole, size, dtype=rows.dtype)
    first_step = np.arange(0, whole // size, batches.micro_per_step, dtype=rows.dtype)
    ends = [whole // size, whole // size + len(last_sizes)]
    return Epoch(
        rows,
        np.concatenate([first_micro, (whole + _starts(last_sizes)).astype(rows.dtype)]),
        np.concatenate([first_step, np.unique(ends).astype(rows.dtype)]),
    )


def _divide(steps: Rows, batches: Batches) -> tuple[Rows, Rows]:
    """Steps (a row each) with their rows ordered by micro-batch, and the size of each.

    >>> lengths = np.array([9, 1, 5, 7], np.int32)
    >>> [_divide(np.arange(4)[None], Batches(lengths, 0, 2, 2, padding_free=free))[0].tolist()
    ...     for free in (False, True)]
    [[[1, 2, 3, 0]], [[0, 1, 3, 2]]]
    """
    num_rows = steps.shape[1]
    count = -(-num_rows // batches.batch_size)
    sizes = _in_groups(num_rows, batches.batch_size)
    if count <= 1 or (batches.chosen_order == "shuffle" and not batches.padding_free):
        return steps, sizes
    by_length = np.argsort(batches.lengths[steps], axis=1, kind="stable")
    if batches.padding_free:  # from the longest: to the first, the second, …, and back again
        turns = np.resize(np.concatenate([np.arange(count), np.arange(count)[::-1]]), num_rows)
        by_length = by_length[:, ::-1][:, np.argsort(turns, kind="stable")]
        sizes = np.bincount(turns)
    return np.take_along_axis(steps, by_length, axis=1), sizes


def _steps_of_tokens(rows: Rows, batches: Batches, max_tokens: int) -> Epoch:
    """Steps of about the same number of tokens, in micro-batches of at most `max_tokens`."""
    lengths, budget, start = batches.lengths, batches.micro_per_step * max_tokens, 0
    sizes, counts = array("i"), array("i")
    while start < len(rows):
        tokens = np.cumsum(lengths[rows[start : start + budget]], dtype=np.int64)
        step = rows[start : start + max(1, int(np.searchsorted(tokens, budget, side="right")))]
        if batches.padding_free or batches.chosen_order == "windowed":
            step[:] = step[np.argsort(lengths[step], kind="stable")]
        if batches.padding_free:
            parts = _fill(step[::-1], lengths, max_tokens)
        else:
            parts = [step[a:b] for a, b in pairwise(_cut(lengths[step], max_tokens))]
        sizes.extend(len(part) for part in parts)
        counts.append(len(parts))
        step[:] = np.concatenate(parts)
        start += len(step)
    return Epoch(rows, _starts(np.array(sizes)), _starts(np.array(counts)))


def _fill(rows: Rows, lengths: npt.NDArray[np.int32], max_tokens: int) -> list[Rows]:
    """Rows, the longest first, as micro-batches: each row goes to the one with the fewest tokens.

    >>> [part.tolist() for part in _fill(np.arange(4), np.array([6, 5, 3, 2], np.int32), 8)]
    [[0, 3], [1, 2]]
    """
    own = lengths[rows].tolist()
    parts: list[list[int]] = [[] for _ in range(-(-sum(own) // max_tokens))]
    totals = [0] * len(parts)
    for row, length in zip(rows.tolist(), own, strict=True):
        place = totals.index(min(totals))
        if parts[place] and totals[place] + length > max_tokens:
            place = len(parts)
            parts.append([])
            totals.append(0)
        parts[place].append(row)
        totals[place] += length
    return [np.array(part, rows.dtype) for part in parts if part]


def _grouped_steps(rows: Rows, batches: Batches, random: np.random.Generator) -> Epoch:
    """Steps of rows of similar length within each window, in random order."""
    lengths = batches.lengths
    sizes_by_window: list[Rows] = []
    steps_by_window: list[Rows] = []
    for start, end in _windows(len(rows), batches):
        window = rows[start:end]
        window[:] = window[np.argsort(lengths[window], kind="stable")]
        if batches.max_tokens is None:
            sizes = _in_groups(len(window), batches.batch_size)
            steps = _in_groups(len(sizes), batches.micro_per_step)
        else:
            part = _steps_of_tokens(window, batches, batches.max_tokens)
            sizes = np.diff(part.micro_starts).astype(np.int32)
            steps = np.diff(part.step_starts).astype(np.int32)
        sizes_by_window.append(sizes)
        steps_by_window.append(steps)
    micro: Rows = np.concatenate(sizes_by_window)
    counts: Rows = np.concatenate(steps_by_window)
    order = random.permutation(len(counts))
    first_micro = _starts(counts)
    rows = _reorder(rows, _starts(np.add.reduceat(micro, first_micro[:-1])), order)
    return Epoch(rows, _starts(_reorder(micro, first_micro, order)), _starts(counts[order]))


def _windows(num_rows: int, batches: Batches) -> list[tuple[int, int]]:
    """Row ranges of about GROUPED_STEPS whole steps each, all of similar size."""
    per_step = batches.micro_per_step * batches.batch_size
    if batches.max_tokens is not None:
        mean = float(batches.lengths.mean()) or 1.0
        per_step = max(1, int(batches.micro_per_step * batches.max_tokens / mean))
    steps_in_all = -(-num_rows // per_step)
    count = max(1, round(steps_in_all / GROUPED_STEPS))
    edges = [round(steps_in_all * place / count) * per_step for place in range(count + 1)]
    edges[-1] = num_rows
    return list(pairwise(edges))


def _in_groups(count: int, size: int) -> Rows:
    """The group sizes of `count` items in groups of `size`; the last group may be smaller.

    >>> _in_groups(5, 2).tolist(), _in_groups(0, 2).tolist()
    ([2, 2, 1], [])
    """
    return np.diff(np.append(np.arange(0, count, size), count)).astype(np.int32)


def _starts(sizes: Rows) -> Rows:
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def _reorder(values: Rows, starts: Rows, order: Rows) -> Rows:
    """Concatenate the slices of `values` that start at `starts`, in another order."""
    reordered, filled = np.empty_like(values), 0
    for piece in order:
        part = values[starts[piece] : starts[piece + 1]]
        reordered[filled : filled + len(part)] = part
        filled += len(part)
    return reordered


def _cut(lengths: npt.NDArray[np.int32], max_tokens: int) -> list[int]:
    """Where padded micro-batches start and end in consecutive rows.

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
