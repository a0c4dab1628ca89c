"""The cache key of encoded rows."""

from __future__ import annotations

import inspect
import sys
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit import __version__
from surefit.data.cache import fingerprint, hash_bytes
from surefit.data.table import Table
from surefit.encode.row_encoder import RowEncoder
from surefit.encode.text.batch_tokenizing import plain_backend

if TYPE_CHECKING:
    from surefit.encode.augment.augmented_copies import AugmentedCopies


FORMAT = 3
"""Changes with what a Store holds and notes about its rows."""


def encode_key(
    table: Table,
    rows: npt.NDArray[np.int64],
    encode: RowEncoder,
    copies: AugmentedCopies | None = None,
) -> str:
    """A key that changes with everything that the encoded rows depend on."""
    encoder = encode.encoder
    code = (encode.encode, encode.count_targets, *(copies.code() if copies else ()))
    return fingerprint(
        __version__,
        FORMAT,
        table.key,
        hash_bytes(rows.tobytes()),
        [code_key(function) for function in code],
        encoder.state(),
        tokenizer_key(encoder.tokenizer),
        {name: repr(spec) for name, spec in encode.fields.items()},
        {"copies": copies.state() if copies else None},
    )


def code_key(function: Callable[..., Any]) -> str:
    """A key that changes with the code that encodes rows, so that no stale cache is read.

    Simple values that a function closes over count as its code. Without source, every key is new.
    """
    try:
        source = inspect.getsource(sys.modules.get(function.__module__) or function)
        closed_over = inspect.getclosurevars(function).nonlocals
        plain = {k: v for k, v in closed_over.items() if isinstance(v, int | float | str | tuple)}
        return fingerprint(function.__qualname__, source, plain)
    except (AttributeError, OSError, TypeError):
        return uuid.uuid4().hex


def tokenizer_key(tokenizer: Any) -> str:
    if tokenizer is None:
        return ""
    backend = plain_backend(tokenizer)
    content = repr(tokenizer) if backend is None else hash_bytes(backend.to_str().encode())
    return fingerprint(content, tokenizer.pad_token_id, tokenizer.eos_token_id)
