"""Varlen attention for padding-free batches: attention within each row, no padding and no mask.

transformers lets a model use a custom attention function (`AttentionInterface`). Ours calls a
varlen kernel where the device has one, else SDPA once per row (`varlen_kernels.py`). The row
lengths take the place of the attention mask. Any other mask works as before, so a model
with varlen attention still generates and evaluates on padded batches.

Below a classification head, only the model's body runs without padding: a forward pre-hook
concatenates the rows where the body begins, and a forward hook pads the hidden states again where
it ends. The head therefore pools as it always does: at the first position, at the last token, or by
the mean over the mask.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import Module

from surefit.batches.field import SEQUENCES
from surefit.speed.precision import lower_precision
from surefit.speed.varlen_kernels import (
    BY_ROW,
    KERNELS,
    Attention,
    Rows,
    Shape,
    attend_by_row,
    find_kernel,
    read_rows,
    row_lengths_mask,
    runs,
)

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
    """Return the name of an attention function; transformers treats some words in it as its own."""
    if kernel == BY_ROW:
        return NAME
    known = [name for names in KERNELS.values() for name in names]
    return f"{NAME}_{known.index(kernel) if kernel in known else len(known)}"


def restore_attention(module: Any) -> None:
    """Switch a model with varlen attention back to SDPA."""
    base = find_pretrained(module)
    if base is not None and base.config._attn_implementation.startswith(NAME):
        base.set_attn_implementation("sdpa")


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
    """Return transformers model, which may be inside a peft model or a custom module; else None."""
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
    layer = Shape(query.shape[1], key.shape[1], query.shape[3]), asked
    if _observed is not None and layer not in _observed:
        _observed.append(layer)
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


def find_attention_limit(module: Any, longest: int) -> tuple[str, int] | None:
    """Return the largest setting that limits attention within a row of this length, if there is
    one.

    A setting may be the whole window or half of it, as `local_attention` is in ModernBERT.
    """
    config = getattr(find_pretrained(module), "config", None)
    found = [
        (name, value)
        for each in (config, getattr(config, "text_config", None))
        for name, value in (vars(each).items() if each is not None else ())
        if name.endswith(_LIMITS) and isinstance(value, int) and not isinstance(value, bool)
        if 0 < value < 2 * longest
    ]
    return max(found, key=lambda pair: pair[1], default=None)


@dataclass(frozen=True)
class Varlen:
    """How a model runs padding-free batches.

    `body` is the transformers model without its head. `padding_idx` is set where positions start
    at `padding_idx + 1` and skip padding tokens, as in RoBERTa; elsewhere they start at 0.
    """

    body: nn.Module | None = field(default=None, repr=False)
    padding_idx: int | None = None

    def arguments(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of `forward` that a batch of concatenated rows adds to its columns."""
        positions = self.positions(batch["position_ids"], batch.get("input_ids"))
        return {
            "position_ids": positions,
            "attention_mask": row_lengths_mask(
                batch["row_lengths"], branches=batch.get("row_branches")
            ),
        }

    def positions(self, steps: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
        """Position ids of concatenated rows (1, T), from each token's place in its row.

        >>> import torch
        >>> steps, ids = torch.tensor([[0, 1, 0, 1, 2]]), torch.tensor([[5, 6, 7, 1, 8]])
        >>> Varlen(padding_idx=1).positions(steps, ids).tolist()
        [[2, 3, 2, 1, 3]]
        """
        if self.padding_idx is None:
            return steps
        if ids is None:
            return steps + self.padding_idx + 1
        counted = ids.ne(self.padding_idx).long()  # (1, T)
        before = counted.cumsum(1) - counted
        places = torch.arange(ids.shape[1], device=ids.device)
        first = places - steps  # where the token's row starts
        within = before - before.gather(1, first)
        return (within + 1) * counted + self.padding_idx

    @contextmanager
    def packing(self, batch: Mapping[str, Any]) -> Iterator[None]:
        """Within it, the body runs without padding, if the batch lists the positions to keep."""
        if "kept_positions" not in batch:
            yield
            return
        assert self.body is not None
        packed = _Packed(self, batch)
        pooler, encoder = (getattr(self.body, name, None) for name in ("pooler", "encoder"))
        with ExitStack() as hooks:
            body = self.body
            hooks.enter_context(body.register_forward_pre_hook(packed.pack, with_kwargs=True))
            hooks.enter_context(body.register_forward_hook(packed.unpack))
            if isinstance(pooler, Module):  # pools each row, not the concatenation
                hooks.enter_context(
                    encoder.register_forward_hook(packed.unpack)
                    if isinstance(encoder, Module)
                    else pooler.register_forward_pre_hook(lambda _, x: tuple(map(packed._pad, x)))
                )
            yield


def find_varlen(module: nn.Module) -> Varlen:
    """Return the body of the transformers model in a module, and how it counts positions."""
    pretrained = find_pretrained(module)
    body: nn.Module | None = pretrained.base_model if pretrained is not None else None
    if body is None:
        return Varlen()
    tables = (
        part.padding_idx
        for name, part in body.named_modules()
        if isinstance(part, nn.Embedding) and "position" in name
    )
    return Varlen(body, next((index for index in tables if index is not None), None))


class _Packed:
    """The hooks of one batch: concatenates the rows before the body, pads them again after it."""

    def __init__(self, varlen: Varlen, batch: Mapping[str, Any]) -> None:
        self.varlen = varlen
        self.kept = batch["kept_positions"]  # (T,), flat in (B, L)
        self.lengths = batch["row_lengths"]
        self.steps = batch.get("row_steps")
        self.shape = tuple(batch["attention_mask"].shape)  # (B, L)
        self.padded: dict[int, tuple[Any, Any]] = {}

    def pack(self, body: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments of the body, its rows concatenated."""
        names = inspect.signature(body.forward).parameters
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        lead = next((given[n] for n in SEQUENCES if given.get(n) is not None), None)
        if lead is None or tuple(lead.shape[:2]) != self.shape:
            raise ValueError("the model's body reads another sequence than the batch has")
        for name, value in given.items():
            if isinstance(value, torch.Tensor) and tuple(value.shape[:2]) == self.shape:
                given[name] = value.flatten(0, 1).index_select(0, self.kept)[None]
        if given.get("position_ids") is None:
            steps = (self.kept % self.shape[1])[None]
            given["position_ids"] = self.varlen.positions(steps, given.get("input_ids"))
        given["attention_mask"] = row_lengths_mask(self.lengths, self.steps)
        return (), given

    def unpack(self, body: Any, args: Any, output: Any) -> Any:
        """Return the outputs of the body with their hidden states padded."""
        if isinstance(output, Mapping):
            return type(output)(**{name: self._pad(value) for name, value in output.items()})
        return self._pad(output)

    def _pad(self, value: Any) -> Any:
        """Hidden states (1, T, H) as (B, L, H), with zeros at padding; others unchanged."""
        if isinstance(value, tuple | list):
            return type(value)(self._pad(part) for part in value)
        concatenated = (1, len(self.kept))
        if not isinstance(value, torch.Tensor) or value.ndim < 3:
            return value
        if tuple(value.shape[:2]) != concatenated:
            return value
        if id(value) not in self.padded:  # the pooler and the head may both read it
            rows, length = self.shape
            empty = value.new_zeros((rows * length, *value.shape[2:]))
            padded = empty.index_copy_(0, self.kept, value[0])
            self.padded[id(value)] = (value, padded.view(rows, length, *value.shape[2:]))
        return self.padded[id(value)][1]
