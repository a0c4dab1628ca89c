"""Tensors without numbers, counted: a dispatch mode that knows which bytes live at any moment.

Weights, activations and gradients are on the meta device, where they have shapes and no memory.
Whole numbers (ids, masks, positions) stay real: they are small, models ask about their values
(is anything padded? which positions are learned?), and the answers decide what is allocated.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
ATTENTION = torch.nn.functional.scaled_dot_product_attention
LARGEST_ON_HEAP = 32 * 1024 * 1024
"""glibc gives larger requests pages of their own, and these back to the system when freed."""
_PICKING = (
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
)
_MADE_WHOLE = (aten.arange.default, aten.arange.start, aten.arange.start_step)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that are alive, the most there were, and the work done."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self.at_peak: dict[str, int] = {}
        """What `marked` held when the peak was reached."""
        self.marked: dict[str, int] = {}
        """Live bytes by name, kept by the caller for what it wants to tell apart."""
        self.flops = 0
        self.moved_bytes = 0
        self.num_ops = 0
        self.heap_bytes = 0
        """Of all storages that malloc would put on its heap, however short they lived."""
        self._known: dict[int, weakref.ref[Any]] = {}
        self._shapes = ShapeMemory()

    def note(self, tensor: torch.Tensor) -> int:
        """Count the storage of a tensor from now until it is freed; its bytes if it is new."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return 0

        def gone(_: Any) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self.live += size
        self.heap_bytes += size if size < LARGEST_ON_HEAP else 0
        if self.live > self.peak:
            self.peak, self.at_peak = self.live, dict(self.marked)
        return size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return args[0].dtype.is_floating_point and 1.0  # a guess: False, 0 or 1.0
        if "device" in kwargs and _stays_real(func, args, kwargs):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        devices = {tensor.is_meta for tensor in _tensors(args)}
        if kwargs:
            devices |= {tensor.is_meta for tensor in _tensors([*kwargs.values()])}
        if len(devices) == 2:
            if func in _PICKING:
                args = (args[0], _as_places(args[1]), *args[2:])
            args, kwargs = _on_meta(args), {key: _on_meta(value) for key, value in kwargs.items()}
        result = self._shapes(func, args, kwargs) if devices == {True} else func(*args, **kwargs)
        self.num_ops += 1
        if isinstance(result, torch.Tensor):
            new = self.note(result)
        else:
            new = sum(self.note(tensor) for tensor in _tensors((result,)))
        if True in devices:
            self.moved_bytes += new
            self.flops += _flops(func, args, result)
        return result


class ShapeMemory:
    """Runs operations on meta tensors, each kind once: equal layers repeat theirs, shape by shape.

    Working out a result's shape is most of the time of a trace. Results that share memory with an
    argument are never made from memory; one that is the changed argument itself is handed back.
    """

    def __init__(self) -> None:
        self._made: dict[Any, tuple[type, list[tuple[Any, ...] | None]]] = {}
        self._sharing: dict[Any, bool] = {}
        self._in_place: dict[Any, bool] = {}
        """By kind of operation: whether it only changes the numbers of its first argument."""

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `func` returns for these arguments, or its likeness."""
        shares = self._shares(func)
        if shares and not func._schema.is_mutable:
            return func(*args, **kwargs)
        key = (func, _shape_key(args), _shape_key([*kwargs.items()]))
        if shares:
            return self._change(key, func, args, kwargs)
        if key in self._made:
            kind, shapes = self._made[key]
            made = [shape and torch.empty_strided(*shape[:2], **shape[2]) for shape in shapes]
            return made[0] if kind is torch.Tensor else kind(made)
        result = func(*args, **kwargs)
        parts = [result] if isinstance(result, torch.Tensor) else result
        if type(parts) not in (list, tuple) or not all(
            part is None or isinstance(part, torch.Tensor) for part in parts
        ):
            self._sharing[func] = True
            return result
        given = {t.untyped_storage()._cdata for t in _tensors([*args, *kwargs.values()])}
        if any(t.untyped_storage()._cdata in given for t in _tensors(parts)):
            self._sharing[func] = True  # its schema does not tell
            return result
        kind = torch.Tensor if isinstance(result, torch.Tensor) else type(result)
        self._made[key] = kind, [None if part is None else _shape(part) for part in parts]
        return result

    def _change(self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation that changes an argument, unless its kind is known to keep its shape."""
        if self._in_place.get(key):
            return args[0]
        before = [_place(tensor) for tensor in _tensors(args)]
        result = func(*args, **kwargs)
        after = [_place(tensor) for tensor in _tensors(args)]
        self._in_place[key] = result is args[0] and before == after
        return result

    def _shares(self, func: Any) -> bool:
        """Whether results share memory with an argument, as views and changes in place do."""
        if func not in self._sharing:
            named = (*func._schema.arguments, *func._schema.returns)
            self._sharing[func] = any(each.alias_info is not None for each in named)
        return self._sharing[func]


def _shape(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), {"dtype": tensor.dtype, "device": "meta"}


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.untyped_storage()._cdata, tensor.shape, tensor.stride()


def _shape_key(value: Any) -> Any:
    """Equal for arguments that lead to results of the same shapes."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, tuple | list):
        return tuple(_shape_key(item) for item in value)
    return type(value), value


def _tensors(values: tuple[Any, ...] | list[Any]) -> list[torch.Tensor]:
    """All tensors among arguments or results, also in lists."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += _tensors(value)
    return found


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else torch.empty_like(value, device="meta")
    if isinstance(value, tuple | list):
        return type(value)(_on_meta(item) for item in value)
    return value


def _as_places(indices: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Indices with the true positions for a mask: a mask without numbers picks who knows what."""
    places: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype is torch.bool and not index.is_meta:
            places += index.nonzero().unbind(1)
        else:
            places.append(index)
    return places


def _stays_real(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether whole numbers would be sent to, or made on, the meta device."""
    if torch.device(kwargs["device"] or "cpu").type != "meta":
        return False
    dtype = kwargs.get("dtype")
    if dtype is not None and dtype.is_floating_point:
        return False
    first = args[0] if args else None
    if isinstance(first, torch.Tensor):
        return not first.is_meta and not first.is_floating_point()
    return dtype is not None or func in _MADE_WHOLE


def _flops(func: Any, args: tuple[Any, ...], result: Any) -> int:
    """Multiplications and additions of products of matrices; nothing else costs as much."""
    if func in (aten.mm.default, aten.bmm.default):
        return 2 * int(args[0].numel()) * int(args[1].shape[-1])
    if func is aten.addmm.default:
        return 2 * int(args[1].numel()) * int(args[2].shape[-1])
    if func is aten.convolution.default:
        return 2 * int(result.numel()) * int(args[1][0].numel())
    if func is aten.convolution_backward.default:
        return 4 * int(args[0].numel()) * int(args[2][0].numel())
    if func is aten._scaled_dot_product_flash_attention_for_cpu.default:
        return 4 * int(args[0].numel()) * int(args[1].shape[-2])
    if func is aten._scaled_dot_product_flash_attention_for_cpu_backward.default:
        return 10 * int(args[1].numel()) * int(args[2].shape[-2])
    return 0


@contextmanager
def fused_attention() -> Iterator[None]:
    """Let attention on meta tensors take the fused kernel that a real device would choose.

    On the meta device torch falls back to plain products, which keep the whole attention matrix.
    """
    torch.nn.functional.scaled_dot_product_attention = _attention
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = ATTENTION


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    plain: Callable[[], torch.Tensor] = lambda: ATTENTION(  # noqa: E731
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    fusable = query.is_meta and query.ndim == 4 and dropout_p == 0.0
    fusable = fusable and query.shape[-1] == key.shape[-1] == value.shape[-1]
    fusable = fusable and not (attn_mask is not None and attn_mask.requires_grad)
    if not fusable:
        return plain()
    if attn_mask is not None and not attn_mask.is_floating_point():
        attn_mask = torch.empty(attn_mask.shape, dtype=query.dtype, device="meta")
    fused: Any = aten._scaled_dot_product_flash_attention_for_cpu
    output: torch.Tensor = fused(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return output
