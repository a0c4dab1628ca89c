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

Nothing is stored or replayed: a keyed permutation computes which row is at which place. The rows of
a step depend on the effective batch size, not on how micro-batches and processes divide it. Every
row occurs exactly once per epoch, or as often as its source is drawn (`mixing.py`); the last step
may be smaller, or larger by one row (`min_rows`).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from surefit.batches.cut_steps import (
    Rows,
    Section,
    count_steps,
    divide_step,
    divide_steps,
    find_step,
    make_section,
    micro_sizes,
    row_order,
    section_steps,
    to_starts,
    usual_step_rows,
)
from surefit.batches.mixing import Drawn

Order = Literal["shuffle", "windowed", "grouped"]

EXAMINED_ROWS = 1 << 21
"""Of more rows, figures are estimated from some of the steps."""
SAMPLED_ROWS = 1 << 19
EXAMINED_STEPS = 1_000
EXAMINED_EPOCHS = 100


@dataclass(frozen=True)
class Epoch:
    """Rows of the steps of an epoch, and where micro-batches and steps start."""

    rows: Rows
    micro_starts: Rows  # indices into rows, and the end
    step_starts: Rows  # indices into micro_starts, and the end

    def micro_batches(self, step: int) -> list[Rows]:
        """Return the micro-batches of a step."""
        first, end = self.step_starts[step], self.step_starts[step + 1]
        return [self.rows[a:b] for a, b in pairwise(self.micro_starts[first : end + 1])]


@dataclass(frozen=True)
class Share:
    """The micro-batches of one process in one step, and their weight in the loss.

    A process for which the last step of an epoch has no rows runs one of the step's rows with
    weight 0, so that all processes take part in the gradient all-reduce.
    """

    micro_batches: tuple[Rows, ...]
    weight: float


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
    block_rows: int = 1
    """Consecutive rows that are kept together in the order of an epoch (`RowOrder`): more than one
    where the rows exceed memory, so that reads stay local. A power of two; fewer rows are kept
    together where steps are large."""
    min_rows: int = 1
    """2 where the model cannot be trained on a micro-batch of one row: a row that would be left
    over joins the micro-batch before it, unless `max_tokens` does not allow it."""
    sources: tuple[Drawn, ...] = ()
    """How many rows an epoch draws of each source; without any, it has each row once."""

    @property
    def num_rows(self) -> int:
        """Rows of an epoch."""
        return sum(source.draws for source in self.sources) or len(self.lengths)

    @property
    def chosen_order(self) -> Order:
        """The order that is used."""
        return self.order or ("shuffle" if self.padding_free else "windowed")

    @property
    def micro_per_step(self) -> int:
        """Micro-batches in one optimizer step, over all processes."""
        return self.grad_accum * self.num_processes

    @property
    def effective_rows(self) -> int:
        """Rows in one optimizer step, where tokens do not bound it."""
        return self.batch_size * self.micro_per_step

    @property
    def is_sampled(self) -> bool:
        """Whether figures of an epoch are estimated from some of its steps."""
        return self.num_rows > EXAMINED_ROWS

    def epoch(self, epoch: int) -> Epoch:
        """Return all steps of an epoch, in no order; of many rows, some of the steps."""
        return _examine(self, epoch)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch: as many in each, so that any step can be sought."""
        return count_steps(self)

    def num_micro_batches(self, epoch: int = 0) -> int:
        """Micro-batches in an epoch, over all processes."""
        if self.is_sampled and self.max_tokens is None:
            whole, left = divmod(self.num_rows, self.effective_rows)
            return whole * self.micro_per_step + len(micro_sizes(left, self))
        order = self.epoch(epoch)
        count = len(order.micro_starts) - 1
        return round(count * self.steps_per_epoch / max(len(order.step_starts) - 1, 1))

    def step_rows(self, epoch: int, step: int) -> Rows:
        """Return all rows of a step, over all processes."""
        return make_section(self, epoch, step // section_steps(self)).step_rows(step)

    def micro_batches(self, epoch: int, step: int) -> list[Rows]:
        """Return the micro-batches of a step, over all processes."""
        return divide_step(self.step_rows(epoch, step), self)

    def share(self, epoch: int, step: int, process: int = 0) -> Share:
        """Return the share of a step that one process trains on."""
        micro = self.micro_batches(epoch, step)
        mine = tuple(micro[place] for place in self._assigned(self._costs(micro))[process])
        return Share(mine, 1.0) if mine else Share((micro[0],), 0.0)

    def most_micro_batches(self, epoch: int, step: int) -> int:
        """Micro-batches of the process that has the most of a step."""
        return max(map(len, self._assigned(self._costs(self.micro_batches(epoch, step)))))

    def imbalance(self, epoch: int = 0) -> float:
        """Share of the processes' time in an epoch that is spent waiting for the slowest."""
        if self.num_processes == 1:
            return 0.0
        order, slowest, total = self.epoch(epoch), 0, 0
        most = min(EXAMINED_STEPS, max(1, EXAMINED_ROWS // self.effective_rows))
        for step in range(min(len(order.step_starts) - 1, most)):
            costs = self._costs(order.micro_batches(step))
            by_process = [sum(costs[place] for place in each) for each in self._assigned(costs)]
            slowest, total = slowest + max(by_process), total + sum(by_process)
        return 1 - total / (slowest * self.num_processes) if slowest else 0.0

    def _assigned(self, costs: list[int]) -> list[list[int]]:
        """Return micro-batches of each process: the costliest first, to the one with the least."""
        if self.num_processes == 1:
            return [[*range(len(costs))]]
        assigned: list[list[int]] = [[] for _ in range(self.num_processes)]
        least = [(0, process) for process in range(self.num_processes)]  # a heap
        for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
            total, process = least[0]
            assigned[process].append(place)
            heapq.heapreplace(least, (total + costs[place], process))
        return [sorted(places) for places in assigned]

    def _costs(self, micro_batches: list[Rows]) -> list[int]:
        """Positions that each micro-batch computes, at least 1."""
        if self.num_processes == 1:
            return [1] * len(micro_batches)  # there is nothing to share out
        sizes = np.array([len(rows) for rows in micro_batches])
        lengths, starts = self.lengths[np.concatenate(micro_batches)], np.cumsum(sizes) - sizes
        if self.padding_free:
            computed = np.add.reduceat(lengths, starts, dtype=np.int64)
        else:
            computed = sizes * np.maximum.reduceat(lengths, starts)
        return np.maximum(computed, 1).tolist()  # type: ignore[no-any-return]

    def padding_share(self, epoch: int = 0) -> float:
        """Share of an epoch's positions that are padding."""
        if self.padding_free:
            return 0.0
        rows, longest = self._micro_shapes(epoch)
        padded, tokens = int((rows * longest).sum()), self.lengths[self.epoch(epoch).rows]
        return 1 - int(tokens.sum(dtype=np.int64)) / padded if padded else 0.0

    def random_padding_share(self) -> float:
        """Return the `padding_share` of a plain shuffle, padded."""
        is_part = self.is_sampled or self.sources
        lengths = self.lengths[self.epoch(0).rows] if is_part else self.lengths
        shuffled = np.random.default_rng(self.seed).permutation(lengths)
        starts = np.arange(0, len(shuffled), self.batch_size)
        sizes = np.diff(np.append(starts, len(shuffled)))
        padded = int((np.maximum.reduceat(shuffled, starts) * sizes).sum())
        return 1 - int(shuffled.sum(dtype=np.int64)) / padded if padded else 0.0

    def longest(self, epoch: int = 0) -> tuple[int, int]:
        """Return rows and padded length of the micro-batch with the most positions.

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

    def total_positions(self) -> float:
        """Positions of all micro-batches of an epoch, including padding."""
        return float(self.positions().sum()) * self.num_rows / max(len(self.epoch(0).rows), 1)

    def median_rows(self) -> Rows:
        """Return the rows of a micro-batch with the median number of positions."""
        positions = self.positions()
        return self._rows_of(0, int(np.argsort(positions, kind="stable")[len(positions) // 2]))

    def _rows_of(self, epoch: int, micro: int) -> Rows:
        order = self.epoch(epoch)
        return order.rows[order.micro_starts[micro] : order.micro_starts[micro + 1]]

    def worst_rows(self, epochs: int = 1) -> Rows:
        """Return the rows of the micro-batch with the most positions, over all epochs.

        As many epochs are examined as can be computed in about a second.
        """
        return _find_worst(self, self.examined_epochs(epochs))

    def examined_epochs(self, epochs: int) -> int:
        """Return how many of the epochs are looked at for their extremes."""
        return min(epochs, EXAMINED_EPOCHS, max(1, EXAMINED_ROWS // max(self.num_rows, 1)))

    def _micro_shapes(self, epoch: int) -> tuple[Rows, Rows]:
        order = self.epoch(epoch)
        longest = np.maximum.reduceat(self.lengths[order.rows], order.micro_starts[:-1])
        return np.diff(order.micro_starts), longest.astype(np.int64)


@lru_cache(maxsize=8)  # a few rows each; read by every memory prediction
def _find_worst(batches: Batches, epochs: int) -> Rows:
    found = []
    for epoch in range(epochs):
        positions = batches.positions(epoch)
        micro = int(positions.argmax())
        found.append((int(positions[micro]), batches._rows_of(epoch, micro).copy()))
    return max(found, key=lambda pair: pair[0])[1]


@lru_cache(maxsize=2)
def _examine(batches: Batches, epoch: int) -> Epoch:
    """Return all steps of an epoch; of many rows, some with that of the longest row among them."""
    num_steps, size = batches.steps_per_epoch, section_steps(batches)
    sections: Rows = np.arange(-(-num_steps // size))
    if batches.is_sampled:
        most = max(2, SAMPLED_ROWS // (size * usual_step_rows(batches)))
        sections = np.linspace(0, sections[-1], min(len(sections), most)).astype(int)
        if not batches.sources:
            place = row_order(batches, epoch).place(int(np.argmax(batches.lengths)))
            sections = np.unique([*sections, find_step(batches, epoch, place) // size])
    cut = [_divided(make_section(batches, epoch, int(s)), batches) for s in sections]
    if not cut:
        return Epoch(np.arange(0), np.zeros(1, np.int64), np.zeros(1, np.int64))
    rows, sizes, counts = (np.concatenate(each) for each in zip(*cut, strict=True))
    return Epoch(rows, to_starts(sizes), to_starts(counts))


def _divided(section: Section, batches: Batches) -> tuple[Rows, Rows, Rows]:
    """Return rows of a section by micro-batch, the sizes of these, and how many each step has."""
    num_steps = len(section.starts) - 1
    steps = [section.rows[a:b] for a, b in pairwise(section.starts)]
    whole = 0
    parts: list[tuple[Rows, Rows, Rows]] = []
    if batches.max_tokens is None:  # steps of the same number of rows are divided at once
        whole = num_steps if len(steps[-1]) == len(steps[0]) else num_steps - 1
    if whole:
        divided, sizes = divide_steps(np.stack(steps[:whole]), batches)
        counts = np.full(whole, len(sizes))
        parts.append((divided.reshape(-1), np.tile(sizes, whole), counts))
    for step in steps[whole:]:
        micro = divide_step(step, batches)
        counts = np.array([len(micro)])
        parts.append((np.concatenate(micro), np.array([len(part) for part in micro]), counts))
    rows, sizes, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
    return rows, sizes, counts
