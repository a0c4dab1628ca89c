"""Batches: which rows are batched together and in which order, as a pure function.

An epoch is computed in four steps from (lengths, seed, epoch, effective batch): shuffle all rows;
cut the shuffled rows into windows of about 128 optimizer steps; sort each window by length and cut
it into micro-batches of about equally long rows; group neighbouring micro-batches into optimizer
steps and shuffle the steps.

Padding-free batches need no rows of equal length. Each micro-batch takes one row from every length
class of its window (for four rows: the shortest quarter, the next one, …), at random within the
class. All micro-batches then have about the same number of tokens, so the peak memory is close to
the usual one.

How random this is: steps come in random order whatever their length, and windows are drawn anew in
every epoch. In padding-free batches any two rows of a window can be batched together, and the same
two again about as rarely as in a plain shuffle. In padded batches a row is batched with rows of its
length; data that fill a single window, with no two rows equally long, have the same micro-batches
in every epoch, in another order.

Nothing is stored or replayed. The rows of a step depend on its total number of micro-batches, not
on how processes share them: two processes train on the same rows per step as one with twice the
gradient accumulation. Every row occurs exactly once per epoch; the last step may be smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.integer[Any]]

WINDOW_STEPS = 128
"""Optimizer steps per window: enough for little padding, few enough to stay random."""
EXAMINED_ROWS = 2_000_000


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
        mine = tuple(micro[process :: self.num_processes])
        return Share(mine, 1.0) if mine else Share((micro[0][:1],), 0.0)

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

        The order differs between epochs only if there is more than one window. As many epochs are
        examined as can be computed in about a second.
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
    sizes_by_window: list[Rows] = []
    steps_by_window: list[Rows] = []
    for start, end in _windows(num_rows, batches):
        window = rows[start:end]
        if batches.max_tokens is None or not batches.padding_free:
            window[:] = window[np.argsort(batches.lengths[window], kind="stable")]
        if batches.max_tokens is None and batches.padding_free:
            window[:] = _deal(window, batches.batch_size, random)
        sizes = np.diff(_cut(batches.lengths[window], batches)).astype(np.int32)
        sizes_by_window.append(sizes)
        steps_by_window.append(_in_groups(len(sizes), batches.micro_per_step))
    micro: Rows = np.concatenate(sizes_by_window)
    steps: Rows = np.concatenate(steps_by_window)
    order = random.permutation(len(steps))
    first_micro = _starts(steps)
    rows = _reorder(rows, _starts(np.add.reduceat(micro, first_micro[:-1])), order)
    return Epoch(rows, _starts(_reorder(micro, first_micro, order)), _starts(steps[order]))


def _windows(num_rows: int, batches: Batches) -> list[tuple[int, int]]:
    """Row ranges of about WINDOW_STEPS whole steps each, all of similar size."""
    per_step = batches.micro_per_step * batches.batch_size
    steps_in_all = -(-num_rows // per_step)
    count = max(1, round(steps_in_all / WINDOW_STEPS))
    edges = [round(steps_in_all * place / count) * per_step for place in range(count + 1)]
    edges[-1] = num_rows
    return list(pairwise(edges))


def _in_groups(count: int, size: int) -> Rows:
    """The group sizes of `count` items in groups of `size`; the last group may be smaller.

    >>> _in_groups(5, 2).tolist()
    [2, 2, 1]
    """
    return np.diff([*range(0, count, size), count]).astype(np.int32)


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


def _deal(rows: Rows, size: int, random: np.random.Generator) -> Rows:
    """Reorder rows sorted by length so that each group of `size` has one of every length class.

    The remainder that does not fill a micro-batch comes last, drawn from all lengths.

    >>> dealt = _deal(np.arange(9), 2, np.random.default_rng(0))
    >>> sorted(dealt.tolist()) == list(range(9)), (dealt[:8].reshape(4, 2) // 4).clip(0, 1).tolist()
    (True, [[0, 1], [0, 1], [0, 1], [0, 1]])
    """
    left = random.choice(len(rows), len(rows) % size, replace=False)
    whole = np.delete(rows, left).reshape(size, -1)
    return np.concatenate([random.permuted(whole, axis=1).T.reshape(-1), rows[left]])


def _cut(lengths: npt.NDArray[np.int32], batches: Batches) -> list[int]:
    """Where micro-batches start and end in the rows of a window.

    >>> _cut(np.array([1, 2, 2, 3], np.int32), Batches(np.empty(0, np.int32), 0, 8, max_tokens=4))
    [0, 2, 3, 4]
    """
    if batches.max_tokens is None:
        return [*range(0, len(lengths), batches.batch_size), len(lengths)]
    edges, ends = [0], np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    for place in range(1, len(lengths)):
        # Sorted by length, the newest row is the longest so far and sets the padded length.
        padded = (place + 1 - edges[-1]) * int(lengths[place])
        tokens = int(ends[place + 1] - ends[edges[-1]])
        if (tokens if batches.padding_free else padded) > batches.max_tokens:
            edges.append(place)
    return [*edges, len(lengths)]
