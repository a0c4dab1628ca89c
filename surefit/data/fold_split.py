"""Rows dealt to folds: a pure function of the rows' groups, their classes and the seed.

Rows of one group stay in one fold. Each fold gets its share of each class, as far as groups allow.
"""

from __future__ import annotations

import numpy as np

from surefit.data.split import Hashes, Rows, Split, count_inputs, input_keys, join_groups


def deal_rows(groups: Hashes, num_folds: int, seed: int, classes: Rows | None = None) -> Rows:
    """The fold of each row.

    The largest groups are dealt first, each to the fold that has the fewest rows of its classes,
    then the fewest rows in all.

    >>> np.bincount(deal_rows(np.arange(10, dtype=np.uint64), 5, seed=0)).tolist()
    [2, 2, 2, 2, 2]
    """
    shuffled = np.random.default_rng([seed, 0xF01D]).permutation(len(groups))
    _, first, group_of, sizes = np.unique(
        groups[shuffled], return_index=True, return_inverse=True, return_counts=True
    )
    kinds = np.zeros(len(groups), np.int64) if classes is None else classes - classes.min()
    kinds = kinds[shuffled]
    counts = np.zeros((num_folds, int(kinds.max(initial=0)) + 1), np.int64)
    folds = np.zeros(len(groups), np.int64)
    by_group, ends = np.argsort(group_of, kind="stable"), np.cumsum(sizes)
    for group in np.lexsort((first, kinds[first], -sizes)):
        rows = by_group[ends[group] - sizes[group] : ends[group]]
        own = np.bincount(kinds[rows], minlength=counts.shape[1])
        fold = (counts @ (own > 0) * len(groups) + counts.sum(1)).argmin()
        folds[shuffled[rows]] = fold
        counts[fold] += own
    return folds


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
    groups = input_keys(inputs, whole)
    if by is not None:
        groups = join_groups(by, groups)
    else:
        _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        large = sizes > len(groups) // num_folds
        if 2 * int(sizes[large].sum()) > len(groups):
            groups = np.where(large[group_of], whole, groups)
    is_held = deal_rows(groups, num_folds, seed, classes) == fold
    split = Split(np.flatnonzero(~is_held), np.flatnonzero(is_held))
    return count_inputs(split, inputs)
