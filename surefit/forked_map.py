"""A long list of work, shared among forked processes; the results come in order.

For pure functions of rows, such as encoding, hashing and making batches, which Python threads
cannot share. A child has all that its parent has, so neither the function nor the rows are sent to
it, only the results come back. Whatever a child cannot do is done here instead: the result is the
same, and errors are raised as they would be without children.
"""

from __future__ import annotations

import gc
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
from itertools import islice
from typing import Any, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

FEWEST_ROWS = 10_000
"""Fewer rows are not worth the processes."""
MOST_PROCESSES = 8
CHILD_BYTES = 20_000_000
"""What a child has of its own besides its work: pages of its parent that it writes to, its heap."""
MEMORY_SHARE = 0.5
"""Share of the memory that is still free within the limit that all children may use."""
STALL_SECONDS = 120.0
"""A child that returns nothing for so long is given up, for example if it waits for a lock that
another thread held when it was forked."""
_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of prctl."""

_make: Callable[[Any], Any] | None = None
_asked: ContextVar[int | None] = ContextVar("children", default=None)
FreeBytes = Callable[[], int]
"""Return freed memory to the system, and return how much is free within the limit."""
_free_bytes: ContextVar[FreeBytes | None] = ContextVar("free_bytes", default=None)


@contextmanager
def use_children(count: int | None) -> Iterator[None]:
    """While the block runs, so many processes share the work; None is for one per core."""
    before = _asked.set(count)
    try:
        yield
    finally:
        _asked.reset(before)


@contextmanager
def limit_children(free_bytes: FreeBytes) -> Iterator[None]:
    """While the block runs, this process and its children stay within the memory that is free."""
    before = _free_bytes.set(free_bytes)
    try:
        yield
    finally:
        _free_bytes.reset(before)


def num_children(num_rows: int, work_bytes: int) -> int:
    """Return how many processes should share work on so many rows; 0 if this one should do it
    alone.

    `work_bytes` is the memory that a child's work takes, with its results that wait here.
    """
    can_fork = sys.platform == "linux" and not multiprocessing.current_process().daemon
    asked = _asked.get()
    if asked is None:
        wanted = min(len(os.sched_getaffinity(0)), MOST_PROCESSES) if can_fork else 1
        wanted = wanted if num_rows >= FEWEST_ROWS else 1
    else:
        wanted = asked if sys.platform == "linux" else 1
    free_bytes = _free_bytes.get()
    if wanted < 2:
        return 0
    return wanted if free_bytes is None else num_that_fit(wanted, free_bytes(), work_bytes)


def num_that_fit(wanted: int, free_bytes: int, work_bytes: int) -> int:
    """Return how many children fit into their share of the free memory; a single one is not worth
    it.

    >>> num_that_fit(8, 800_000_000, work_bytes=40_000_000)
    6
    """
    fit = min(wanted, int(MEMORY_SHARE * free_bytes) // (CHILD_BYTES + work_bytes))
    return fit if fit > 1 else 0


@contextmanager
def forked_map(
    make: Callable[[Item], Made],
    items: Iterable[Item],
    children: int,
    on_lost: Callable[[], None] = lambda: None,
) -> Iterator[Iterator[Made]]:
    """`make(item)` for each item, in order, by child processes; without any, by this one.

    `on_lost` is called once if a child ends or stalls; the rest is then made by this process.

    >>> with forked_map(str, [1, 2], children=2) as texts:
    ...     list(texts)
    ['1', '2']
    """
    if not children or sys.platform != "linux":
        yield map(make, items)
        return
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(children, context, initializer=_begin_child, initargs=(make,))
    try:
        yield _results(pool, make, items, 2 * children, on_lost)
    finally:
        _end(pool)


def _results(
    pool: ProcessPoolExecutor,
    make: Callable[[Item], Made],
    items: Iterable[Item],
    ahead: int,
    on_lost: Callable[[], None],
) -> Iterator[Made]:
    waiting: deque[tuple[Item, Future[tuple[Made] | None] | None]] = deque()
    works, left = True, iter(items)
    while True:
        for item in islice(left, ahead - len(waiting)):
            future: Future[tuple[Made] | None] | None = None
            try:
                future = pool.submit(_call, item) if works else None
            except (BrokenProcessPool, OSError):  # a child was killed, or none can be made
                works = False
                on_lost()
            waiting.append((item, future))
        if not waiting:
            return
        item, future = waiting.popleft()
        made = None
        try:
            # a result that came before a child was killed is there
            made = future.result(STALL_SECONDS * works) if future is not None else None
        except (BrokenProcessPool, TimeoutError):
            if works:
                works = False
                on_lost()
        except Exception:  # a result that cannot be sent
            pass
        yield make(item) if made is None else made[0]


def _begin_child(make: Callable[[Any], Any]) -> None:
    """Keep the function to call; leave Ctrl-C to the parent, and end when it ends."""
    global _make
    _make = make
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # those of the parent do not survive the fork
    gc.freeze()  # to collect the objects of the parent would copy the pages they are in
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
