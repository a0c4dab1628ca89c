"""Varlen attention for padding-free batches: SDPA within each row, without padding or mask.

transformers lets a model use a custom attention function (`AttentionInterface`). Ours calls SDPA
once per row. The row lengths take the place of the attention mask: an int64 tensor with four axes,
which transformers passes on unchanged. Any other mask works as before, so a model with varlen
attention still generates and evaluates on padded batches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

NAME = "surefit_varlen"
CLOSE_LOGITS = 1e-4
_LIMITS = ("window", "window_size", "window_length", "attention_chunk_size", "local_attention")
"""Endings of config settings that limit how far a token attends, such as sliding windows."""


def use_varlen_attention(module: Any) -> bool:
    """Switch the model to varlen attention; False where its attention cannot be replaced."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    base = find_pretrained(module)
    if base is None or not base._can_set_attn_implementation():
        return False
    if base.config._attn_implementation not in ("sdpa", NAME):
        return False  # another implementation may add a soft-cap, which SDPA has not
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    base.set_attn_implementation(NAME)
    return True


def restore_attention(module: Any) -> None:
    """Switch the model back to SDPA."""
    find_pretrained(module).set_attn_implementation("sdpa")


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
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA: once per row where the mask holds row lengths, else once for the batch."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if attention_mask is None or attention_mask.dtype != torch.int64:
        whole, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
        return whole, None
    if more.get("position_bias") is not None or more.get("softcap") is not None:
        raise ValueError("varlen attention supports neither a position bias nor a soft-cap")
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1:  # on a CPU, repeating keys is faster than enable_gqa
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    causal = more.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    window = more.get("sliding_window")
    settings = {"dropout_p": more.get("dropout", 0.0), "scale": more.get("scaling")}
    lengths, steps = _read_rows(attention_mask)
    rows = zip(*(torch.split(part, lengths, 2) for part in (query, key, value)), strict=True)
    masks = _window_masks(lengths, steps, window, causal, query.device)
    outputs = [
        scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal and mask is None, **settings
        )
        for (q, k, v), mask in zip(rows, masks, strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def row_lengths_mask(lengths: Sequence[int], steps: Sequence[int] | None = None) -> torch.Tensor:
    """The row lengths in place of an attention mask; stays on the CPU, where they are read.

    `steps` are the places of the tokens in their rows, where these have gaps.
    """
    import torch

    if steps is None:
        return torch.tensor(lengths, dtype=torch.int64).view(1, 1, 1, -1)
    mask = torch.zeros((1, 1, 2, max(len(lengths), len(steps))), dtype=torch.int64)
    mask[0, 0, 0, : len(lengths)] = torch.tensor(lengths)
    mask[0, 0, 1, : len(steps)] = torch.tensor(steps)
    return mask


def _read_rows(mask: torch.Tensor) -> tuple[list[int], torch.Tensor | None]:
    lengths = [length for length in mask[0, 0, 0].tolist() if length]
    return lengths, (mask[0, 0, 1] if mask.shape[2] == 2 else None)


def _window_masks(
    lengths: list[int],
    steps: torch.Tensor | None,
    window: int | None,
    causal: bool,
    device: Any,
) -> list[torch.Tensor | None]:
    """The mask of each row that reaches beyond the window; None for the other rows."""
    import torch

    if window is None:
        return [None] * len(lengths)
    if steps is None:
        places = [torch.arange(length) for length in lengths]
    else:
        places = [*torch.split(steps, lengths)]
    return [
        _within_window(row.to(device), window, causal) if int(row[-1] - row[0]) >= window else None
        for row in places
    ]


def _within_window(places: torch.Tensor, window: int, causal: bool) -> torch.Tensor:
    """Which keys (second axis) a query attends to: those less than `window` places away.

    >>> import torch
    >>> _within_window(torch.arange(4), 2, causal=True).long().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    distance = places[:, None] - places
    near = distance.abs() < window
    return near & (distance >= 0) if causal else near


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
    scale = max(1.0, float(expected.abs().max()))
    return float((varlen[0] - expected).abs().max()) <= CLOSE_LOGITS * scale
