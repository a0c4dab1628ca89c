"""Rows dealt to folds: a pure function of the rows' groups, their classes and the seed.

Rows of one group stay in one fold. Each fold gets its share of each class, as far as groups allow.
"""

from __future__ import annotations

import numpy as np

from surefit.data.split import NO_CONTENT, Hashes, Rows, Split, count_inputs, join_groups


def deal_rows(groups: Hashes, num_folds: int, seed: int, classes: Rows | None = None) -> Rows:
    """The fold of each row.

    Groups of several rows are dealt first, the largest ones first, each to the fold that has the
    fewest rows of its classes; then single rows fill up what is missing.

    >>> np.bincount(deal_rows(np.arange(10, dtype=np.uint64), 5, seed=0)).tolist()
    [2, 2, 2, 2, 2]
    """
    _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    kinds = np.zeros(len(groups), np.int64) if classes is None else classes - classes.min()
    random = np.random.default_rng([seed, 0xF01D])
    counts = np.zeros((num_folds, int(kinds.max(initial=0)) + 1), np.int64)
    fold_of_group = np.zeros(len(sizes), np.int64)
    several = np.flatnonzero(sizes > 1)
    order = several[np.lexsort((random.permutation(len(several)), -sizes[several]))]
    by_group, ends = np.argsort(group_of, kind="stable"), np.cumsum(sizes)
    for group in order:
        rows = by_group[ends[group] - sizes[group] : ends[group]]
        own = np.bincount(kinds[rows], minlength=counts.shape[1])
        after = ((counts + own) * (own > 0)).sum(1) * len(groups) + counts.sum(1)
        fold = int(after.argmin())
        fold_of_group[group] = fold
        counts[fold] += own
    folds = fold_of_group[group_of]
    single = random.permutation(np.flatnonzero(sizes[group_of] == 1))
    for kind in range(counts.shape[1]):
        rows = single[kinds[single] == kind]
        folds[rows] = _fill_up(counts[:, kind], counts.sum(1), len(rows))
        counts[:, kind] += np.bincount(folds[rows], minlength=num_folds)
    return folds


def _fill_up(counts: Rows, totals: Rows, num_rows: int) -> Rows:
    """Folds for so many rows of a class, by which the folds have equally many of it.

    Where that leaves a choice, the fold with fewer rows in all comes first.

    >>> sorted(_fill_up(np.array([2, 0, 0]), np.array([2, 0, 0]), 4).tolist())
    [1, 1, 2, 2]
    """
    levels = counts[:, None] + np.arange(num_rows)[None]
    rank = np.argsort(np.argsort(totals, kind="stable"), kind="stable")
    folds = np.broadcast_to(np.arange(len(counts))[:, None], levels.shape).ravel()
    ranks = np.broadcast_to(rank[:, None], levels.shape).ravel()
    chosen = np.lexsort((ranks, levels.ravel()))[:num_rows]
    return np.asarray(folds[chosen])


def split_off_fold(
    hashes: tuple[Hashes, Hashes],
    fold: int,
    num_folds: int,
    seed: int,
    by: Hashes | None = None,
    classes: Rows | None = None,
) -> Split:
    """One fold as the validation set; `hashes` are those of inputs and of whole rows.

    As in a plain split, rows with equal inputs stay together, unless a few inputs have most of the
    rows; and so do the groups of `by`.
    """
    inputs, whole = hashes
    groups = np.where(inputs == NO_CONTENT, whole, inputs)
    if by is not None:
        groups = join_groups(by, groups)
    else:
        _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        large = sizes > len(groups) // num_folds
        if 2 * int(sizes[large].sum()) > len(groups):
            groups = np.where(large[group_of], whole, groups)
    is_held = deal_rows(groups, num_folds, seed, classes) == fold
    split = Split(np.flatnonzero(~is_held), np.flatnonzero(is_held), 0)
    return count_inputs(split, inputs, whole)
