"""Loads rows of a store as batches of tensors, prefetched by a thread or by worker processes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from surefit.batches.collate import PADDED, Layout, arrange
from surefit.batches.field import NUM_ROWS, NUM_TARGETS, Field
from surefit.errors import UsageError
from surefit.forked_map import forked_map

if TYPE_CHECKING:
    import torch

    from surefit.inputs.augment.array_augment import EpochRows
    from surefit.inputs.store import Store

Item = TypeVar("Item")
Made = TypeVar("Made")
Prepare = Callable[[Mapping[str, Any], int, int, int], Mapping[str, Any]]
"""(encoded row, epoch, row number in the data, number of its augmented copy) → row to batch."""
PrepareInEpoch = Callable[[Mapping[str, Any], int, int], Mapping[str, Any]]
"""The same, in one epoch."""
THREAD_SECONDS = 2e-4
"""Approximate cost of passing a batch between threads, including the GIL."""
ALIGNMENT_BYTES = 64
"""Where torch's CPU allocator begins every tensor."""
SLOW_BATCHES = 3
"""Prefetching by a thread starts after so many consecutive batches that take longer."""


def prefetch(items: Iterable[Item], make: Callable[[Item], Made], depth: int = 2) -> Iterator[Made]:
    """`make(item)` for each item, in order, prefetched by a thread up to `depth` ahead.

    As long as `make` is faster than passing its result between threads, no thread is used.

    >>> list(prefetch([1, 2, 3], lambda n: n * n))
    [1, 4, 9]
    """
    left, slow = iter(items), 0
    for item in left:
        began = time.perf_counter()
        made = make(item)
        slow = slow + 1 if time.perf_counter() - began > THREAD_SECONDS else 0
        yield made
        if slow == SLOW_BATCHES:
            break
    yield from by_thread(left, make, depth)


def by_thread(
    items: Iterable[Item], make: Callable[[Item], Made], depth: int = 2
) -> Iterator[Made]:
    """`make(item)` by a thread, up to `depth` ahead; errors are raised in order.

    An iterator that is abandoned does not wait for its thread: it may be deleted by the garbage
    collector in the midst of `Thread.start`, whose lock such a wait needs.
    """
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="surefit-prefetch")
    waiting: deque[Future[Made]] = deque()
    for item in items:
        waiting.append(pool.submit(make, item))
        if len(waiting) > depth:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
    pool.shutdown()


def from_workers(
    items: Iterable[Item],
    make: Callable[[Item], Made],
    workers: int,
    device: Any = "cpu",
    notice: Callable[[str], None] = lambda text: None,
) -> Iterator[Made]:
    """`make(item)` for each item, in order, by forked worker processes, moved to the device.

    Where a worker is killed, the rest is made here, which `notice` is told. A thread (`prefetch`)
    is better unless making a batch takes longer than training on it.
    """
    lost = partial(
        notice,
        "A worker process that makes batches has ended. The same batches are now made without "
        "workers. If the system ended it for lack of memory, use fewer workers.",
    )
    with forked_map(make, items, workers, lost) as batches:
        for batch in batches:
            yield _move(batch, device)


def load_batch(
    store: Store | EpochRows,
    rows: Any,
    fields: Mapping[str, Field],
    collate_fn: Callable[..., Any] | None = None,
    device: Any = "cpu",
    prepare: PrepareInEpoch | None = None,
    layout: Layout = PADDED,
) -> dict[str, Any]:
    """Return rows of a store as one batch of tensors on the device.

    It includes `NUM_TARGETS`, unless a custom `collate_fn` makes the batch.
    """
    counted = {NUM_TARGETS: int(store.num_targets[rows].sum())}
    if collate_fn is not None:  # which may change the targets
        counted = {NUM_ROWS: len(rows)}
    if prepare is None and collate_fn is None:
        return counted | _to_tensors(arrange(store.columns(rows), fields, layout), device)
    encoded: list[Mapping[str, Any]] = [*store.rows(rows)]
    if prepare is not None:
        numbers = [(int(store.source_row[row]), int(store.copy[row])) for row in map(int, rows)]
        encoded = [prepare(row, *n) for row, n in zip(encoded, numbers, strict=True)]
    return counted | to_batch(encoded, fields, collate_fn, device, layout)


def to_batch(
    rows: Sequence[Mapping[str, Any]],
    fields: Mapping[str, Field],
    collate_fn: Callable[..., Any] | None = None,
    device: Any = "cpu",
    layout: Layout = PADDED,
) -> dict[str, Any]:
    """Encoded rows as one batch of tensors, by our collator or a custom `collate_fn`."""
    import torch

    if collate_fn is None:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return _to_tensors(arrange(columns, fields, layout), device)
    tensors = [{n: torch.from_numpy(v.copy()) for n, v in row.items()} for row in rows]
    batch = collate_fn(tensors)
    if isinstance(batch, tuple | list) and batch:
        batch = {str(place): value for place, value in enumerate(batch)}
    if not isinstance(batch, Mapping):
        raise UsageError(
            f"collate_fn returned a {type(batch).__name__}; expected a dict or a tuple of tensors.",
            "Return {'input_ids': …, 'labels': …}.",
        )
    return _on_device(batch, device)  # type: ignore[no-any-return]


def _on_device(value: Any, device: Any) -> Any:
    """Return what a user's collate_fn made with its tensors on the device."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _on_device(part, device) for name, part in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_on_device(part, device) for part in value)
    return value


def _to_tensors(arrays: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """Arrays as tensors on the device, copied asynchronously; other values stay unchanged."""
    import torch

    batch: dict[str, Any] = {}
    for name, array in arrays.items():
        batch[name] = _aligned(torch.from_numpy(array)) if isinstance(array, np.ndarray) else array
    return _move(batch, device)  # type: ignore[no-any-return]


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers to compute with, where torch would put them; NumPy aligns to 16 bytes only.

    The last bit of a matrix product depends on the alignment of its operands (MKL promises equal
    results for equal alignment only), so that a resumed run could differ from the uninterrupted.
    """
    aligned = not tensor.is_floating_point() or tensor.data_ptr() % ALIGNMENT_BYTES == 0
    return tensor if aligned else tensor.clone()


def _move(batch: Any, device: Any) -> Any:
    import torch

    kind = torch.device(device).type
    if kind == "cpu":
        return batch
    pins = kind == "cuda"  # memory that CUDA copies from while the host goes on
    return {
        name: (value.pin_memory() if pins else value).to(device, non_blocking=pins)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in batch.items()
    }
