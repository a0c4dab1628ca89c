"""Which rows may be batched together in evaluation, prediction and generation.

Padding changes the outputs of some models, such as recurrent ones. Their rows are batched with rows
of equal length only, so that no result depends on the batch size.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from surefit.batches.branches import PROMPT
from surefit.inputs.store import Store

Together = Literal["padded", "equal_length", "single"]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowGroups:
    """How rows are batched: padded, with rows of equal length only, or one at a time.

    `forward` is for evaluation and prediction, `generation` for prompts. Both are chosen by probes
    and stored in the plan.
    """

    forward: Together = "padded"
    generation: Together = "padded"


ANY_LENGTHS = RowGroups()


def group_store(store: Store, together: Together, prompts: bool = False) -> Numbers | None:
    """Return a number per row: rows with equal numbers may be batched together; None if all may."""
    if together == "padded":
        return None
    if prompts and PROMPT in store.fields:
        return _numbers(store.values(PROMPT)[:, None], together)
    ranked = [name for name, spec in store.fields.items() if spec.rank]
    if prompts and "input_ids" in ranked:
        ranked = ["input_ids"]
    return _numbers(np.stack([np.diff(store.offsets(name)) for name in ranked], 1), together)


def group_rows(
    rows: Sequence[Mapping[str, Any]], together: Together, prompts: bool = False
) -> Numbers | None:
    """Return the same for encoded rows in memory."""
    if together == "padded" or not rows:
        return None
    if prompts and PROMPT in rows[0]:
        return _numbers(np.array([[int(row[PROMPT])] for row in rows]), together)
    sizes = [[np.size(value) for value in row.values() if np.ndim(value)] for row in rows]
    return _numbers(np.array(sizes), together)


def _numbers(sizes: npt.NDArray[Any], together: Together) -> Numbers:
    """Return the number of each distinct row of sizes.

    >>> _numbers(np.array([[3], [5], [3]]), "equal_length").tolist()
    [0, 1, 0]
    """
    if together == "single":
        return np.arange(len(sizes))
    return np.unique(sizes, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class RowChunks(Sequence[Numbers]):
    """Rows in chunks: two arrays rather than an array for each chunk."""

    order: Numbers
    starts: Numbers  # indices into order, and the end
    chosen: range | None = None
    """Which of the chunks; None for all."""

    def __len__(self) -> int:
        return len(self._places)

    @property
    def _places(self) -> range:
        return range(len(self.starts) - 1) if self.chosen is None else self.chosen

    @overload
    def __getitem__(self, place: int) -> Numbers: ...
    @overload
    def __getitem__(self, place: slice) -> RowChunks: ...
    def __getitem__(self, place: int | slice) -> Numbers | RowChunks:
        """Return a chunk, or some of them."""
        if isinstance(place, slice):
            return RowChunks(self.order, self.starts, self._places[place])
        number = self._places[place]
        return self.order[self.starts[number] : self.starts[number + 1]]


def row_chunks(
    lengths: npt.NDArray[Any],
    batch_size: int,
    max_tokens: int | None,
    groups: Numbers | None = None,
) -> RowChunks:
    """Return rows in batches by length, the longest first, so that a lack of memory shows at once.

    >>> lengths = np.array([2, 5, 2, 4])
    >>> [rows.tolist() for rows in row_chunks(lengths, 2, None)]
    [[1, 3], [0, 2]]
    >>> [rows.tolist() for rows in row_chunks(lengths, 2, None, groups=lengths)]
    [[1], [3], [0, 2]]
    """
    if groups is None:
        order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
        ends = np.array([len(order)])
    else:
        order = np.lexsort((-np.asarray(lengths, np.int64), -groups))
        ends = np.append(np.flatnonzero(np.diff(groups[order])) + 1, len(order))
    if groups is None and max_tokens is None:
        return RowChunks(order, np.append(np.arange(0, len(order), batch_size), len(order)))
    starts, start = array("q", [0]), 0
    while start < len(order):
        size = batch_size
        if max_tokens is not None:
            size = max(1, max_tokens // max(1, int(lengths[order[start]])))
        start += min(size, int(ends[np.searchsorted(ends, start, "right")]) - start)
        starts.append(start)
    return RowChunks(order, np.array(starts))
