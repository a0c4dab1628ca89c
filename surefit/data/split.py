"""Training and validation rows: a pure function of the rows' content, the share and the seed.

Rows with equal inputs stay in one set, whatever their targets. Some data has few inputs by nature,
such as one instruction for all rows; then only rows that are equal as a whole stay together.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.cache import fingerprint
from surefit.data.cache_entry import open_entry
from surefit.data.table import Table

Rows = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

NO_CONTENT = 0
"""The hash of every row whose values are all missing or blank."""
HASH_VERSION = 3
FILE = "hashes.npy"


@dataclass(frozen=True)
class Split:
    """Row numbers of both sets, ascending, and how many rows are duplicates."""

    train: Rows
    evaluation: Rows
    num_duplicates: int
    num_shared: int = 0
    """Validation rows whose input training rows have, too."""


def sample_rows(num_rows: int, size: int | None, seed: int) -> Rows:
    """Numbers of `size` rows drawn by the seed, ascending; all rows if there are no more.

    >>> len(sample_rows(100, 5, seed=0)), sample_rows(3, 5, seed=0).tolist()
    (5, [0, 1, 2])
    """
    if size is None or size >= num_rows:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng([seed, 0x5CA]).choice(num_rows, size, replace=False))


def hash_rows(
    table: Table, columns: Sequence[str], fold: bool = False, rows: Rows | None = None
) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of the given columns of each row; equal rows have equal hashes.

    With `fold`, so have rows whose texts differ only in case, spaces or punctuation. Rows without
    content get NO_CONTENT: they cannot be duplicates or leak.
    """
    if rows is not None and len(rows) < table.num_rows:
        return _hash_rows(table, columns, fold, rows)  # hashing a sample again is fast
    key = fingerprint("rows", HASH_VERSION, table.place_key, list(columns), fold)
    return cached_hashes(key, lambda: _hash_rows(table, columns, fold))


def cached_hashes(key: str, make: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """An array of hashes in the cache; if it is not there, `make` it."""
    return open_entry(
        "hashes",
        key,
        lambda folder: np.save(folder / FILE, make()),
        lambda folder: np.asarray(np.load(folder / FILE, allow_pickle=False, mmap_mode="r")),
    )


def _hash_rows(
    table: Table, columns: Sequence[str], fold: bool, rows: Rows | None = None
) -> npt.NDArray[np.uint64]:
    hashes = np.empty(table.num_rows if rows is None else len(rows), np.uint64)
    chosen = Table(table.arrow.select(list(columns)), table.sources, table.key)
    for place, row in enumerate(chosen.rows(rows)):  # type: ignore[arg-type]
        if is_blank(list(row.values())):
            hashes[place] = NO_CONTENT
            continue
        digest = hashlib.blake2b(digest_size=8)
        for value in row.values():
            digest.update(value_bytes(fold_text(value) if fold else value))
            digest.update(b"\0")
        hashes[place] = int.from_bytes(digest.digest(), "little")
    return hashes


_MARKS = re.compile(r"[.,;:!?…\"'“”‘’«»()]+(?=\s|\Z)|(?:(?<=\s)|\A)[.,;:!?…\"'“”‘’«»()]+(?!\d)")


def is_blank(values: Any) -> bool:
    """Whether all values are missing or blank."""
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
        words = " ".join(_MARKS.sub(" ", value.casefold()).split())
        return words or value.casefold()  # texts of punctuation alone are not all equal
    if isinstance(value, Mapping):  # a key that only other rows have is None
        return {key: fold_text(value[key]) for key in sorted(value) if value[key] is not None}
    return [fold_text(inner) for inner in value] if isinstance(value, list | tuple) else value


def value_bytes(value: Any) -> bytes:
    """Bytes that differ where the values do."""
    if isinstance(value, np.ndarray):
        return repr(value.shape).encode() + np.ascontiguousarray(value).tobytes()
    nested = isinstance(value, list | tuple) and any(
        isinstance(inner, list | tuple | bytes | np.ndarray) for inner in value
    )
    if nested:
        return b"[" + b"\0".join(value_bytes(inner) for inner in value) + b"]"
    return value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")


def split_rows(hashes: Hashes, eval_share: float, seed: int, classes: Rows | None = None) -> Split:
    """Choose `eval_share` of the rows for validation; rows with equal hashes stay in one set.

    With the `classes` of the rows as numbers, each class gets its share, as far as groups allow it.

    >>> split = split_rows(np.array([1, 2, 3, 4, 4, 5, 6, 7, 8, 9], np.uint64), 0.2, seed=0)
    >>> len(split.train), len(split.evaluation)
    (8, 2)
    """
    num_rows = len(hashes)
    group_of, sizes = _group(hashes)
    order = np.random.default_rng([seed, 0x5911]).permutation(len(sizes))
    held = np.zeros(len(sizes), bool)
    room = min(_num_wanted(num_rows, eval_share), num_rows - 1) if len(sizes) > 1 else 0
    if classes is not None:
        taken = _hold_by_class(group_of, order, classes, room, held)
        room = 0 if 2 * taken >= room else room - taken
    _hold_in_order(order, sizes, room, held)
    is_held = held[group_of]
    num_blank = max(0, int((hashes == NO_CONTENT).sum()) - 1)
    num_duplicates = num_rows - len(sizes) - num_blank
    return Split(np.flatnonzero(~is_held), np.flatnonzero(is_held), num_duplicates)


def _group(hashes: Hashes) -> tuple[npt.NDArray[Any], Rows]:
    """The group of equal hashes that each row is in, and the sizes of groups, by ascending hash.

    As `np.unique` has them, in half of the memory.

    >>> [found.tolist() for found in _group(np.array([7, 5, 7], np.uint64))]
    [[1, 0, 1], [1, 2]]
    """
    order = np.argsort(hashes, kind="stable")
    in_order = hashes[order]
    begins = np.append(True, in_order[1:] != in_order[:-1])[: len(hashes)]
    del in_order
    kind: Any = np.int32 if len(hashes) < 2**31 else np.int64
    group_of: npt.NDArray[Any] = np.empty(len(hashes), kind)
    group_of[order] = np.cumsum(begins, dtype=kind) - kind(1)
    return group_of, np.diff(np.append(np.flatnonzero(begins), len(hashes)))


def _hold_in_order(order: Rows, sizes: Rows, room: int, held: npt.NDArray[np.bool_]) -> None:
    """Mark groups in `held`, in order, each of which has no more rows than there is room for.

    >>> held = np.zeros(4, bool)
    >>> _hold_in_order(np.array([3, 0, 1, 2]), np.array([2, 1, 1, 3]), 5, held)
    >>> held.tolist()
    [True, False, False, True]
    """
    left = order[~held[order]]
    while len(left := left[sizes[left] <= room]):
        taken = np.cumsum(sizes[left])
        count = int(np.searchsorted(taken, room, side="right"))
        held[left[:count]] = True
        room -= int(taken[count - 1])
        left = left[count:]


def _hold_by_class(
    group_of: Rows, order: Rows, classes: Rows, wanted: int, held: npt.NDArray[np.bool_]
) -> int:
    """Mark groups in `held` as long as no class gets more than its share; count their rows."""
    rooms = class_rooms(np.bincount(classes), wanted).tolist()
    if len(order) == len(group_of):  # no two rows stay together
        return _hold_rows_by_class(group_of, order, classes, rooms, held)
    by_group = np.argsort(group_of, kind="stable")
    ends = np.cumsum(np.bincount(group_of)).tolist()
    class_of, taken, closed = classes[by_group].tolist(), 0, rooms.count(0)
    for group in order.tolist():
        if closed == len(rooms):
            break
        members = class_of[ends[group - 1] if group else 0 : ends[group]]
        counts = Counter(members) if len(members) > 1 else {members[0]: 1}
        if all(rooms[name] >= count for name, count in counts.items()):
            held[group] = True
            taken += len(members)
            for name, count in counts.items():
                rooms[name] -= count
                closed += rooms[name] == 0
    return taken


def _hold_rows_by_class(
    group_of: Rows,
    order: Rows,
    classes: Rows,
    rooms: Sequence[int],
    held: npt.NDArray[np.bool_],
) -> int:
    """The same where each group is a row: the first rows of each class in order."""
    class_of = np.empty_like(classes)
    class_of[group_of] = classes
    in_order = class_of[order]
    counts = np.bincount(in_order, minlength=len(rooms))
    nth_of_class = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = np.argsort(in_order, kind="stable")[nth_of_class < np.repeat(rooms, counts)]
    held[order[chosen]] = True
    return len(chosen)


def class_rooms(sizes: Rows, wanted: int) -> Rows:
    """How many validation rows each class gets; at least one row of each stays for training.

    >>> class_rooms(np.array([90, 9, 1]), 10).tolist()
    [9, 1, 0]
    """
    exact = sizes * wanted / max(1, int(sizes.sum()))
    rooms = np.floor(exact).astype(np.int64)
    missing = wanted - int(rooms.sum())
    rooms[np.argsort(rooms - exact, kind="stable")[:missing]] += 1
    return np.minimum(rooms, np.maximum(sizes - 1, 0))


def _num_wanted(num_rows: int, eval_share: float) -> int:
    """How many validation rows the share asks for: at least one, if there are two rows."""
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
    num_rows, wanted = len(inputs), _num_wanted(len(inputs), eval_share)
    groups = np.where(inputs == NO_CONTENT, whole, inputs)
    sizes = _group(groups)[1]
    large = sizes > wanted
    if wanted == 0 or 2 * int(sizes[large].sum()) <= num_rows:
        del sizes, large
        split = split_rows(groups, eval_share, seed, classes)
    elif len(sizes) > 1 and int(sizes.max()) <= max(2 * wanted, num_rows // 4):
        smallest = np.flatnonzero(sizes == sizes[large].min())
        chosen = np.random.default_rng([seed, 0x5911]).choice(smallest)
        is_held = _group(groups)[0] == chosen
        split = Split(np.flatnonzero(~is_held), np.flatnonzero(is_held), 0)
    else:
        split = split_rows(
            np.where(large[_group(groups)[0]], whole, groups), eval_share, seed, classes
        )
    return count_inputs(split, inputs, whole)


def split_by_group(
    group_of: Hashes, inputs: Hashes, whole: Hashes, eval_share: float, seed: int
) -> Split:
    """Split off whole groups, and rows with equal inputs with them.

    The share is met as nearly as the sizes of the groups allow; the smallest group is taken where
    each is larger than the share.

    >>> groups, rows = np.array([7, 7, 8, 8, 9, 9], np.uint64), np.arange(1, 7, dtype=np.uint64)
    >>> groups[split_by_group(groups, rows, rows, 0.1, seed=0).evaluation].tolist() in (
    ...     [[7, 7], [8, 8], [9, 9]]
    ... )
    True
    """
    joined = join_groups(group_of, np.where(inputs == NO_CONTENT, whole, inputs))
    split = split_rows(joined, eval_share, seed)
    _, place, sizes = np.unique(joined, return_inverse=True, return_counts=True)
    if len(split.evaluation) == 0 and len(sizes) > 1 and eval_share > 0:
        smallest = np.flatnonzero(sizes == sizes.min())
        is_held = place == np.random.default_rng([seed, 0x5911]).choice(smallest)
        split = Split(np.flatnonzero(~is_held), np.flatnonzero(is_held), 0)
    return count_inputs(split, inputs, whole)


def join_groups(one: Hashes, two: Hashes) -> Hashes:
    """The finest groups that keep rows together which agree in either of two values.

    >>> one, two = np.array([[1, 1, 2, 3], [5, 6, 6, 7]], np.uint64)
    >>> join_groups(one, two).tolist()
    [0, 0, 0, 3]
    """
    joined = np.arange(len(one), dtype=np.int64)
    places = [np.unique(values, return_inverse=True)[1] for values in (one, two)]
    while True:
        before = joined
        for place in places:
            least = np.full(int(place.max(initial=-1)) + 1, len(one), np.int64)
            np.minimum.at(least, place, joined)
            joined = least[place]
        if (joined == before).all():
            return joined.astype(np.uint64)


def count_inputs(split: Split, inputs: Hashes, whole: Hashes) -> Split:
    """The split with the number of repeated rows, and of inputs that are in both sets."""
    shared = np.isin(inputs[split.evaluation], inputs[split.train])
    num_shared = int((shared & (inputs[split.evaluation] != NO_CONTENT)).sum())
    return Split(split.train, split.evaluation, count_repeats(whole), num_shared)


def count_repeats(whole: Hashes) -> int:
    """How many rows repeat another one; blank rows do not count."""
    num_blank = max(0, int((whole == NO_CONTENT).sum()) - 1)
    return len(whole) - len(np.unique(whole)) - num_blank


def find_contradictions(inputs: Hashes, whole: Hashes) -> Rows:
    """Places of the rows that have the input of another row, but are not equal as a whole.

    Rows of one input come one after another.

    >>> inputs, whole = np.array([[7, 8, 7, 9, 8], [1, 2, 3, 4, 2]], np.uint64)
    >>> find_contradictions(inputs, whole)
    array([0, 2])
    """
    order = np.lexsort((whole, inputs))
    same = inputs[order][1:] == inputs[order][:-1]
    differs = same & (whole[order][1:] != whole[order][:-1])
    found = np.unique(inputs[order][1:][differs])
    chosen: Rows = order[np.isin(inputs[order], found) & (inputs[order] != NO_CONTENT)]
    return chosen
