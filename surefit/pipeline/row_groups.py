"""Which rows may be batched together in evaluation, prediction and generation.

Padding changes the outputs of some models, such as recurrent ones. Their rows are batched with rows
of equal length only, so that no result depends on the batch size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from surefit.encode.store import Store

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
    """A number per row: rows with equal numbers may be batched together; None if all may."""
    if together == "padded":
        return None
    if prompts and "prompt_length" in store.fields:
        return _numbers(store.values("prompt_length")[:, None], together)
    ranked = [name for name, spec in store.fields.items() if spec.rank]
    if prompts and "input_ids" in ranked:
        ranked = ["input_ids"]
    return _numbers(np.stack([np.diff(store.offsets(name)) for name in ranked], 1), together)


def group_rows(
    rows: Sequence[Mapping[str, Any]], together: Together, prompts: bool = False
) -> Numbers | None:
    """The same for encoded rows in memory."""
    if together == "padded" or not rows:
        return None
    if prompts and "prompt_length" in rows[0]:
        return _numbers(np.array([[int(row["prompt_length"])] for row in rows]), together)
    sizes = [[np.size(value) for value in row.values() if np.ndim(value)] for row in rows]
    return _numbers(np.array(sizes), together)


def _numbers(sizes: npt.NDArray[Any], together: Together) -> Numbers:
    """The number of each distinct row of sizes.

    >>> _numbers(np.array([[3], [5], [3]]), "equal_length").tolist()
    [0, 1, 0]
    """
    if together == "single":
        return np.arange(len(sizes))
    return np.unique(sizes, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def row_chunks(
    lengths: npt.NDArray[Any],
    batch_size: int,
    max_tokens: int | None,
    groups: Numbers | None = None,
) -> list[Numbers]:
    """Rows in batches by length, the longest first, so that a lack of memory shows at once.

    >>> lengths = np.array([2, 5, 2, 4])
    >>> [rows.tolist() for rows in row_chunks(lengths, 2, None)]
    [[1, 3], [0, 2]]
    >>> [rows.tolist() for rows in row_chunks(lengths, 2, None, groups=lengths)]
    [[1], [3], [0, 2]]
    """
    known = np.zeros(len(lengths), np.int64) if groups is None else groups
    order = np.lexsort((-np.asarray(lengths, np.int64), -known))
    ends = np.append(np.flatnonzero(np.diff(known[order])) + 1, len(order))
    chunks, start = [], 0
    while start < len(order):
        size = batch_size
        if max_tokens is not None:
            size = max(1, max_tokens // max(1, int(lengths[order[start]])))
        size = min(size, int(ends[np.searchsorted(ends, start, "right")]) - start)
        chunks.append(order[start : start + size])
        start += size
    return chunks
