"""An exception to its text, and to the shapes of the tensors in its frames (never their values)."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from surefit.explainer.log_reading import TRACEBACK

CHAINED = "The above exception was the direct cause of the following exception:"
# Attributes as Python stores them, whatever a class overrides
_CAUSE: Any = BaseException.__dict__["__cause__"]
_CONTEXT: Any = BaseException.__dict__["__context__"]
_SUPPRESSED: Any = BaseException.__dict__["__suppress_context__"]
_TRACEBACK: Any = BaseException.__dict__["__traceback__"]
_CLASS_NAME: Any = type.__dict__["__name__"]

MAX_SHAPES = 12
MAX_FRAMES = 6
MAX_PART_CHARS = 20_000
"""Characters of one frame or one message of a traceback; of a longer one the beginning is read."""

BATCH_CLASSES = ("BatchEncoding", "BatchFeature")
"""Mappings besides dict that are read. Reading another mapping may load data."""


def format_error(error: BaseException) -> str:
    """The traceback of an exception and of those that caused it, as Python prints it."""
    try:
        parts = traceback.format_exception(error)
    except Exception:  # the class overrides what the traceback module needs
        parts = [f"{_last_line(link)}\n{CHAINED}\n\n" for link in reversed(chain_of(error))]
    header = "" if any(TRACEBACK in part for part in parts) else f"{TRACEBACK}:\n"
    return header + "".join(part if len(part) <= MAX_PART_CHARS else _cut(part) for part in parts)


def _last_line(error: BaseException) -> str:
    name = _CLASS_NAME.__get__(type(error))
    try:
        return f"{name}: {error}\n"
    except Exception:
        return f"{name}\n"


def _cut(part: str) -> str:
    return part[:MAX_PART_CHARS] + "\n"


def chain_of(error: BaseException) -> list[BaseException]:
    """An exception and those that caused it, the first raised last."""
    chain = [error]
    seen = {id(error)}
    while True:
        cause, context = _CAUSE.__get__(error), _CONTEXT.__get__(error)
        before = context if cause is None and not _SUPPRESSED.__get__(error) else cause
        if before is None or id(before) in seen:
            return chain
        seen.add(id(before))
        chain.append(before)
        error = before


def tensor_shapes(error: BaseException) -> dict[str, tuple[int, ...]]:
    """Names and shapes of tensors in the innermost frames, the innermost first."""
    shapes: dict[str, tuple[int, ...]] = {}
    for frame in _innermost_frames(chain_of(error)[-1]):
        for name, value in _named_items(frame.f_locals):
            for label, shape in _named_shapes(name, value):
                shapes.setdefault(label, shape)
    return dict(list(shapes.items())[:MAX_SHAPES])


def _innermost_frames(error: BaseException) -> list[FrameType]:
    frames = []
    trace: TracebackType | None = _TRACEBACK.__get__(error)
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames[: -MAX_FRAMES - 1 : -1]


def _named_shapes(name: str, value: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The shape of a variable that is a tensor, or those of the tensors of a batch."""
    is_batch = type(value) is dict or _CLASS_NAME.__get__(type(value)) in BATCH_CLASSES
    members = _named_items(value)[:MAX_SHAPES] if is_batch else []
    for label, member in [(name, value), *members]:
        shape = _shape(member)
        if shape:
            yield label, shape


def _named_items(mapping: Any) -> list[tuple[str, Any]]:
    """The items of a mapping whose keys are plain strings; none if it cannot be read."""
    try:
        return [(key, value) for key, value in mapping.items() if type(key) is str]
    except Exception:  # a class of one's own, or another thread that changes the mapping
        return []


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor or array; None for anything else and for tensors that hide theirs.

    A lazy parameter and a nested tensor raise when they are asked for a shape.
    """
    if not issubclass(type(value), _tensor_classes()):
        return None
    try:
        return tuple(int(size) for size in value.shape)
    except Exception:
        return None


def _tensor_classes() -> tuple[type, ...]:
    """The classes of tensors and arrays, of the libraries that are loaded already."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    found = (getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None))
    return tuple(kind for kind in found if isinstance(kind, type))
