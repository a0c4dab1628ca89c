"""A random permutation of any size that is computed place by place and never stored.

A Feistel network permutes the integers below a power of four; a result that is not below the
wanted size is permuted again until it is (cycle walking).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROUNDS = 8

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
        """What is at each of these places."""
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
    """The finalizer of SplitMix64: each bit of the result depends on all bits."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
