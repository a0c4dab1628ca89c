"""A dispatch mode that counts the bytes of live tensors on the meta device.

Weights, activations and gradients are on the meta device, where tensors have shapes and no memory.
Integers (token ids, masks, positions) keep their values: they are small, and models branch on them
(is anything padded? which positions are labelled?), which decides what is allocated.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from surefit.memory.replay_heap import NODE_FREED, NODE_MADE

aten = torch.ops.aten
ATTENTION = torch.nn.functional.scaled_dot_product_attention
_INDEXING = (
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
)
FOUR_BIT_PRODUCT = "bitsandbytes::gemm_4bit"
_INTEGER_FACTORIES = (aten.arange.default, aten.arange.start, aten.arange.start_step)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all live storages, their peak, and the work done."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self.at_peak: dict[str, int] = {}
        """`labelled` as it was at the peak."""
        self.labelled: dict[str, int] = {}
        """Live bytes by name, maintained by the caller for what it wants to distinguish."""
        self.flops = 0
        self.moved_bytes = 0
        self.num_ops = 0
        self.events: list[int] = []
        """Allocations since `begin_step`: a size in bytes, or −n where the n-th one is freed; and
        where a node of the graph is made or freed."""
        self._node: Any = None
        self._num_allocated = 0
        self._num_before = 0
        self._storages: dict[int, weakref.ref[Any]] = {}
        self._cached = ShapeCache()

    def begin_step(self) -> None:
        """Record events from here; what was allocated before stays."""
        self.events, self._num_before = [], self._num_allocated

    def add(self, tensor: torch.Tensor) -> int:
        """Count the storage of a tensor until it is freed; returns its bytes, 0 if it is known."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return 0
        self._num_allocated += size > 0
        number = self._num_allocated

        def freed(_: Any) -> None:
            del self._storages[key]
            self._shrink(size, number)

        self._storages[key] = weakref.ref(storage, freed)
        self._grow(size)
        return size

    def hide(self, tensor: torch.Tensor) -> None:
        """Never count the storage of a tensor: something else stands for its bytes."""
        key = tensor.untyped_storage()._cdata
        self._storages[key] = weakref.ref(
            tensor.untyped_storage(), lambda _: self._storages.pop(key, None)
        )

    def take(self, size: int, label: str = "") -> Callable[[], None]:
        """Count bytes that no tensor of the trace has; returns what frees them.

        With a label, `labelled` counts them too.
        """
        if not size:
            return lambda: None
        self._num_allocated += 1
        number = self._num_allocated
        self.labelled[label] = self.labelled.get(label, 0) + size
        self._grow(size)

        def free() -> None:
            self.labelled[label] -= size
            self._shrink(size, number)

        return free

    def _grow(self, size: int) -> None:
        self.live += size
        if size:
            self.events.append(size)
        if self.live > self.peak:
            self.peak, self.at_peak = self.live, dict(self.labelled)

    def _shrink(self, size: int, number: int) -> None:
        self.live -= size
        if size and number > self._num_before:
            self.events.append(self._num_before - number)

    def _record_node(self) -> None:
        """Forward operations make nodes; the backward pass frees one when it comes to the next."""
        node = torch._C._current_autograd_node()
        if node is None and torch.is_grad_enabled():
            self.events.append(NODE_MADE)
        elif node is not None and node is not self._node:
            self.events.append(NODE_FREED)
        self._node = node

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self._record_node()
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return args[0].dtype.is_floating_point and 1.0  # an arbitrary value: False or 1.0
        if "device" in kwargs and _keeps_values(func, args, kwargs):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if func is aten._to_copy.default and args[0].is_meta:
            kwargs = {**kwargs, "device": torch.device("meta")}  # it has no values to copy
        devices = {tensor.is_meta for tensor in _tensors(args)}
        if kwargs:
            devices |= {tensor.is_meta for tensor in _tensors([*kwargs.values()])}
        if len(devices) == 2:
            if func in _INDEXING:
                args = (args[0], _mask_to_indices(args[1]), *args[2:])
            args, kwargs = _on_meta(args), {key: _on_meta(value) for key, value in kwargs.items()}
        if func.name() == FOUR_BIT_PRODUCT:  # it unpacks the weights, and frees them again
            self.add(torch.empty(args[2], dtype=args[0].dtype, device="meta"))
        if func is aten._grouped_mm.default and True in devices:
            result = _grouped_product(*args, **kwargs)
        elif devices == {True}:
            result = self._cached(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        self.num_ops += 1
        if isinstance(result, torch.Tensor):
            new = self.add(result)
        else:
            new = sum(self.add(tensor) for tensor in _tensors((result,)))
        if True in devices:
            self.moved_bytes += new
            self.flops += _flops(func, args, result)
        return result


class ShapeCache:
    """Runs operations on meta tensors, and caches the shapes of their results.

    Inferring shapes takes most of the time of a trace, and equal layers repeat the same operations
    on the same shapes. Results that share storage with an argument are never taken from the cache;
    an in-place operation that keeps its shape returns its argument.
    """

    def __init__(self) -> None:
        self._results: dict[Any, tuple[type, list[tuple[Any, ...] | None]]] = {}
        self._aliasing: dict[Any, bool] = {}
        self._in_place: dict[Any, bool] = {}
        """By operation and shapes: whether it only changes the values of its first argument."""

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of `func`, or an empty tensor of the same shape and dtype."""
        aliases = self._aliases(func)
        if aliases and not func._schema.is_mutable:
            return func(*args, **kwargs)
        key = (func, _shape_key(args), _shape_key([*kwargs.items()]))
        if aliases:
            return self._run_in_place(key, func, args, kwargs)
        if key in self._results:
            kind, shapes = self._results[key]
            made = [shape and torch.empty_strided(*shape[:2], **shape[2]) for shape in shapes]
            return made[0] if kind is torch.Tensor else kind(made)
        result = func(*args, **kwargs)
        parts = [result] if isinstance(result, torch.Tensor) else result
        if type(parts) not in (list, tuple) or not all(
            part is None or isinstance(part, torch.Tensor) for part in parts
        ):
            self._aliasing[func] = True
            return result
        inputs = {t.untyped_storage()._cdata for t in _tensors([*args, *kwargs.values()])}
        if any(t.untyped_storage()._cdata in inputs for t in _tensors(parts)):
            self._aliasing[func] = True  # though its schema does not declare it
            return result
        kind = torch.Tensor if isinstance(result, torch.Tensor) else type(result)
        self._results[key] = kind, [None if part is None else _shape(part) for part in parts]
        return result

    def _run_in_place(
        self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operation that changes an argument, unless it is known to keep all shapes."""
        if self._in_place.get(key):
            return args[0]
        before = [_storage_layout(tensor) for tensor in _tensors(args)]
        result = func(*args, **kwargs)
        after = [_storage_layout(tensor) for tensor in _tensors(args)]
        self._in_place[key] = result is args[0] and before == after
        return result

    def _aliases(self, func: Any) -> bool:
        """Whether results share storage with an argument, as those of views and in-place ops do."""
        if func not in self._aliasing:
            named = (*func._schema.arguments, *func._schema.returns)
            self._aliasing[func] = any(each.alias_info is not None for each in named)
        return self._aliasing[func]


def _shape(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), {"dtype": tensor.dtype, "device": "meta"}


def _storage_layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.untyped_storage()._cdata, tensor.shape, tensor.stride()


def _shape_key(value: Any) -> Any:
    """Equal for arguments whose results have the same shapes."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, tuple | list):
        return tuple(_shape_key(item) for item in value)
    return type(value), value


def _tensors(values: tuple[Any, ...] | list[Any]) -> list[torch.Tensor]:
    """All tensors among arguments or results, nested lists included."""
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


def _grouped_product(
    left: torch.Tensor,
    right: torch.Tensor,
    offsets: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The product of each group of rows with its own matrix, as mixtures of experts compute it.

    On the meta device torch accepts only bfloat16, though real devices compute in any precision.
    """
    shape: tuple[int, ...] = (left.shape[-2], right.shape[-1])
    if left.ndim == right.ndim == 2:  # the gradient of the matrices: one per group
        assert offsets is not None
        shape = (offsets.shape[0], *shape)
    elif left.ndim == right.ndim:
        shape = (left.shape[0], *shape)
    return torch.empty(shape, dtype=out_dtype or left.dtype, device="meta")


def _mask_to_indices(indices: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Boolean masks as index tensors: on the meta device the size of a masked result is unknown."""
    converted: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype is torch.bool and not index.is_meta:
            converted += index.nonzero().unbind(1)
        else:
            converted.append(index)
    return converted


def _keeps_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether integers would be moved to, or created on, the meta device."""
    if torch.device(kwargs["device"] or "cpu").type != "meta":
        return False
    dtype = kwargs.get("dtype")
    if dtype is not None and dtype.is_floating_point:
        return False
    first = args[0] if args else None
    if isinstance(first, torch.Tensor):
        return not first.is_meta and not first.is_floating_point()
    return dtype is not None or func in _INTEGER_FACTORIES


def _flops(func: Any, args: tuple[Any, ...], result: Any) -> int:
    """Floating-point operations of matrix products, convolutions and attention."""
    if func in (aten.mm.default, aten.bmm.default):
        return 2 * int(args[0].numel()) * int(args[1].shape[-1])
    if func.name() == FOUR_BIT_PRODUCT:
        return 2 * int(args[0].numel()) * int(args[2][0])
    if func is aten._grouped_mm.default:
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
    """While the block runs, attention on meta tensors uses the fused kernel of a real device.

    Otherwise torch falls back to matrix products there, which store the whole attention matrix.
    """
    functional: Any = torch.nn.functional
    functional.scaled_dot_product_attention = _attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = ATTENTION


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    """`scaled_dot_product_attention`; `options` are its `scale` and `enable_gqa`."""
    fusable = query.is_meta and query.ndim == 4 and dropout_p == 0.0
    fusable = fusable and query.shape[-1] == key.shape[-1] == value.shape[-1]
    fusable = fusable and not (attn_mask is not None and attn_mask.requires_grad)
    if not fusable:
        return ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, **options)
    if attn_mask is not None and not attn_mask.is_floating_point():
        attn_mask = torch.empty(attn_mask.shape, dtype=query.dtype, device="meta")
    fused: Any = aten._scaled_dot_product_flash_attention_for_cpu
    output: torch.Tensor = fused(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=options.get("scale")
    )[0]
    return output
