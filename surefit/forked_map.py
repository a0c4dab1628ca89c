"""A long list of work, shared among forked processes; the results come in order.

For pure functions of rows, such as encoding and hashing, which Python threads cannot share. A child
has all that its parent has, so neither the function nor the rows are sent to it, only the results
come back. Whatever a child cannot do is done here instead: the result is the same, and errors are
raised as they would be without children.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

FEWEST_ROWS = 10_000
"""Fewer rows are not worth the processes."""
MOST_PROCESSES = 8
STALL_SECONDS = 120.0
"""A child that returns nothing for so long is given up, for example if it waits for a lock that
another thread held when it was forked."""
_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of prctl."""

_make: Callable[[Any], Any] | None = None
_asked: ContextVar[int | None] = ContextVar("children", default=None)


@contextmanager
def use_children(count: int | None) -> Iterator[None]:
    """While the block runs, so many processes share the work; None is for one per core."""
    before = _asked.set(count)
    try:
        yield
    finally:
        _asked.reset(before)


def num_children(num_rows: int) -> int:
    """How many processes should share work on so many rows; 0 if this one should do it alone."""
    asked = _asked.get()
    if asked is not None and sys.platform == "linux":
        return 0 if asked == 1 else asked
    can_fork = sys.platform == "linux" and not multiprocessing.current_process().daemon
    cores = len(os.sched_getaffinity(0)) if can_fork else 1
    return min(cores, MOST_PROCESSES) if num_rows >= FEWEST_ROWS and cores > 1 else 0


@contextmanager
def forked_map(
    make: Callable[[Item], Made], items: Iterable[Item], children: int
) -> Iterator[Iterator[Made]]:
    """`make(item)` for each item, in order, by child processes; without any, by this one.

    >>> with forked_map(str, [1, 2], children=2) as texts:
    ...     list(texts)
    ['1', '2']
    """
    if not children:
        yield map(make, items)
        return
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(children, context, initializer=_begin_child, initargs=(make,))
    try:
        yield _results(pool, make, items, 2 * children)
    finally:
        _end(pool)


def _results(
    pool: ProcessPoolExecutor, make: Callable[[Item], Made], items: Iterable[Item], ahead: int
) -> Iterator[Made]:
    waiting: deque[tuple[Item, Future[tuple[Made] | None] | None]] = deque()
    works = True
    for item in items:
        future: Future[tuple[Made] | None] | None = None
        if works:
            try:
                future = pool.submit(_call, item)
            except (BrokenProcessPool, OSError):  # a child was killed, or none can be made
                works = False
        waiting.append((item, future))
        if len(waiting) > ahead:
            works = works and _has_come(waiting[0][1])
            yield _result(make, *waiting.popleft(), works)
    while waiting:
        works = works and _has_come(waiting[0][1])
        yield _result(make, *waiting.popleft(), works)


def _has_come(future: Future[Any] | None) -> bool:
    """Whether a child has made this in time, or said that it cannot."""
    if future is None:
        return False
    try:
        future.exception(timeout=STALL_SECONDS)
    except TimeoutError:
        return False
    return not isinstance(future.exception(), BrokenProcessPool)


def _result(
    make: Callable[[Item], Made],
    item: Item,
    future: Future[tuple[Made] | None] | None,
    works: bool,
) -> Made:
    if works and future is not None and future.exception() is None:
        made = future.result()
        if made is not None:
            return made[0]
    return make(item)


def _begin_child(make: Callable[[Any], Any]) -> None:
    """Keep the function to call; leave Ctrl-C to the parent, and end when it ends."""
    global _make
    _make = make
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    import ctypes

    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _call(item: Any) -> tuple[Any] | None:
    assert _make is not None
    try:
        return (_make(item),)
    except Exception:  # the parent makes it again, and raises it where it belongs
        return None


def _end(pool: ProcessPoolExecutor) -> None:
    """End the children, whatever they are doing: nothing of theirs must be saved."""
    children = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for child in children:
        child.kill()
