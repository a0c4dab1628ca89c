"""Varlen attention for padding-free batches: attention within each row, no padding and no mask.

transformers lets a model use a custom attention function (`AttentionInterface`). Ours calls a
varlen kernel where the device has one, else SDPA once per row (`varlen_kernels.py`). The row
lengths take the place of the attention mask (`row_lengths.py`). Any other mask works as before, so
a model with varlen attention still generates and evaluates on padded batches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from surefit.kernels.numerics import lower_precision, relative_difference, tolerance_of
from surefit.kernels.row_lengths import Rows, read_rows
from surefit.kernels.varlen_kernels import (
    BY_ROW,
    KERNELS,
    Attention,
    Shape,
    attend_by_row,
    find_kernel,
    runs,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

NAME = "surefit_varlen"
_LIMITS = ("window", "window_size", "window_length", "attention_chunk_size", "local_attention")
"""Endings of config settings that limit how far a token attends, such as sliding windows."""
_observed: list[tuple[Shape, Attention]] | None = None


def use_varlen_attention(module: Any, kernel: str = BY_ROW) -> bool:
    """Switch the model to varlen attention; False where its attention cannot be replaced.

    A kernel is used where the tensors are on its device; else SDPA is called per row.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    base = find_pretrained(module)
    if base is None or not base._can_set_attn_implementation():
        return False
    used = base.config._attn_implementation
    if used != "sdpa" and not used.startswith(NAME):
        return False  # another implementation may add a soft-cap, which SDPA has not
    name = _registered_name(kernel)
    AttentionInterface.register(name, partial(attend, kernel=kernel))
    AttentionMaskInterface.register(name, sdpa_mask)
    base.set_attn_implementation(name)
    return True


def _registered_name(kernel: str) -> str:
    """The name of an attention function; transformers treats some words in it as its own."""
    if kernel == BY_ROW:
        return NAME
    known = [name for names in KERNELS.values() for name in names]
    return f"{NAME}_{known.index(kernel) if kernel in known else len(known)}"


def restore_attention(module: Any) -> None:
    """Switch the model back to SDPA."""
    find_pretrained(module).set_attn_implementation("sdpa")


@contextmanager
def observed_layers() -> Iterator[list[tuple[Shape, Attention]]]:
    """While the block runs, note what the layers ask of varlen attention; each kind once."""
    global _observed
    found: list[tuple[Shape, Attention]] = []
    _observed = found
    try:
        yield found
    finally:
        _observed = None


def find_pretrained(module: Any) -> Any:
    """The transformers model, which may be inside a peft model or a custom module; else None."""
    if "transformers" not in sys.modules:  # importing it takes seconds
        return None
    from transformers import PreTrainedModel

    found = (part for part in module.modules() if isinstance(part, PreTrainedModel))
    return next(found, None)


def attend(
    module: nn.Module,
    query: torch.Tensor,  # (1, heads, T, D)
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    kernel: str = BY_ROW,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attention within rows where the mask holds row lengths, else SDPA for the whole batch."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if attention_mask is None or attention_mask.dtype != torch.int64:
        whole, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
        return whole, None
    if more.get("position_bias") is not None or more.get("softcap") is not None:
        raise ValueError("varlen attention supports neither a position bias nor a soft-cap")
    causal = more.get("is_causal")
    asked = Attention(
        getattr(module, "is_causal", True) if causal is None else causal,
        more.get("sliding_window"),
        more.get("scaling"),
        more.get("dropout", 0.0),
    )
    if _observed is not None:
        _observe(_observed, query, key, asked)
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))  # (T, heads, D)
    rows = read_rows(attention_mask)
    return _within_rows((query, key, value), rows, asked, kernel)[None].contiguous(), None


def _within_rows(
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: Rows,
    asked: Attention,
    kernel: str,
) -> torch.Tensor:
    query, key, value = parts
    choice = find_kernel(kernel, query.device.type)
    if choice is not None:
        low = lower_precision(query) or query.dtype  # autocast does not know the kernel
        if runs(choice, low, rows, asked):
            attend_rows = choice.load()
            made: torch.Tensor = attend_rows(query.to(low), key.to(low), value.to(low), rows, asked)
            return made
    return attend_by_row(query, key, value, rows, asked)


def _observe(
    found: list[tuple[Shape, Attention]], query: torch.Tensor, key: torch.Tensor, asked: Attention
) -> None:
    layer = Shape(query.shape[1], key.shape[1], query.shape[3]), asked
    if layer not in found:
        found.append(layer)


def find_attention_limit(module: Any, longest: int) -> tuple[str, int] | None:
    """The largest setting that limits attention within a row of this length, if there is one.

    A setting may be the whole window or half of it, as `local_attention` is in ModernBERT.
    """
    config = find_pretrained(module).config
    found = [
        (name, value)
        for each in (config, getattr(config, "text_config", None))
        for name, value in (vars(each).items() if each is not None else ())
        if name.endswith(_LIMITS) and isinstance(value, int) and not isinstance(value, bool)
        if 0 < value < 2 * longest
    ]
    return max(found, key=lambda pair: pair[1], default=None)


def same_logits(padded: torch.Tensor, varlen: torch.Tensor, lengths: tuple[int, ...]) -> bool:
    """Whether padding-free rows (1, T, V) have the logits of padded rows (B, T, V)."""
    import torch

    if varlen.ndim != 3 or varlen.shape[:2] != (1, sum(lengths)):
        return False
    expected = torch.cat([row[:length] for row, length in zip(padded, lengths, strict=True)])
    size = float(expected.abs().max())
    difference = relative_difference(varlen[0], expected) * size
    return difference <= tolerance_of(varlen, padded).values * max(1.0, size)
