"""The order of rows that are too many to be shuffled at once: shards, then windows of shards.

Shards are ranges of consecutive rows. A keyed permutation says which shard is where in an epoch,
and nothing of it is stored. Consecutive places make a window, whose rows are shuffled, cut into
steps and held in memory; the steps before it are not computed. In each epoch shards begin at
another row.

All windows have the same number of steps, so that the step at which a window begins is a product.
Where `max_tokens` bounds a step, a window has so many steps that its tokens fit; it is cut into
steps of about the same number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.cut_steps import GROUPED_STEPS, Epoch, Rows, divide_step, to_starts
from surefit.batches.keyed_permutation import KeyedPermutation

if TYPE_CHECKING:
    from surefit.batches.order import Batches

LARGE_ROWS = 1 << 22
"""More rows are ordered in windows: as many are shuffled at once in 0.3 s and 24 MB."""
WINDOW_ROWS = 1 << 20
SHARD_ROWS = 256
WINDOW_STEPS = 32
"""Steps of a window, at least: where steps are large, so are windows."""
SHARDS_PER_STEP_ROW = 4
"""Shards of a window for each row of a step, at least. If all rows of a shard are alike, the mean
of a step then spreads √(1 + 1/4) = 1.12 times as far as in a plain shuffle."""
READ_ROWS = 1 << 16
"""Lengths that are read at once."""
SAMPLED_STEPS = 512
"""Steps of a window that figures are estimated from, besides the extremes."""
SAMPLED_ROWS = 1 << 19
SPREAD = 3
"""Standard deviations of a window's tokens for which it has room."""

_SHARDS, _BEGIN, _ROWS = 0x5A4D, 0xBE61, 0x2035  # what a random draw is for


@dataclass(frozen=True)
class LengthSums:
    """What the sizes of steps and the largest one depend on."""

    tokens: int
    squares: float
    longest_row: int
    shard_spread: float
    """Standard deviation of the tokens of a shard, as a share of their mean."""

    @property
    def usual_row(self) -> float:
        """Length of the row that a token, rather than a row, drawn at random belongs to."""
        return self.squares / max(self.tokens, 1)


@dataclass(frozen=True, eq=False)
class Windows:
    """Sizes of the windows and shards of an order; the plan stores them."""

    lengths: npt.NDArray[np.int32]
    rows: int
    shard_rows: int

    @cached_property
    def sums(self) -> LengthSums:
        """Found in one pass over the lengths, which stay on disk."""
        tokens, squares, of_shards, longest = 0, 0.0, 0.0, (-1, 0)
        block = self.shard_rows * max(1, READ_ROWS // self.shard_rows)
        for start in range(0, len(self.lengths), block):
            part = self.lengths[start : start + block]
            exact = part.astype(np.float64)
            squares += float(exact @ exact)
            shards = np.add.reduceat(exact, np.arange(0, len(part), self.shard_rows))
            tokens += int(shards.sum())
            of_shards += float(shards @ shards)
            place = int(part.argmax())
            longest = max(longest, (int(part[place]), -(start + place)))
        count = max(1, -(-len(self.lengths) // self.shard_rows))
        mean = max(tokens / count, 1e-9)
        spread = max(of_shards / count - mean**2, 0.0) ** 0.5 / mean
        return LengthSums(tokens, squares, -longest[1], spread)


def choose_windows(lengths: npt.NDArray[np.int32]) -> Windows | None:
    """Windows for many rows; None where all rows are shuffled at once."""
    if len(lengths) <= LARGE_ROWS:
        return None
    return Windows(lengths, WINDOW_ROWS, SHARD_ROWS)


@dataclass(frozen=True)
class WindowEdges:
    """Where windows and their steps begin in an epoch: the same in all epochs."""

    num_rows: int
    num_steps: int
    count: int
    """Windows in an epoch."""
    shard_rows: int
    step_rows: int | None
    """Rows of a step; None where tokens bound it."""

    def first_row(self, window: int) -> int:
        """The place of a window's first row in the epoch."""
        if self.step_rows is None:
            return self.num_rows * window // self.count
        return min(self.first_step(window) * self.step_rows, self.num_rows)

    def first_step(self, window: int) -> int:
        """The first step of a window."""
        return self.num_steps * window // self.count

    def window_of_step(self, step: int) -> int:
        """The window that a step is in."""
        return ((step + 1) * self.count - 1) // self.num_steps

    def window_of_place(self, place: int) -> int:
        """The window in which a place of the epoch is."""
        if self.step_rows is None:
            return ((place + 1) * self.count - 1) // self.num_rows
        return self.window_of_step(place // self.step_rows)


@lru_cache(maxsize=8)
def find_edges(batches: Batches) -> WindowEdges:
    """The windows of an order; they depend on the effective batch size, not on processes."""
    windows, num_rows = batches.windows, len(batches.lengths)
    assert windows is not None
    assert num_rows
    step_rows, budget = batches.batch_size * batches.micro_per_step, 0
    if batches.max_tokens is not None:
        budget = batches.max_tokens * batches.micro_per_step
        step_rows = max(1, budget * num_rows // max(windows.sums.tokens, 1))
    count = -(-num_rows // max(windows.rows, WINDOW_STEPS * step_rows))
    shard_rows = max(1, num_rows // count // (SHARDS_PER_STEP_ROW * step_rows))
    shard_rows = min(windows.shard_rows, 1 << (shard_rows.bit_length() - 1))
    if batches.max_tokens is None:
        return WindowEdges(num_rows, -(-num_rows // step_rows), count, shard_rows, step_rows)
    sums = windows.sums
    shards = max(1, num_rows // count // windows.shard_rows)
    tokens = sums.tokens / count * (1 + SPREAD * sums.shard_spread / shards**0.5)
    # a step ends before the row that would exceed the budget, and its micro-batches leave a little
    # room, or one more of them would keep all processes but one waiting
    mean = sums.tokens / num_rows
    unused = max(sums.usual_row, batches.micro_per_step * mean / 2)
    steps = -int(-tokens // max(budget - unused, budget / 2))
    return WindowEdges(
        num_rows, min(max(1, steps), num_rows // count) * count, count, shard_rows, None
    )


@dataclass(frozen=True)
class Window:
    """The rows of one window in order, and where its steps start."""

    rows: Rows
    starts: Rows  # indices into rows, and the end
    turns: Rows | None = None
    """Which step is trained on at which place, if not as they come."""

    def step_rows(self, step: int) -> Rows:
        """The rows of a step of the window."""
        turn = step if self.turns is None else int(self.turns[step])
        return self.rows[self.starts[turn] : self.starts[turn + 1]]


@lru_cache(maxsize=2)  # the window being trained on, and the next one while prefetching
def make_window(batches: Batches, epoch: int, window: int) -> Window:
    """One window of an epoch."""
    edges = find_edges(batches)
    random = np.random.default_rng([batches.seed, epoch, window, _ROWS])
    rows = _rows_at(edges, batches.seed, epoch, window)
    random.shuffle(rows)
    num_steps = edges.first_step(window + 1) - edges.first_step(window)
    if edges.step_rows is not None:
        starts = np.append(np.arange(0, len(rows), edges.step_rows), len(rows))
    else:
        starts = _cut_by_tokens(rows, num_steps, batches)
    if batches.chosen_order != "grouped":
        return Window(rows, starts)
    groups = max(1, round(num_steps / GROUPED_STEPS))
    for group in range(groups):
        first, end = num_steps * group // groups, num_steps * (group + 1) // groups
        part = rows[starts[first] : starts[end]]
        part[:] = part[np.argsort(batches.lengths[part], kind="stable")]
        if edges.step_rows is None:
            starts[first:end] = starts[first] + _cut_by_tokens(part, end - first, batches)[:-1]
    return Window(rows, starts, random.permutation(num_steps))


def _rows_at(edges: WindowEdges, seed: int, epoch: int, window: int) -> Rows:
    """The rows of a window, shard by shard."""
    kind: Any = np.int32 if edges.num_rows < 2**31 else np.int64
    size, first, end = edges.shard_rows, edges.first_row(window), edges.first_row(window + 1)
    whole = edges.num_rows // size * size  # the rows that are left over come last
    shards, begin = _draw(edges, seed, epoch)
    chosen = shards(np.arange(first // size, -(-min(end, whole) // size))) * size
    rows: Rows = (chosen.astype(kind)[:, None] + np.arange(size, dtype=kind)).reshape(-1)
    rows = rows[first % size :][: min(end, whole) - first] if first < whole else rows[:0]
    if end > whole:
        rows = np.concatenate([rows, np.arange(max(first, whole), end, dtype=kind)])
    rows -= kind(edges.num_rows - begin)
    rows[rows < 0] += kind(edges.num_rows)
    return rows


def _draw(edges: WindowEdges, seed: int, epoch: int) -> tuple[KeyedPermutation, int]:
    """The order of the shards of an epoch, and the row at which the first shard begins."""
    begin = int(np.random.default_rng([seed, epoch, _BEGIN]).integers(edges.num_rows))
    return KeyedPermutation(edges.num_rows // edges.shard_rows, (seed, epoch, _SHARDS)), begin


def find_window(batches: Batches, epoch: int, row: int) -> int:
    """The window of an epoch that a row is in."""
    edges = find_edges(batches)
    shards, begin = _draw(edges, batches.seed, epoch)
    shard, inside = divmod((row - begin) % edges.num_rows, edges.shard_rows)
    place = int(shards.inverse([shard])[0]) if shard < shards.size else shard
    return edges.window_of_place(place * edges.shard_rows + inside)


def _cut_by_tokens(rows: Rows, num_steps: int, batches: Batches) -> Rows:
    """Where steps of about the same number of tokens start, within the budget of a step."""
    assert batches.max_tokens is not None
    assert batches.windows is not None
    own = batches.lengths[rows]
    total, budget = int(own.sum(dtype=np.int64)), batches.max_tokens * batches.micro_per_step
    kind = np.int32 if total < 2**31 else np.int64
    ends = np.cumsum(own, dtype=kind)  # searched for numbers of its type, or it would be copied
    budget = max(budget, int(total / num_steps + batches.windows.sums.usual_row))
    even = total * np.arange(1, num_steps) // num_steps
    even = np.searchsorted(ends, even.astype(kind), side="right")
    starts = [0]
    for left, wanted in zip(range(num_steps - 1, 0, -1), even.tolist(), strict=True):
        before = int(ends[starts[-1] - 1]) if starts[-1] else 0
        fitting = int(np.searchsorted(ends, kind(min(before + budget, total)), side="right"))
        at_least_one_row = max(min(wanted, fitting), starts[-1] + 1)
        starts.append(min(at_least_one_row, len(rows) - left))
    return np.array([*starts, len(rows)], np.int64)


@lru_cache(maxsize=2)
def sample_steps(batches: Batches, epoch: int) -> Epoch:
    """Some steps of an epoch as if they were all: of its first, middle and last window and of that
    with the longest row. Of each window the step with the most tokens, that with the longest row
    and that with the fewest rows are among them.
    """
    assert batches.windows is not None
    edges = find_edges(batches)
    longest = find_window(batches, epoch, batches.windows.sums.longest_row)
    micro_batches, counts = [], []
    for number in sorted({0, edges.count // 2, edges.count - 1, longest}):
        window = make_window(batches, epoch, number)
        for step in _sampled_steps(window, batches):
            parts = divide_step(window.step_rows(step), batches)
            micro_batches += parts
            counts.append(len(parts))
    sizes = np.array([len(rows) for rows in micro_batches])
    return Epoch(np.concatenate(micro_batches), to_starts(sizes), to_starts(np.array(counts)))


def _sampled_steps(window: Window, batches: Batches) -> list[int]:
    num_steps = len(window.starts) - 1
    most = max(2, SAMPLED_ROWS * num_steps // len(window.rows))
    even = np.linspace(0, num_steps - 1, min(num_steps, SAMPLED_STEPS, most)).astype(int)
    lengths = batches.lengths[window.rows]
    extremes = [
        int(found.reduceat(lengths, window.starts[:-1]).argmax()) for found in (np.add, np.maximum)
    ]
    extremes.append(int(np.diff(window.starts).argmin()))
    if window.turns is not None:
        extremes = [int(np.flatnonzero(window.turns == turn)[0]) for turn in extremes]
    return sorted({*even.tolist(), *extremes})
