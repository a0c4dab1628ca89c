"""Rows of an epoch, or of a window of it, cut into steps and micro-batches."""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from surefit.batches.order import Batches

Rows = npt.NDArray[np.integer[Any]]

GROUPED_STEPS = 128
"""Optimizer steps per group of `grouped` that is sorted by length: enough for little padding."""
SORTED_ROWS = 8_192
"""How many rows are sorted within their steps at once."""


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


def steps_of_rows(rows: Rows, batches: Batches) -> Epoch:
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
        np.concatenate([first_micro, (whole + to_starts(last_sizes)).astype(rows.dtype)]),
        np.concatenate([first_step, np.unique(ends).astype(rows.dtype)]),
    )


def _divide(steps: Rows, batches: Batches) -> tuple[Rows, Rows]:
    """Steps (a row each) with their rows ordered by micro-batch, and the size of each.

    >>> from surefit.batches.order import Batches
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


def steps_of_tokens(rows: Rows, batches: Batches, max_tokens: int) -> Epoch:
    """Steps of about the same number of tokens, in micro-batches of at most `max_tokens`."""
    lengths, budget, start = batches.lengths, batches.micro_per_step * max_tokens, 0
    sizes, counts, size = array("i"), array("i"), 64
    while start < len(rows):
        while True:  # as many rows as exceed the budget, and few more
            tokens = np.cumsum(lengths[rows[start : start + min(size, budget)]], dtype=np.int64)
            if tokens[-1] > budget or start + size >= len(rows) or size >= budget:
                break
            size *= 2
        step = rows[start : start + max(1, int(np.searchsorted(tokens, budget, side="right")))]
        size = max(64, 2 * len(step))
        parts = _parts_of_tokens(step, batches, max_tokens)
        sizes.extend(len(part) for part in parts)
        counts.append(len(parts))
        step[:] = np.concatenate(parts)
        start += len(step)
    return Epoch(rows, to_starts(np.array(sizes)), to_starts(np.array(counts)))


def divide_step(step: Rows, batches: Batches) -> list[Rows]:
    """The micro-batches of one step, as they are made of all steps of an epoch at once."""
    if batches.max_tokens is not None:
        return _parts_of_tokens(step, batches, batches.max_tokens)
    divided, sizes = _divide(step[None], batches)
    return [divided[0, a:b] for a, b in pairwise(to_starts(sizes))]


def _parts_of_tokens(step: Rows, batches: Batches, max_tokens: int) -> list[Rows]:
    lengths = batches.lengths
    if batches.padding_free or batches.chosen_order == "windowed":
        step = step[np.argsort(lengths[step], kind="stable")]
    if batches.padding_free:
        processes = batches.num_processes if batches.windows is not None else 1
        return _fill(step[::-1], lengths, max_tokens, processes)
    return [step[a:b] for a, b in pairwise(_cut(lengths[step], max_tokens))]


def _fill(
    rows: Rows, lengths: npt.NDArray[np.int32], max_tokens: int, processes: int = 1
) -> list[Rows]:
    """Rows, the longest first, as micro-batches: each row goes to the one with the fewest tokens.

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


def grouped_steps(rows: Rows, batches: Batches, random: np.random.Generator) -> Epoch:
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
            part = steps_of_tokens(window, batches, batches.max_tokens)
            sizes = np.diff(part.micro_starts).astype(np.int32)
            steps = np.diff(part.step_starts).astype(np.int32)
        sizes_by_window.append(sizes)
        steps_by_window.append(steps)
    micro: Rows = np.concatenate(sizes_by_window)
    counts: Rows = np.concatenate(steps_by_window)
    order = random.permutation(len(counts))
    first_micro = to_starts(counts)
    rows = _reorder(rows, to_starts(np.add.reduceat(micro, first_micro[:-1])), order)
    return Epoch(rows, to_starts(_reorder(micro, first_micro, order)), to_starts(counts[order]))


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


def to_starts(sizes: Rows) -> Rows:
    """Where consecutive groups of these sizes start, and the end of the last."""
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
