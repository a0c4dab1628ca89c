"""Runs the body of a model without padding, while its head and the loss see a padded batch.

A forward pre-hook concatenates the rows where the body begins, so that its layers compute nothing
at padding. A forward hook pads the hidden states again where the body ends. The head therefore
pools as it always does: at the first position, at the last token, or by the mean over the mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surefit.batches.field import SEQUENCES
from surefit.kernels.row_lengths import row_lengths_mask
from surefit.kernels.varlen_attention import find_pretrained

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Varlen:
    """How a model runs padding-free batches.

    `body` is the transformers model without its head. `padding_idx` is set where positions start
    at `padding_idx + 1` and skip padding tokens, as in RoBERTa; elsewhere they start at 0.
    """

    body: nn.Module | None = field(default=None, repr=False)
    padding_idx: int | None = None

    def arguments(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of `forward` that a batch of concatenated rows adds to its columns."""
        positions = self.positions(batch["position_ids"], batch.get("input_ids"))
        return {
            "position_ids": positions,
            "attention_mask": row_lengths_mask(batch["row_lengths"]),
        }

    def positions(self, steps: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
        """Position ids of concatenated rows (1, T), from each token's place in its row.

        >>> import torch
        >>> steps, ids = torch.tensor([[0, 1, 0, 1, 2]]), torch.tensor([[5, 6, 7, 1, 8]])
        >>> Varlen(padding_idx=1).positions(steps, ids).tolist()
        [[2, 3, 2, 1, 3]]
        """
        import torch

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
        from torch.nn import Module

        assert self.body is not None
        packed = _Packed(self, batch)
        hooks = [
            self.body.register_forward_pre_hook(packed.pack, with_kwargs=True),
            self.body.register_forward_hook(packed.unpack),
        ]
        pooler, encoder = (getattr(self.body, name, None) for name in ("pooler", "encoder"))
        if isinstance(pooler, Module):  # pools each row, not the concatenation
            if isinstance(encoder, Module):
                hooks.append(encoder.register_forward_hook(packed.unpack))
            else:
                hooks.append(pooler.register_forward_pre_hook(packed.unpack_input))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def find_varlen(module: nn.Module) -> Varlen:
    """The body of the transformers model in a module, and how it counts positions."""
    from torch import nn

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
        """The arguments of the body, its rows concatenated."""
        import torch

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
        """The outputs of the body with their hidden states padded."""
        if isinstance(output, Mapping):
            return type(output)(**{name: self._pad(value) for name, value in output.items()})
        return self._pad(output)

    def unpack_input(self, pooler: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of the body's pooler, padded."""
        return tuple(self._pad(value) for value in args)

    def _pad(self, value: Any) -> Any:
        """Hidden states (1, T, H) as (B, L, H), with zeros at padding; others unchanged."""
        import torch

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
