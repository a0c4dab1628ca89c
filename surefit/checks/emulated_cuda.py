"""Names of CUDA for the emulated device, which torch itself knows as meta.

While `CudaNames` is entered, `device="cuda"` and `.cuda()` mean the emulated device, and the user's
code sees that CUDA is available. So does code that asked before: where its files choose a device by
`is_available()`, a device of the CPU that is not written where it is used stands for the GPU.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

META, CUDA, CPU = torch.device("meta"), torch.device("cuda", 0), torch.device("cpu")
_TYPE = "torch.cuda."
_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)
"""Make a tensor of values of the host, before any operation could see them."""


class CudaNames(TorchFunctionMode):
    """Translates devices in calls of torch."""

    def __init__(self, is_own: Callable[[str], bool], note_wait: Callable[[str], None]) -> None:
        """`is_own(file)`: the file is the user's; `note_wait(what)`: the user's code waits."""
        super().__init__()
        self._is_own, self._note_wait = is_own, note_wait
        self._follows: bool | None = None
        self._originals: list[tuple[str, Any]] = []

    def __enter__(self) -> CudaNames:
        real = torch.cuda.is_available

        def is_available() -> bool:
            return True if self._is_own(sys._getframe(1).f_code.co_filename) else real()

        def synchronize(device: Any = None) -> None:
            self._note_wait("waits for all work of the device")

        for changed in (is_available, synchronize):
            self._originals.append((changed.__name__, getattr(torch.cuda, changed.__name__)))
            setattr(torch.cuda, changed.__name__, changed)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        while self._originals:
            setattr(torch.cuda, *self._originals.pop())

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0].to(META)
        if func is torch.Tensor.type and len(args) > 1 and str(args[1]).startswith(_TYPE):
            dtype = torch.empty(0).type(f"torch.{args[1].removeprefix(_TYPE)}").dtype
            return args[0].to(META, dtype)
        caller = sys._getframe(1)
        if kwargs.get("device") is not None:
            kwargs["device"] = self._translated(kwargs["device"], caller)
        elif func is torch.Tensor.to and len(args) > 1:
            args = (args[0], self._translated(args[1], caller), *args[2:])
        if func in _FROM_DATA and kwargs.get("device") == META:
            return func(*args, **{**kwargs, "device": CPU}).to(META)
        if func is torch.Tensor.new_tensor and "device" not in kwargs:
            dtype = kwargs.get("dtype") or args[0].dtype
            return torch.tensor(args[1], dtype=dtype).to(META if args[0].is_cuda else CPU)
        return func(*args, **kwargs)

    def _translated(self, value: Any, caller: FrameType) -> Any:
        """The emulated device for one that stands for CUDA; anything else as it is."""
        if isinstance(value, bool) or not isinstance(value, str | int | torch.device):
            return value
        kind = torch.device(value).type if not isinstance(value, int) else "cuda"
        meant = kind == "cuda" or (kind == "cpu" and self._stands_for_cuda(caller))
        return META if meant else value

    def _stands_for_cuda(self, caller: FrameType) -> bool:
        """Whether the CPU is the choice of `is_available()`, made on a machine without CUDA."""
        file = caller.f_code.co_filename
        if not self._is_own(file) or "cpu" in linecache.getline(file, caller.f_lineno):
            return False
        if self._follows is None:
            files = {str(getattr(module, "__file__", None)) for module in [*sys.modules.values()]}
            self._follows = any(_asks_for_cuda(each) for each in files if self._is_own(each))
        return self._follows


def _asks_for_cuda(file: str) -> bool:
    with suppress(OSError):
        return "is_available()" in Path(file).read_text(encoding="utf-8", errors="replace")
    return False
