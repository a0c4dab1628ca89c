"""An exception to its text, and to the shapes of the tensors in its frames (never their values)."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from surefit.explainer.log_reading import TRACEBACK

MAX_SHAPES = 12
MAX_FRAMES = 6
MAX_PART_CHARS = 20_000
"""Characters of one frame or one message of a traceback; of a longer one the beginning is read."""

BATCH_CLASSES = ("BatchEncoding", "BatchFeature")
"""Mappings besides dict that are read. Reading another mapping may load data."""


def format_error(error: BaseException) -> str:
    """Return the traceback of an exception and of those that caused it, as Python prints it."""
    try:
        parts = traceback.format_exception(error)
    except Exception:  # the class overrides what the traceback module needs
        parts = [object.__repr__(error)]
    header = "" if any(TRACEBACK in part for part in parts) else f"{TRACEBACK}:\n"
    return header + "".join(
        part if len(part) <= MAX_PART_CHARS else part[:MAX_PART_CHARS] + "\n" for part in parts
    )


def tensor_shapes(error: BaseException) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of tensors in the innermost frames, the innermost first."""
    shapes: dict[str, tuple[int, ...]] = {}
    with suppress(Exception):  # the class overrides what is read of it
        frames = [frame for frame, _ in traceback.walk_tb(_first_of(error).__traceback__)]
        for frame in frames[: -MAX_FRAMES - 1 : -1]:
            for name, value in _named_items(frame.f_locals):
                for label, shape in _named_shapes(name, value):
                    shapes.setdefault(label, shape)
    return dict(list(shapes.items())[:MAX_SHAPES])


def _first_of(error: BaseException) -> BaseException:
    """Return the exception that the others of a chain followed from."""
    seen = {id(error)}
    while True:
        before = error.__cause__
        if before is None and not error.__suppress_context__:
            before = error.__context__
        if before is None or id(before) in seen:
            return error
        seen.add(id(before))
        error = before


def _named_shapes(name: str, value: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the shape of a variable that is a tensor, or those of the tensors of a batch."""
    is_batch = type(value) is dict or type(value).__name__ in BATCH_CLASSES
    members = _named_items(value)[:MAX_SHAPES] if is_batch else []
    for label, member in [(name, value), *members]:
        shape = _shape(member)
        if shape:
            yield label, shape


def _named_items(mapping: Any) -> list[tuple[str, Any]]:
    """Return the items of a mapping whose keys are plain strings; none if it cannot be read."""
    try:
        return [(key, value) for key, value in mapping.items() if type(key) is str]
    except Exception:  # a class of one's own, or another thread that changes the mapping
        return []


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor or array; None for anything else and for tensors that hide
    theirs.

    A lazy parameter and a nested tensor raise when they are asked for a shape. Only the libraries
    that are loaded already are looked at.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    found = (getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None))
    if not issubclass(type(value), tuple(kind for kind in found if isinstance(kind, type))):
        return None
    try:
        return tuple(int(size) for size in value.shape)
    except Exception:
        return None
