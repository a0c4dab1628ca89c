"""Shapes of the tensors in the frames of a traceback: shapes only, never values."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

MOST_SHAPES = 12
DEEPEST_FRAMES = 6
BATCHES = ("BatchEncoding", "BatchFeature")
"""Mappings besides plain dicts that are looked into; others may load things when they are read."""


def shapes_of(error: BaseException) -> dict[str, tuple[int, ...]]:
    """Names and shapes of tensors in the innermost frames, the innermost first."""
    frames = []
    trace: TracebackType | None = root_of(error).__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    shapes: dict[str, tuple[int, ...]] = {}
    for frame in frames[: -DEEPEST_FRAMES - 1 : -1]:
        for name, value in list(frame.f_locals.items()):
            for label, tensor in _tensors(name, value):
                shapes.setdefault(label, tuple(int(size) for size in tensor.shape))
    return dict(list(shapes.items())[:MOST_SHAPES])


def root_of(error: BaseException) -> BaseException:
    """The exception of a chain that was raised first."""
    seen = {id(error)}
    while True:
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is None or id(before) in seen:
            return error
        seen.add(id(before))
        error = before


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if _is_tensor(value):
        yield name, value
    elif type(value) is dict or type(value).__name__ in BATCHES:
        for key, inner in list(value.items())[:MOST_SHAPES]:
            if isinstance(key, str) and _is_tensor(inner):
                yield key, inner


def _is_tensor(value: Any) -> bool:
    kind = type(value)
    known = kind.__module__.split(".")[0] in ("torch", "numpy")
    return known and hasattr(kind, "shape") and hasattr(kind, "dtype") and value.ndim > 0
