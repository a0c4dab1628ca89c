"""Kernels that attend within each of many concatenated rows, by device.

A CPU calls SDPA once per row. A GPU would start several operations per row and layer; it uses a
varlen kernel, one operation for all rows, if one is installed and gives the results of SDPA on that
very device (`choose_kernel`).

The lengths of the rows take the place of a mask. transformers passes an int64 mask with four axes
on to the attention function unchanged. Reading its values from a device would make the host wait in
every layer, so it carries them as Python numbers, and nothing moves it to a device (DDP would).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import torch
from torch.nn import functional

from surefit.errors import describe_error
from surefit.speed.numerics import relative_difference, tolerance_of


@dataclass(frozen=True)
class Rows:
    """Lengths of the rows in a batch; `steps` are the places of tokens where rows have gaps.

    With `branches`, each row is a prompt and two answers that do not see each other: the tokens of
    the prompt, and of the first answer.
    """

    lengths: tuple[int, ...]
    steps: tuple[int, ...] | None = None
    branches: tuple[tuple[int, int], ...] | None = None
    _bounds: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def bounds(self, device: Any) -> torch.Tensor:
        """Where each row starts, and where the last one ends; made once per batch and device."""
        if device not in self._bounds:
            ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
            pins = torch.device(device).type == "cuda"
            self._bounds[device] = (ends.pin_memory() if pins else ends).to(
                device, non_blocking=pins
            )
        made: torch.Tensor = self._bounds[device]
        return made


def row_lengths_mask(
    lengths: Sequence[int],
    steps: Sequence[int] | None = None,
    branches: Sequence[tuple[int, int]] | None = None,
) -> torch.Tensor:
    """Return the row lengths in place of an attention mask.

    >>> read_rows(row_lengths_mask([3, 2])).lengths
    (3, 2)
    """
    own = tuple(lengths), None if steps is None else tuple(steps)
    if branches is not None:
        columns = zip(*((n, *each) for n, each in zip(lengths, branches, strict=True)), strict=True)
        mask = torch.tensor([*columns], dtype=torch.int64).view(1, 1, 3, -1)
    elif steps is None:
        mask = torch.tensor(own[0], dtype=torch.int64).view(1, 1, 1, -1)
    else:
        mask = torch.zeros((1, 1, 2, max(len(lengths), len(steps))), dtype=torch.int64)
        mask[0, 0, 0, : len(lengths)] = torch.tensor(lengths)
        mask[0, 0, 1, : len(steps)] = torch.tensor(steps)
    made: torch.Tensor = mask.as_subclass(HostMask)
    known = None if branches is None else tuple(branches)
    made.rows = Rows(tuple(n for n in own[0] if n), own[1], known)  # type: ignore[attr-defined]
    return made


def read_rows(mask: torch.Tensor) -> Rows:
    """Return the rows that a mask stands for; a copy of it that lost them is read."""
    known: Rows | None = getattr(mask, "rows", None)
    if known is not None:
        return known
    lengths = tuple(length for length in mask[0, 0, 0].tolist() if length)
    if mask.shape[2] == 3:
        return Rows(lengths, None, tuple(map(tuple, mask[0, 0, 1:].T.tolist())))
    steps = tuple(mask[0, 0, 1].tolist()) if mask.shape[2] == 2 else None
    return Rows(lengths, steps if steps is None else steps[: sum(lengths)])


class HostMask(torch.Tensor):
    """An int64 tensor that stays on the CPU; results of operations are plain tensors."""

    rows: Rows
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def to(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def cuda(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def record_stream(self, stream: Any) -> None:
        """Nothing on the device holds it."""


BY_ROW = "sdpa per row"
PROVED_ROWS = Rows((7, 1, 19, 12))
"""The lengths that a kernel is proved on: the window of a row may be wider than another row."""


@dataclass(frozen=True)
class Attention:
    """What a layer asks of its attention, besides the tensors."""

    causal: bool = True
    window: int | None = None
    """Tokens that are so many places away are not attended to."""
    scale: float | None = None
    dropout: float = 0.0


@dataclass(frozen=True)
class Shape:
    """The sizes of a layer's attention: what a kernel may not support."""

    heads: int
    key_heads: int
    size: int


Kernel = Callable[[Any, Any, Any, Rows, Attention], Any]
"""`kernel(query, key, value, rows, attention)`: tensors (T, heads, D) to a tensor of that shape.
There may be fewer heads of keys and values than of queries."""


@dataclass(frozen=True)
class Choice:
    """A kernel that may be installed; `load` raises ImportError if it is not."""

    load: Callable[[], Kernel]
    dropout: bool = False
    """Whether it drops out attention, as some models do in training."""


def attend_by_row(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Rows, asked: Attention
) -> torch.Tensor:
    """SDPA once per row; works on any device and in any precision."""
    groups = query.shape[1] // key.shape[1]
    parts = [part.transpose(0, 1)[None] for part in (query, key, value)]  # (1, heads, T, D)
    if groups > 1:  # on a CPU, repeating keys is faster than enable_gqa
        parts[1:] = [part.repeat_interleave(groups, dim=1) for part in parts[1:]]
    split = zip(*(torch.split(part, [*rows.lengths], 2) for part in parts), strict=True)
    if rows.branches is not None:
        made = map(_attend_branches, split, rows.branches, repeat(asked))
        return torch.cat([*made], dim=2)[0].transpose(0, 1)
    masks = _window_masks(rows, asked, query.device)
    outputs = [
        functional.scaled_dot_product_attention(  # which a trace may have replaced
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=asked.causal and mask is None,
            dropout_p=asked.dropout,
            scale=asked.scale,
        )
        for (q, k, v), mask in zip(split, masks, strict=True)
    ]
    return torch.cat(outputs, dim=2)[0].transpose(0, 1)


def _attend_branches(
    parts: tuple[torch.Tensor, ...], branches: tuple[int, int], asked: Attention
) -> torch.Tensor:
    """SDPA for a prompt with its first answer, then for the second answer, which sees the prompt
    and itself."""
    prompt, first = branches
    query, key, value = parts  # (1, heads, T, D)
    end, length = prompt + first, query.shape[2]
    outputs = []
    for start, stop, seen in ((0, end, 0), (end, length, prompt)):
        if start == stop:
            continue
        q = query[:, :, start:stop]
        k, v = (torch.cat([each[:, :, :seen], each[:, :, start:stop]], 2) for each in (key, value))
        mask = None
        if seen or asked.window is not None:
            places = torch.arange(seen + stop - start, device=query.device)
            window = len(places) if asked.window is None else asked.window
            mask = _within_window(places, window, asked.causal)[seen:]
        outputs.append(
            functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=asked.causal and mask is None,
                dropout_p=asked.dropout,
                scale=asked.scale,
            )
        )
    return torch.cat(outputs, dim=2)


def _load_flash() -> Kernel:
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

    def options(query: Any, key: Any, asked: Attention) -> dict[str, Any]:
        return {
            "dropout_p": asked.dropout,
            "softmax_scale": asked.scale,
            "causal": asked.causal,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }

    return _as_kernel(flash_attn_varlen_func, options)


def _load_torch() -> Kernel:
    from torch.nn.attention.varlen import varlen_attn  # since torch 2.10

    def options(query: Any, key: Any, asked: Attention) -> dict[str, Any]:
        return {"scale": asked.scale, "enable_gqa": query.shape[1] != key.shape[1]}

    return _as_kernel(varlen_attn, options)


def _as_kernel(attention: Callable[..., Any], options: Callable[..., dict[str, Any]]) -> Kernel:
    """Return a library's varlen attention; both libraries take the same bounds and window."""

    def attend(query: Any, key: Any, value: Any, rows: Rows, asked: Attention) -> Any:
        bounds, longest = rows.bounds(query.device), max(rows.lengths)
        return attention(
            query,
            key,
            value,
            bounds,
            bounds,
            longest,
            longest,
            window_size=_window(asked),
            **options(query, key, asked),
        )

    return attend


def _window(asked: Attention) -> tuple[int, int]:
    """Return how many places before and after its own a token attends to; −1 for all of them."""
    before = -1 if asked.window is None else asked.window - 1
    return before, 0 if asked.causal else before


KERNELS: dict[str, dict[str, Choice]] = {
    "cuda": {
        "flash_attn": Choice(_load_flash, dropout=True),
        "torch varlen_attn": Choice(_load_torch),
    }
}
"""The kernels to try on each kind of device, the best first; all need half precision."""


def find_kernel(name: str, device: str) -> Choice | None:
    """Return a kernel by its name, where this kind of device has it."""
    return KERNELS.get(device, {}).get(name)


def runs(choice: Choice, dtype: torch.dtype, rows: Rows, asked: Attention) -> bool:
    """Return whether a kernel may compute this call, or SDPA has to."""
    half = dtype in (torch.float16, torch.bfloat16)
    gaps = asked.window is not None and rows.steps is not None
    return half and not gaps and rows.branches is None and (choice.dropout or not asked.dropout)


def choose_kernel(
    layers: Sequence[tuple[Shape, Attention]], device: Any, dtype: torch.dtype | None
) -> tuple[str, str]:
    """Return the first kernel of a device that computes what SDPA does, and why others are not
    used.

    It is proved on that device, in the precision of training, for each kind of layer.
    """
    refused = []
    for name, choice in KERNELS.get(torch.device(device).type, {}).items():
        if dtype not in (torch.float16, torch.bfloat16):
            return BY_ROW, "varlen kernels need half precision"
        try:
            kernel = choice.load()
            apart = [prove(kernel, shape, asked, device, dtype) for shape, asked in layers]
        except ImportError:
            continue
        except Exception as error:  # a kernel may fail on a device, shape or version in any way
            refused.append(f"{name}: {describe_error(error)[:120]}")
            continue
        limit = tolerance_of(dtype).gradients
        if all(each <= limit for each in apart):
            return name, "; ".join(refused)
        refused.append(f"{name} differs from SDPA by {max(apart):.2g}")
    return BY_ROW, "; ".join(refused) or "no varlen kernel is installed for this device"


def prove(kernel: Kernel, shape: Shape, asked: Attention, device: Any, dtype: torch.dtype) -> float:
    """How far outputs and gradients are from those of SDPA in float32, as a share of their size."""
    asked = replace(asked, dropout=0.0)  # which is random
    draw = torch.Generator().manual_seed(0)
    heads = (shape.heads, shape.key_heads, shape.key_heads)
    num_tokens = sum(PROVED_ROWS.lengths)
    drawn = [torch.randn(num_tokens, number, shape.size, generator=draw) for number in heads]
    above = torch.randn(num_tokens, shape.heads, shape.size, generator=draw).to(device, dtype)
    results = []
    for attend, precision in ((attend_by_row, torch.float32), (kernel, dtype)):
        given = [each.to(device, dtype).to(precision).requires_grad_() for each in drawn]
        query, key, value = given
        with torch.enable_grad():
            output = attend(query, key, value, PROVED_ROWS, asked)
            gradients = torch.autograd.grad(output, given, above.to(output.dtype))
        results.append((output, *gradients))
    return max(relative_difference(found, wanted) for wanted, found in zip(*results, strict=True))


def _window_masks(rows: Rows, asked: Attention, device: Any) -> list[torch.Tensor | None]:
    """Return the mask of each row that reaches beyond the window; None for the other rows."""
    window = asked.window
    if window is None:
        return [None] * len(rows.lengths)
    if rows.steps is None:
        places = [torch.arange(length) for length in rows.lengths]
    else:
        places = [*torch.split(torch.tensor(rows.steps), [*rows.lengths])]
    return [
        _within_window(row.to(device), window, asked.causal)
        if int(row[-1] - row[0]) >= window
        else None
        for row in places
    ]


def _within_window(places: torch.Tensor, window: int, causal: bool) -> torch.Tensor:
    """Return which keys (second axis) a query attends to: those less than `window` places away.

    >>> import torch
    >>> _within_window(torch.arange(4), 2, causal=True).long().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    distance = places[:, None] - places
    near = distance.abs() < window
    return near & (distance >= 0) if causal else near
