"""A device that is not there: tensors with values, which may not be mixed with those of the CPU.

An `OnDevice` tensor is on the meta device for torch and on CUDA for code that asks
(`emulated_cuda.py`), and computes on a CPU tensor inside. Under `Watch` a module's real forward
runs as it would on a GPU: a tensor that was made on the CPU meets one that is on the device,
`.item()` makes the host wait. Both are noted with the line of code, and then computed all the same.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from surefit.checks.emulated_cuda import CPU, CUDA, META, CudaNames

aten = torch.ops.aten
_CALLED = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), "<")
"""Files of surefit, of torch and generated code: what they do, their caller does."""
_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})
_COPIES = (aten._to_copy.default, aten.copy_.default, aten.to.device, aten.to.dtype_layout)
_INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)
"""Take indices on the CPU as well; with a mask, the host waits for the size of the result."""
_WAITING = {
    aten._local_scalar_dense.default: "reads a value (.item(), float(), bool() or a comparison)",
    aten.nonzero.default: "needs the number of nonzero values",
    aten.masked_select.default: "needs the number of selected values",
    aten._unique2.default: "needs the number of distinct values",
    aten.unique_consecutive.default: "needs the number of distinct values",
    aten.unique_dim.default: "needs the number of distinct values",
    aten.equal.default: "reads a value (torch.equal)",
    aten.allclose.default: "reads a value (torch.allclose)",
    aten.bincount.default: "needs the largest value",
    aten.repeat_interleave.Tensor: "needs the sum of the repeats (give output_size=)",
}
_NO_SCALARS = ("tensors", "index", "indices")
"""Parameters of operations whose tensors are all on the device, also those without dimensions."""
_COUNTS_ON_HOST = (aten._pack_padded_sequence.default, aten._pad_packed_sequence.default)
"""Lengths of sequences, their second argument and second result, are on the CPU everywhere."""


@dataclass(frozen=True)
class Place:
    """A line of the user's code."""

    file: str
    line: int


@dataclass(frozen=True)
class Seen:
    """What happened on a line: `mixed` devices, the host `waits`, or `numpy`; and in words."""

    kind: str
    place: Place
    what: str


class OnDevice(torch.Tensor):
    """A tensor on the emulated device, with its values."""

    inside: torch.Tensor
    watch: Watch
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, real: torch.Tensor, watch: Watch) -> OnDevice:
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=META,
        )
        made.inside, made.watch = real, watch
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        watch = next(t for t in _tensors((args, kwargs)) if isinstance(t, OnDevice)).watch
        return watch.compute(func, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        """As it is after `.cpu()`, without which a GPU's tensor has none."""
        self.watch.note("numpy", "makes a NumPy array of a tensor of the device")
        return self.inside.detach().numpy()

    def tolist(self) -> Any:
        """As it is after `.cpu()`."""
        self.watch.note("waits", "copies values to the host (.tolist())")
        return self.inside.tolist()

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The tensor on the host."""
        self.watch.note("waits", "copies a tensor to the host (.cpu())")
        return self.inside

    def cuda(self, *args: Any, **kwargs: Any) -> OnDevice:
        """It is on the device already."""
        return self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """What a GPU's tensor says."""
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """What a GPU's tensor says."""
        return True

    def get_device(self) -> int:
        """The number of the GPU."""
        return 0

    def type(self, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The name that a GPU's tensor has, or the tensor in another dtype."""
        if dtype is None:
            return self.inside.type().replace("torch.", "torch.cuda.")
        return super().type(dtype, *args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        self.watch.note("waits", "prints a tensor")
        return f"OnDevice({self.inside})"

    def __format__(self, spec: str) -> str:
        self.watch.note("waits", "prints a tensor")
        return format(self.inside, spec)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes on the emulated device, and notes what a real one would stumble over."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Seen] = []
        self._outer = sys._getframe(1)
        self._names = CudaNames(is_own, lambda what: self.note("waits", what))

    def __enter__(self) -> Watch:
        self._names.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._names.__exit__(*raised)

    def move(self, tensor: torch.Tensor) -> OnDevice:
        """A tensor of the CPU on the device."""
        return OnDevice(tensor.detach(), self)

    def note(self, kind: str, what: str) -> None:
        """Note what the user's code does; what libraries do by themselves is not theirs."""
        place = self._own_line()
        if place is not None and not any(s.kind == kind and s.place == place for s in self.seen):
            self.seen.append(Seen(kind, place, what))

    def _own_line(self) -> Place | None:
        frame: FrameType | None = sys._getframe(1)
        lines = []
        while frame is not None and frame is not self._outer:
            lines.append(Place(frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
        return own_line(lines)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.compute(func, args, kwargs or {})

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on the values, and put the results where a device would."""
        tensors = _tensors((args, kwargs))
        here = [t for t in tensors if not isinstance(t, OnDevice)]
        there = len(tensors) > len(here)
        asked = kwargs.get("device")
        wanted = None if asked is None else torch.device(asked)
        if there and wanted is not None and wanted.type == "cpu":
            self.note("waits", "copies a tensor to the host")
        if there and func in _WAITING and kwargs.get("output_size") is None:
            self.note("waits", _WAITING[func])
        if there and func in _INDEXING:
            self._note_mask(args)
        elif func in _COUNTS_ON_HOST:
            if isinstance(args[1], OnDevice):
                self.note("host", "needs lengths on the CPU; they are on the device")
        elif there and func not in _COPIES:
            self._note_mixed(func, args, kwargs)
        if wanted is not None:
            kwargs = {**kwargs, "device": CPU}
        stays = wanted == META if wanted is not None else there
        if func is aten.copy_.default:  # the first is written
            stays = isinstance(args[0], OnDevice)
        result = func(*tree_map(_values, args), **tree_map(_values, kwargs))
        if not stays:
            return result
        if func in _COUNTS_ON_HOST:
            return OnDevice(result[0], self), result[1]
        known = {id(t.inside): t for t in tensors if isinstance(t, OnDevice)}

        def placed(value: Any) -> Any:  # an operation in place returns its argument
            if not isinstance(value, torch.Tensor):
                return value
            return known[id(value)] if id(value) in known else OnDevice(value, self)

        return tree_map(placed, result)

    def _note_mask(self, args: tuple[Any, ...]) -> None:
        if any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1])):
            if len(args) > 2 and _tensors(args[2]) and not _tensors(args[2])[0].ndim:
                return  # x[mask] = 0 is a masked_fill
            self.note("waits", "selects by a mask, whose number of values the host waits for")

    def _note_mixed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Operations take scalars of the CPU, but neither as indices nor in lists of tensors."""
        name = func.overloadpacket.__name__
        given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
        for parameter, value in {**given, **kwargs}.items():
            scalars = parameter not in _NO_SCALARS or name.startswith("_foreach")
            for here in _tensors(value):
                if not isinstance(here, OnDevice) and (here.ndim or not scalars):
                    found = f"a tensor of the CPU {list(here.shape)}"
                    return self.note("mixed", f"{name} combines {found} with one of the device")
        return None


def is_own(file: str) -> bool:
    """Whether a file is the user's, and neither of surefit nor of a library."""
    return not file.startswith(_CALLED) and not _is_library(file)


def _is_library(file: str) -> bool:
    installed = {"site-packages", "dist-packages"} & {*Path(file).parts}
    return bool(installed) or file.startswith(_LIBRARIES)


def own_line(lines: Iterable[Place]) -> Place | None:
    """The user's line, of the lines that are executed, the innermost first.

    None where a library other than torch does it by itself.
    """
    found = next((place for place in lines if not place.file.startswith(_CALLED)), None)
    return None if found is None or _is_library(found.file) else found


def _values(value: Any) -> Any:
    return value.inside if isinstance(value, OnDevice) else value


def _tensors(value: Any) -> list[torch.Tensor]:
    """All tensors among arguments, nested lists and dicts included."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = [*value.values()]
    return [t for item in value for t in _tensors(item)] if isinstance(value, list | tuple) else []
