"""Runs a model on the meta device as on a real one, and counts the bytes of its live tensors.

Weights, activations and gradients are on the meta device, where tensors have shapes and no memory.
Integers (token ids, masks, positions) keep their values: they are small, and models branch on them
(is anything padded? which positions are labelled?), which decides what is allocated.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from surefit.speed.precision import traced_precision

aten = torch.ops.aten
ATTENTION = functional.scaled_dot_product_attention
_INDEXING = (
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
)
FOUR_BIT_PRODUCT = "bitsandbytes::gemm_4bit"
LARGEST_ON_HEAP = 32 * 1024 * 1024
"""glibc maps larger blocks one by one, and returns them to the system when they are freed."""
MOST_REPEATS = 20
"""A loop over time steps allocates the same few blocks again and again, which leaves no holes."""
_INTEGER_FACTORIES = (aten.arange.default, aten.arange.start, aten.arange.start_step)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all live storages, their peak, and the work done."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.gradients = self.gradients_at_peak = 0
        """Live bytes of gradients, maintained by the caller, and what they were at the peak."""
        self.flops = self.moved_bytes = self.num_ops = 0
        self._storages: dict[int, weakref.ref[Any]] = {}
        self._blocks: dict[int, _Blocks] = {}

    @property
    def heap_bytes(self) -> int:
        """Bytes allocated on malloc's heap in all, up to MOST_REPEATS times the live ones."""
        return sum(
            size * min(blocks.allocated, MOST_REPEATS * blocks.most)
            for size, blocks in self._blocks.items()
            if size < LARGEST_ON_HEAP
        )

    def add(self, tensor: torch.Tensor) -> int:
        """Count the storage of a tensor until it is freed; returns its bytes, 0 if it is known."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return 0
        blocks = self._blocks.setdefault(size, _Blocks())

        def freed(_: Any) -> None:
            del self._storages[key]
            self.live -= size
            blocks.live -= 1

        self._storages[key] = weakref.ref(storage, freed)
        blocks.add()
        self.grow(size)
        return size

    def grow(self, size: int) -> None:
        """Count bytes that stay until the end of the trace."""
        self.live += size
        if self.live > self.peak:
            self.peak, self.gradients_at_peak = self.live, self.gradients

    def hide(self, tensor: torch.Tensor) -> None:
        """Never count the storage of a tensor: the caller does."""
        key = tensor.untyped_storage()._cdata
        self._storages[key] = weakref.ref(
            tensor.untyped_storage(), lambda _: self._storages.pop(key, None)
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
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
        else:
            result = func(*args, **kwargs)
        self.num_ops += 1
        if isinstance(result, torch.Tensor):
            new = self.add(result)
        else:
            new = sum(self.add(tensor) for tensor in _tensors((result,)))
        if True in devices:
            self.moved_bytes += new
            self.flops += _flops(func, args, kwargs, result)
        return result


class _Blocks:
    """How many blocks of one size were allocated, are live, and were live at most."""

    def __init__(self) -> None:
        self.allocated = self.live = self.most = 0

    def add(self) -> None:
        """Count one more block."""
        self.allocated += 1
        self.live += 1
        self.most = max(self.most, self.live)


def _tensors(values: tuple[Any, ...] | list[Any]) -> list[torch.Tensor]:
    """Return all tensors among arguments or results, nested lists included."""
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
    """Return the product of each group of rows with its own matrix, as mixtures of experts compute
    it.

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
    """Return whether integers would be moved to, or created on, the meta device."""
    if torch.device(kwargs["device"] or "cpu").type != "meta":
        return False
    dtype = kwargs.get("dtype")
    if dtype is not None and dtype.is_floating_point:
        return False
    first = args[0] if args else None
    if isinstance(first, torch.Tensor):
        return not first.is_meta and not first.is_floating_point()
    return dtype is not None or func in _INTEGER_FACTORIES


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Floating-point operations of matrix products, convolutions and attention."""
    if func.overloadpacket in flop_registry:
        return int(flop_registry[func.overloadpacket](*args, **kwargs, out_val=result))
    if func.name() == FOUR_BIT_PRODUCT:
        return 2 * int(args[0].numel()) * int(args[2][0])
    if func is aten._grouped_mm.default:
        return 2 * int(args[0].numel()) * int(args[1].shape[-1])
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
    owner: Any = functional
    owner.scaled_dot_product_attention = _attention
    try:
        yield
    finally:
        owner.scaled_dot_product_attention = ATTENTION


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


_IN_LOWER_PRECISION = (
    (functional, "linear"),
    (functional, "conv1d"),
    (functional, "conv2d"),
    (functional, "scaled_dot_product_attention"),
    (torch, "matmul"),
    (torch.Tensor, "matmul"),
    (torch.Tensor, "__matmul__"),
    (torch, "bmm"),
    (torch, "addmm"),
    (torch, "baddbmm"),
    (torch, "einsum"),
)
"""Matrix products and convolutions, which autocast computes in the lower precision."""

_IN_FLOAT32 = (
    (functional, "layer_norm"),
    (functional, "softmax"),
    (functional, "log_softmax"),
    (functional, "cross_entropy"),
)
"""Sums and exponentials, which autocast computes in float32. Other operations keep the dtype of
their arguments."""


@contextmanager
def meta_autocast(dtype: torch.dtype | None) -> Iterator[None]:
    """While the block runs, apply the casts of `torch.autocast`, which ignores the meta device.

    Matrix products are computed in `dtype`; weights are cast once.
    A model's own `torch.autocast` for the device of its weights, which fails there, does nothing.
    """
    originals: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, changed: Any) -> None:
        originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, changed)

    put(torch, "autocast", _ignoring_meta(torch.autocast))
    if dtype is not None:
        casts = (_IN_LOWER_PRECISION, _Caster(dtype)), (_IN_FLOAT32, _Caster(torch.float32))
        for functions, cast in casts:
            for owner, name in functions:
                put(owner, name, _casting(getattr(owner, name), cast))
    try:
        with traced_precision(dtype):
            yield
    finally:
        for owner, name, original in reversed(originals):
            setattr(owner, name, original)


def _ignoring_meta(autocast: Any) -> Callable[..., Any]:
    def on_device(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return nullcontext() if device_type == "meta" else autocast(device_type, *args, **kwargs)

    return on_device


class _Caster:
    """Casts floating-point tensors to one dtype; a cast weight is cached, as autocast does it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.cast_weights: dict[int, torch.Tensor] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self(item) for item in value)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if not isinstance(value, torch.nn.Parameter):
            return value.to(self.dtype)
        if id(value) not in self.cast_weights:
            self.cast_weights[id(value)] = value.to(self.dtype)
        return self.cast_weights[id(value)]


def _casting(original: Callable[..., Any], cast: _Caster) -> Callable[..., Any]:
    @wraps(original)
    def casting(*args: Any, **kwargs: Any) -> Any:
        return original(*cast(args), **{key: cast(value) for key, value in kwargs.items()})

    return casting
