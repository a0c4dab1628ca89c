"""Varlen attention for padding-free batches: SDPA within each row, without padding or mask.

transformers lets a model use a custom attention function (`AttentionInterface`). Ours calls SDPA
once per row. The row lengths take the place of the attention mask: an int64 tensor with four axes,
which transformers passes on unchanged. Any other mask works as before, so a model with varlen
attention still generates and evaluates on padded batches.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    base = _pretrained(module)
    if base is None or not base._can_set_attn_implementation():
        return False
    if base.config._attn_implementation != "sdpa":
        return False  # another implementation may add a soft-cap, which SDPA has not
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    base.set_attn_implementation(NAME)
    return True


def restore_attention(module: Any) -> None:
    """Switch the model back to SDPA."""
    _pretrained(module).set_attn_implementation("sdpa")


def _pretrained(module: Any) -> Any:
    """The transformers model, which may be inside a peft model."""
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
    settings = {
        "dropout_p": more.get("dropout", 0.0),
        "scale": more.get("scaling"),
        "is_causal": getattr(module, "is_causal", True) if causal is None else causal,
    }
    lengths = attention_mask.flatten().tolist()
    rows = zip(*(torch.split(part, lengths, 2) for part in (query, key, value)), strict=True)
    outputs = [scaled_dot_product_attention(q, k, v, **settings) for q, k, v in rows]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def varlen_arguments(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `forward` that a padding-free batch adds to its columns."""
    import torch

    lengths = torch.tensor(batch["row_lengths"], dtype=torch.int64)  # stays on the CPU
    return {"position_ids": batch["position_ids"], "attention_mask": lengths.view(1, 1, 1, -1)}


def find_attention_limit(module: Any, longest: int) -> str | None:
    """The setting that limits attention to less than a row of this length, if there is one."""
    config = _pretrained(module).config
    for each in (config, getattr(config, "text_config", None)):
        for name, value in vars(each).items() if each is not None else ():
            limited = name.endswith(_LIMITS) and isinstance(value, int)
            if limited and not isinstance(value, bool) and 0 < value < longest:
                return f"{name} = {value}"
    return None


def same_logits(padded: torch.Tensor, varlen: torch.Tensor, lengths: tuple[int, ...]) -> bool:
    """Whether padding-free rows (1, T, V) have the logits of padded rows (B, T, V)."""
    import torch

    if varlen.ndim != 3 or varlen.shape[:2] != (1, sum(lengths)):
        return False
    expected = torch.cat([row[:length] for row, length in zip(padded, lengths, strict=True)])
    scale = max(1.0, float(expected.abs().max()))
    return float((varlen[0] - expected).abs().max()) <= CLOSE_LOGITS * scale
