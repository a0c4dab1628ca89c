"""Batches made ahead of time by a thread, in the order they were asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def prefetch(items: Iterable[Item], make: Callable[[Item], Made], depth: int = 2) -> Iterator[Made]:
    """`make(item)` for each item, computed up to `depth` ahead; errors surface in their turn.

    >>> list(prefetch([1, 2, 3], lambda n: n * n))
    [1, 4, 9]
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="surefit-prefetch") as pool:
        waiting: deque[Future[Made]] = deque()
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
