"""The order of rows in an epoch: a random permutation of any size, computed place by place.

It is never stored: a Feistel network permutes the integers below a power of four; a result that is
not below the wanted size is permuted again until it is (cycle walking).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROUNDS = 8
BLOCK_BYTES = 1 << 16
"""What is read at once where the rows exceed memory."""
MOST_BLOCK_ROWS = 256

Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class KeyedPermutation:
    """A permutation of the integers below `size`, drawn by `key`.

    >>> places = KeyedPermutation(10, (0, 1))
    >>> sorted(places(np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> places.inverse(places(np.arange(3))).tolist()
    [0, 1, 2]
    """

    size: int
    key: tuple[int, ...]

    def __call__(self, places: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return what is at each of these places."""
        return self._walk(places, self._round_keys())

    def inverse(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """At which place each of these values is."""
        return self._walk(values, self._round_keys()[::-1])

    def _round_keys(self) -> Numbers:
        state = np.random.SeedSequence(self.key).generate_state(ROUNDS, np.uint64)
        return state.astype(np.uint64)

    def _walk(self, numbers: npt.ArrayLike, keys: Numbers) -> npt.NDArray[np.int64]:
        half = np.uint64(max(1, -(-(self.size - 1).bit_length() // 2)))
        found = _feistel(np.asarray(numbers, np.uint64), keys, half)
        while len(outside := np.flatnonzero(found >= self.size)):
            found[outside] = _feistel(found[outside], keys, half)
        return found.astype(np.int64)


def _feistel(numbers: Numbers, keys: Numbers, half: np.uint64) -> Numbers:
    """Permute the integers of twice `half` bits; with the keys reversed, the inverse."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (right << half) | left


def _mix(numbers: Numbers) -> Numbers:
    """Return the finalizer of SplitMix64: each bit of the result depends on all bits."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


@dataclass(frozen=True)
class RowOrder:
    """Which row is at which place of an epoch: computed, never stored.

    Blocks of consecutive rows are permuted, and then the rows of each window of many blocks. With
    blocks of one row this is a plain shuffle. With larger blocks the rows of a window lie in few
    pieces of the disk, and what rows of a block have in common is spread over a window. The first
    block begins at another row in each epoch.

    >>> order = RowOrder(10, 1, 10, seed=0, epoch=1)
    >>> sorted(order.rows(0, 10).tolist()), order.place(int(order.rows(3, 4)[0]))
    ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 3)
    """

    num_rows: int
    block_rows: int
    window_rows: int
    seed: int
    epoch: int

    def rows(self, first: int, end: int) -> npt.NDArray[np.int64]:
        """Return the rows at the places from `first` to `end`."""
        places = np.arange(first, end)
        if self.block_rows == 1:
            return self._blocks(places)
        for window in range(self._window(first), self._window(end - 1) + 1):
            begin, inside = self._in_window(window)
            part = places[max(begin - first, 0) : begin + inside.size - first]
            part[:] = begin + inside(part - begin)
        whole = places < self._blocks.size * self.block_rows  # the rows left over come last
        block, offset = np.divmod(places[whole], self.block_rows)
        places[whole] = self._blocks(block) * self.block_rows + offset
        return (places + self._begin) % self.num_rows

    def place(self, row: int) -> int:
        """Return the place of a row."""
        if self.block_rows == 1:
            return int(self._blocks.inverse([row])[0])
        block, offset = divmod((row - self._begin) % self.num_rows, self.block_rows)
        if block < self._blocks.size:
            block = int(self._blocks.inverse([block])[0])
        place = block * self.block_rows + offset
        begin, inside = self._in_window(self._window(place))
        return begin + int(inside.inverse([place - begin])[0])

    @property
    def _blocks(self) -> KeyedPermutation:
        return KeyedPermutation(self.num_rows // self.block_rows, (self.seed, self.epoch, 0xBA7C))

    @property
    def _begin(self) -> int:
        random = np.random.default_rng([self.seed, self.epoch, 0xBE61])
        return int(random.integers(self.num_rows))

    def _window(self, place: int) -> int:
        return ((place + 1) * self._num_windows - 1) // self.num_rows

    def _in_window(self, window: int) -> tuple[int, KeyedPermutation]:
        """Return the first place of a window, and the order of the places in it."""
        begin, end = (self.num_rows * each // self._num_windows for each in (window, window + 1))
        return begin, KeyedPermutation(end - begin, (self.seed, self.epoch, 0x2035, window))

    @property
    def _num_windows(self) -> int:
        return -(-self.num_rows // self.window_rows)


def block_rows(num_rows: int, num_bytes: int, memory_bytes: int) -> int:
    """Return rows of a block: one if all rows fit in memory, else as many as are worth a read.

    >>> block_rows(1_000_000, 10**9, 10**10), block_rows(1_000_000, 10**10, 10**9)
    (1, 8)
    """
    if num_bytes <= memory_bytes:
        return 1
    wanted = BLOCK_BYTES * num_rows // num_bytes
    return min(MOST_BLOCK_ROWS, 1 << max(wanted, 1).bit_length())
