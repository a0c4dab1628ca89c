"""Traces in the cache: the same model, batch and loss are traced once.

A trace is cached only if the key covers everything the trace depends on. That holds for models
made of layers of torch, transformers and peft, and not for a user's own code.
"""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from surefit import __version__
from surefit.data.cache import fingerprint, hash_bytes
from surefit.data.cache_entry import open_json
from surefit.encode.encode_key import code_key
from surefit.kernels.choose_head import as_choice
from surefit.memory.trace_step import Traced
from surefit.models.call import Call

if TYPE_CHECKING:
    from torch import nn

FORMAT = 6
"""Changes with what a trace holds and how it is made."""
LIBRARIES = ("torch.", "transformers.", "peft.", "bitsandbytes.")
"""Modules whose code is identified by the version of its package."""


def cached_trace(key: str | None, trace: Callable[[], Traced]) -> Traced:
    """The cached trace of a key, or else a new one; without a key nothing is cached."""
    if key is None:
        return trace()
    return Traced(**open_json("traces", key, lambda: asdict(trace())))


def trace_key(module: nn.Module, call: Call, loss: Any, batch: Any, *more: Any) -> str | None:
    """A key of everything a trace depends on; None if user code makes that unknowable."""
    config = getattr(module, "config", None)
    parts = list(module.modules())
    if config is None or not all(type(part).__module__.startswith(LIBRARIES) for part in parts):
        return None
    return fingerprint(
        __version__,
        [FORMAT, *platform.libc_ver()],  # malloc's memory depends on the C library
        [version(name.removesuffix(".")) for name in LIBRARIES if _is_installed(name)],
        str(module),
        [config.to_dict(), getattr(config, "_attn_implementation", None)],
        [getattr(part, "gradient_checkpointing", None) for part in parts],
        [(n, p.shape, str(p.dtype), p.requires_grad) for n, p in module.named_parameters()],
        [dict(call.arguments), repr(dict(call.fixed)), as_choice(call.head), repr(call.auxiliary)],
        [*_code(loss)],
        {name: _content(value) for name, value in batch.items()},
        [str(each) for each in more],
    )


def _is_installed(library: str) -> bool:
    return find_spec(library.removesuffix(".")) is not None


def _code(function: Any) -> Iterator[str]:
    """Keys of a function and of the functions in its closure."""
    yield code_key(function)
    closed_over: Mapping[str, Any] = inspect.getclosurevars(function).nonlocals
    for name in sorted(closed_over):
        if inspect.isfunction(closed_over[name]):
            yield from _code(closed_over[name])


def _content(value: Any) -> Any:
    """Integer values decide which branches a model takes; of floats only the shape counts."""
    if not hasattr(value, "dtype"):
        return repr(value)
    about = [list(value.shape), str(value.dtype)]
    return about if value.is_floating_point() else [*about, hash_bytes(value.numpy().tobytes())]
