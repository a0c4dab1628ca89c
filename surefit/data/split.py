"""Training and validation rows: a pure function of the rows' content, the share and the seed.

Rows with equal inputs stay in one set, whatever their targets. Some data has few inputs by nature,
such as one instruction for all rows; then only rows that are equal as a whole stay together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.row_arrays import (
    blocks,
    count_distinct,
    distinct,
    is_among,
    new_array,
    number_rows,
    places_of,
    take,
)

Rows = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

NO_CONTENT = 0
"""The hash of every row whose values are all missing or blank."""
HASH_VERSION = 4


@dataclass(frozen=True)
class Split:
    """Row numbers of both sets, ascending."""

    train: Rows
    evaluation: Rows
    num_shared: int = 0
    """Validation rows whose input training rows have, too."""


def sample_rows(num_rows: int, size: int | None, seed: int) -> Rows:
    """Numbers of `size` rows drawn by the seed, ascending; all rows if there are no more.

    >>> len(sample_rows(100, 5, seed=0)), sample_rows(3, 5, seed=0).tolist()
    (5, [0, 1, 2])
    """
    if size is None or size >= num_rows:
        return number_rows(num_rows)
    return np.sort(np.random.default_rng([seed, 0x5CA]).choice(num_rows, size, replace=False))


_MARKS = ".,;:!?…\"'“”‘’«»()"


def is_blank(values: Any) -> bool:
    """Return whether all values are missing or blank."""
    if isinstance(values, str):
        return not values.strip()
    if isinstance(values, list | tuple | np.ndarray) and not len(values):
        return True
    listed = isinstance(values, list | tuple)
    return values is None or (listed and all(is_blank(value) for value in values))


def fold_text(value: Any) -> Any:
    """Text in lower case, without punctuation around words, with single spaces.

    >>> fold_text("“Where  is it?” – 3.50"), fold_text("where is it – 3.50")
    ('where is it – 3.50', 'where is it – 3.50')
    """
    if isinstance(value, str):
        folded = value.casefold()
        words = (_bare(word) for word in folded.split())
        return " ".join(filter(None, words)) or folded  # texts of marks alone are not all equal
    if isinstance(value, Mapping):  # a key that only other rows have is None
        return {key: fold_text(value[key]) for key in sorted(value) if value[key] is not None}
    return [fold_text(inner) for inner in value] if isinstance(value, list | tuple) else value


def _bare(word: str) -> str:
    """Return a word without the marks around it; one before a number stays, as in .5."""
    if word[-1] not in _MARKS and word[0] not in _MARKS:
        return word
    word = word.rstrip(_MARKS)
    inner = word.lstrip(_MARKS)
    return word[max(0, len(word) - len(inner) - inner[:1].isdecimal()) :]


def value_bytes(value: Any) -> bytes:
    """Return bytes that differ where the values do."""
    if isinstance(value, np.ndarray):
        return repr(value.shape).encode() + np.ascontiguousarray(value).tobytes()
    nested = isinstance(value, list | tuple) and any(
        isinstance(inner, list | tuple | bytes | np.ndarray) for inner in value
    )
    if nested:
        return b"[" + b"\0".join(value_bytes(inner) for inner in value) + b"]"
    return value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Groups:
    """Rows with equal hashes: the hash of each group, ascending, and the size of each."""

    names: Hashes
    sizes: Rows

    def __len__(self) -> int:
        return len(self.names)

    def of(self, hashes: Hashes) -> npt.NDArray[np.intp]:
        """Return the groups of some rows, which must be few at a time.

        >>> Groups(np.array([5, 7], np.uint64), np.array([1, 2])).of(np.array([7, 5])).tolist()
        [1, 0]
        """
        return np.searchsorted(self.names, hashes)

    def marked(self, hashes: Hashes, held: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which rows are in a marked group."""
        marked = np.empty(len(hashes), bool)
        for part in blocks(len(hashes)):
            marked[part] = held[self.of(hashes[part])]
        return marked


def group_rows(hashes: Hashes) -> Groups:
    """Return the groups of rows with equal hashes."""
    return Groups(*distinct(hashes))


def split_rows(hashes: Hashes, eval_share: float, seed: int, classes: Rows | None = None) -> Split:
    """Choose `eval_share` of the rows for validation; rows with equal hashes stay in one set.

    With the `classes` of the rows as numbers, each class gets its share, as far as groups allow it.

    >>> split = split_rows(np.array([1, 2, 3, 4, 4, 5, 6, 7, 8, 9], np.uint64), 0.2, seed=0)
    >>> len(split.train), len(split.evaluation)
    (8, 2)
    """
    num_rows, groups = len(hashes), group_rows(hashes)
    order = number_rows(len(groups))
    np.random.default_rng([seed, 0x5911]).shuffle(order)  # what permutation(n) returns
    held = np.zeros(len(groups), bool)
    room = min(num_wanted(num_rows, eval_share), num_rows - 1) if len(groups) > 1 else 0
    if classes is not None:
        taken = _hold_by_class(hashes, groups, order, classes, room, held)
        room = 0 if 2 * taken >= room else room - taken
    _hold_in_order(order, groups.sizes, room, held)
    return _by_mark(groups.marked(hashes, held))


def _by_mark(is_held: npt.NDArray[np.bool_]) -> Split:
    return Split(places_of(is_held, False), places_of(is_held))


def _hold_in_order(order: Rows, sizes: Rows, room: int, held: npt.NDArray[np.bool_]) -> None:
    """Mark groups in `held`, in order, each of which has no more rows than there is room for.

    >>> held = np.zeros(4, bool)
    >>> _hold_in_order(np.array([3, 0, 1, 2]), np.array([2, 1, 1, 3]), 5, held)
    >>> held.tolist()
    [True, False, False, True]
    """
    for part in blocks(len(order)):
        left = order[part]
        left = left[~held[left]]
        while room and len(left := left[sizes[left] <= room]):
            taken = np.cumsum(sizes[left])
            count = int(np.searchsorted(taken, room, side="right"))
            held[left[:count]] = True
            room -= int(taken[count - 1])
            left = left[count:]
        if not room:
            return


def _hold_by_class(
    hashes: Hashes,
    groups: Groups,
    order: Rows,
    classes: Rows,
    wanted: int,
    held: npt.NDArray[np.bool_],
) -> int:
    """Mark groups in `held` as long as no class gets more than its share; count their rows."""
    rooms = class_rooms(count_classes(classes), wanted)
    if len(order) == len(hashes):  # no two rows stay together
        return _hold_rows_by_class(hashes, groups, order, classes, rooms, held)
    left, taken = rooms.tolist(), 0
    for group, counts in _class_counts(hashes, groups, order, classes) if any(left) else ():
        if all(left[name] >= count for name, count in counts.items()):
            held[group] = True
            taken += sum(counts.values())
            for name, count in counts.items():
                left[name] -= count
            if not any(left):
                break
    return taken


def _class_counts(
    hashes: Hashes, groups: Groups, order: Rows, classes: Rows
) -> Iterator[tuple[int, Counter[int]]]:
    """Yield each group, in order, and how many of its rows each class has."""
    by_group = new_array(len(hashes), np.int64)
    by_group[:] = np.argsort(hashes, kind="stable")
    class_of, ends = take(classes, by_group), new_array(len(groups), np.int64)
    np.cumsum(groups.sizes, out=ends)
    for part in blocks(len(order)):
        for group in order[part].tolist():
            members = class_of[ends[group] - groups.sizes[group] : ends[group]]
            yield group, Counter(members.tolist())


def _hold_alike(
    hashes: Hashes, groups: Groups, order: Rows, classes: Rows, wanted: int
) -> npt.NDArray[np.bool_]:
    """Mark each group, in order, that brings the number of rows of all classes nearer to their
    shares, as squared distance.

    >>> names = np.repeat(np.arange(20, dtype=np.uint64), 5)
    >>> kinds = np.repeat([0, 1, 1, 1], 25)
    >>> held = _hold_alike(names, group_rows(names), np.arange(20), kinds, 20)
    >>> np.bincount(kinds[np.repeat(held, 5)]).tolist()
    [5, 15]
    """
    sizes = count_classes(classes)
    left = (sizes * (wanted / max(1, len(classes)))).tolist()
    held = np.zeros(len(groups), bool)
    for group, own in _class_counts(hashes, groups, order, classes):
        if sum(count * (count - 2 * left[name]) for name, count in own.items()) < 0:
            held[group] = True
            for name, count in own.items():
                left[name] -= count
    return held


def _hold_rows_by_class(
    hashes: Hashes,
    groups: Groups,
    order: Rows,
    classes: Rows,
    rooms: Rows,
    held: npt.NDArray[np.bool_],
) -> int:
    """Return the same where each group is a row: the first rows of each class in order."""
    class_of = new_array(len(hashes), classes.dtype)
    for part in blocks(len(hashes)):
        class_of[groups.of(hashes[part])] = classes[part]
    left, taken = rooms.copy(), 0
    for part in blocks(len(order)):
        own = class_of[order[part]]
        counts = np.bincount(own, minlength=len(left))
        nth_of_class = np.arange(len(own)) - np.repeat(np.cumsum(counts) - counts, counts)
        chosen = np.argsort(own, kind="stable")[nth_of_class < np.repeat(left, counts)]
        held[order[part][chosen]] = True
        taken += len(chosen)
        left -= np.minimum(left, counts)
        if not left.any():
            break
    return taken


def count_classes(classes: Rows, least: int = 0) -> Rows:
    """Return how many rows each class has."""
    counts = np.zeros(max(least, int(classes.max(initial=-1)) + 1), np.int64)
    for part in blocks(len(classes)):
        counts += np.bincount(classes[part], minlength=len(counts))
    return counts


def class_rooms(sizes: Rows, wanted: int) -> Rows:
    """Return how many validation rows each class gets; at least one row of each stays for training.

    >>> class_rooms(np.array([90, 9, 1]), 10).tolist()
    [9, 1, 0]
    """
    exact = sizes * wanted / max(1, int(sizes.sum()))
    rooms = np.floor(exact).astype(np.int64)
    missing = wanted - int(rooms.sum())
    rooms[np.argsort(rooms - exact, kind="stable")[:missing]] += 1
    return np.minimum(rooms, np.maximum(sizes - 1, 0))


def num_wanted(num_rows: int, eval_share: float) -> int:
    """Return how many validation rows the share asks for: at least one, if there are two rows."""
    return max(round(num_rows * eval_share), int(eval_share > 0 and num_rows > 1))


def split_by_input(
    inputs: Hashes, whole: Hashes, eval_share: float, seed: int, classes: Rows | None = None
) -> Split:
    """`split_rows` by the hashes of the inputs, unless too few inputs are left to choose from.

    An input with more rows than the validation set is to have stays in the training set. If such
    inputs have most of the rows, one of them is the validation set, as long as none has more than
    a quarter of the rows (or twice the validation set). Otherwise both sets get rows of these
    inputs, and only rows that are equal as a whole stay together.

    >>> prompts = np.array([1, 1, 2, 2, 3, 3, 4, 4, 5, 5], np.uint64)
    >>> split = split_by_input(prompts, np.arange(1, 11, dtype=np.uint64), 0.2, seed=0)
    >>> len(split.evaluation), len({*prompts[split.evaluation].tolist()})
    (2, 1)
    """
    num_rows, wanted = len(inputs), num_wanted(len(inputs), eval_share)
    keys = input_keys(inputs, whole)
    groups = group_rows(keys)
    sizes, large = groups.sizes, groups.sizes > wanted
    if wanted == 0 or 2 * int(sizes[large].sum()) <= num_rows:
        del groups, sizes, large
        split = split_rows(keys, eval_share, seed, classes)
    elif len(sizes) > 1 and int(sizes.max()) <= max(2 * wanted, num_rows // 4):
        smallest = np.flatnonzero(sizes == sizes[large].min())
        chosen = np.random.default_rng([seed, 0x5911]).choice(smallest)
        split = _by_mark(keys == groups.names[chosen])
    else:
        is_large = groups.marked(keys, large)
        for part in blocks(num_rows):
            keys[part] = np.where(is_large[part], whole[part], keys[part])
        split = split_rows(keys, eval_share, seed, classes)
    return count_inputs(split, inputs)


def input_keys(inputs: Hashes, whole: Hashes) -> Hashes:
    """Return the hashes of the inputs; of rows without an input, that of the row."""
    keys = new_array(len(inputs), np.uint64)
    for part in blocks(len(inputs)):
        keys[part] = np.where(inputs[part] == NO_CONTENT, whole[part], inputs[part])
    return keys


def split_by_group(
    group_of: Hashes,
    inputs: Hashes,
    whole: Hashes,
    eval_share: float,
    seed: int,
    classes: Rows | None = None,
) -> Split:
    """Split off whole groups, and rows with equal inputs with them.

    The share is met as nearly as the sizes of the groups allow, and so is that of each class where
    there are `classes`; the smallest group is taken where each is larger than the share.

    >>> groups, rows = np.array([7, 7, 8, 8, 9, 9], np.uint64), np.arange(1, 7, dtype=np.uint64)
    >>> groups[split_by_group(groups, rows, rows, 0.1, seed=0).evaluation].tolist() in (
    ...     [[7, 7], [8, 8], [9, 9]]
    ... )
    True
    """
    joined = join_groups(group_of, input_keys(inputs, whole))
    groups = group_rows(joined)
    if classes is None:
        split = split_rows(joined, eval_share, seed)
    else:
        order = np.random.default_rng([seed, 0x5911]).permutation(len(groups))
        wanted = num_wanted(len(joined), eval_share)
        split = _by_mark(groups.marked(joined, _hold_alike(joined, groups, order, classes, wanted)))
    if len(split.evaluation) == 0 and len(groups) > 1 and eval_share > 0:
        smallest = np.flatnonzero(groups.sizes == groups.sizes.min())
        chosen = np.random.default_rng([seed, 0x5911]).choice(smallest)
        split = _by_mark(joined == groups.names[chosen])
    return count_inputs(split, inputs)


def join_groups(one: Hashes, two: Hashes) -> Hashes:
    """Return the finest groups that keep rows together which agree in either of two values.

    >>> one, two = np.array([[1, 1, 2, 3], [5, 6, 6, 7]], np.uint64)
    >>> join_groups(one, two).tolist()
    [0, 0, 0, 3]
    """
    joined, count = number_rows(len(one)), len(one)
    sides = [(values, group_rows(values)) for values in (one, two)]
    is_changed = True
    while is_changed:
        is_changed = False
        for values, groups in sides:
            least = new_array(len(groups), np.int64)
            least[:] = count
            for part in blocks(count):
                np.minimum.at(least, groups.of(values[part]), joined[part])
            for part in blocks(count):
                smallest = least[groups.of(values[part])]
                is_changed = is_changed or bool((smallest != joined[part]).any())
                joined[part] = smallest
    return joined.view(np.uint64)


def count_inputs(split: Split, inputs: Hashes) -> Split:
    """Return the split with the number of inputs that are in both sets."""
    shown = take(inputs, split.evaluation)
    apart = without_values(distinct(shown)[0], take(inputs, split.train))
    num_shared = int((~is_among(shown, apart) & (shown != NO_CONTENT)).sum())
    return Split(split.train, split.evaluation, num_shared)


def without_values(ordered: Hashes, values: Hashes) -> Hashes:
    """Return an array of different ascending values without those that occur among others.

    >>> without_values(np.array([3, 5, 8]), np.array([8, 1, 3, 8])).tolist()
    [5]
    """
    found = np.zeros(len(ordered), bool)
    for part in blocks(len(values)) if len(ordered) else ():
        place = np.minimum(np.searchsorted(ordered, values[part]), len(ordered) - 1)
        found[place[ordered[place] == values[part]]] = True
    return ordered[~found]


def count_repeats(whole: Hashes) -> int:
    """Return how many rows repeat another one; blank rows do not count."""
    num_blank = int((whole == NO_CONTENT).sum())
    return len(whole) - count_distinct(whole) - max(0, num_blank - 1)


def find_contradictions(inputs: Hashes, whole: Hashes) -> Rows:
    """Places of the rows that have the input of another row, but are not equal as a whole.

    >>> inputs, whole = np.array([[7, 8, 7, 9, 8], [1, 2, 3, 4, 2]], np.uint64)
    >>> find_contradictions(inputs, whole)
    array([0, 2])
    """
    groups = group_rows(inputs)
    if len(groups) == len(inputs):
        return np.empty(0, np.int64)
    least, most = new_array(len(groups), np.uint64), new_array(len(groups), np.uint64)
    least[:] = np.iinfo(np.uint64).max
    for part in blocks(len(inputs)):
        place = groups.of(inputs[part])
        np.minimum.at(least, place, whole[part])
        np.maximum.at(most, place, whole[part])
    differs = (least != most) & (groups.names != NO_CONTENT)
    return places_of(groups.marked(inputs, differs))
