"""Code of one's own that breaks or waits on a GPU, found by running it before there is one.

The module's real forward runs on a few rows on an emulated device (`emulated_device.py`), and again
in the mixed precision that is planned. Findings name the line of the user's code.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from surefit.errors import describe_error
from surefit.findings import Finding, rule
from surefit.kernels.preserve_state import preserved_state

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.checks.emulated_device import Place, Seen

CPU_TENSOR_IN_FORWARD = rule(
    "SF735",
    "error",
    "forward combines tensors of the CPU and the GPU",
    why="Data and weights are on the GPU; torch does not combine tensors of two devices.",
    fix="Make it where the data is, torch.zeros(…, device=x.device), or keep it in a buffer: "
    "self.register_buffer(name, tensor).",
)

HOST_WAITS = rule(
    "SF736",
    "warning",
    "forward waits for the GPU",
    why="A GPU computes while the host goes on. Reading a value makes the host wait in each step.",
    fix="Compute with tensors instead of numbers (torch.where for if, masked sums for x[mask]), or "
    "do it outside of forward.",
)

MIXED_PRECISION_FAILS = rule(
    "SF737",
    "error",
    "forward fails in mixed precision",
    why="Matrix products give results in the lower precision, which operations that need equal "
    "dtypes do not combine with float32.",
    fix="Cast where they meet, value.to(other.dtype), or train in float32: --set precision=fp32.",
)

NUMPY_OF_DEVICE = rule(
    "SF739",
    "error",
    "forward makes a NumPy array of a GPU's tensor",
    why="NumPy reads the memory of the host only; torch raises a TypeError.",
    fix="Compute with torch instead of NumPy.",
)

NOT_EMULATED = rule(
    "SF738",
    "info",
    "forward could not be tried as on a GPU",
    why="It was run with tensors that only say that they are on another device.",
    fix="Nothing to do; try one step on the GPU first.",
)

ON_HOST_FIX = "Pass them as torch requires: lengths.cpu()."
LIBRARIES = ("torch.", "transformers.", "peft.", "bitsandbytes.", "surefit.")
MAX_WEIGHTS = 500_000_000
Forward = Callable[[Any, Mapping[str, Any]], Any]
"""`forward(model, batch)`: the outputs, where `model` is called as the module would be."""


def has_own_code(module: nn.Module) -> bool:
    """Whether a part of the module is the user's, and not a library's."""
    return not all(type(part).__module__.startswith(LIBRARIES) for part in module.modules())


def check_device_code(
    module: nn.Module, forward: Forward, batch: Mapping[str, Any], dtype: torch.dtype | None
) -> list[Finding]:
    """What the module's own code would do on a GPU; `dtype` is that of mixed precision."""
    size = sum(parameter.numel() for parameter in module.parameters())
    if not has_own_code(module) or size > MAX_WEIGHTS:
        return []
    with preserved_state(module):
        found = _on_device(module, forward, batch)
        lines = [each.where for each in found]
        lower = _in_mixed_precision(module.train(), forward, batch, dtype)
        return [*found, *(each for each in lower if each.where not in lines)]


def _on_device(module: nn.Module, forward: Forward, batch: Mapping[str, Any]) -> list[Finding]:
    import torch
    from torch.func import functional_call

    from surefit.checks.emulated_device import Watch
    from surefit.memory.meta_autocast import meta_autocast

    watch = Watch()
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    held: dict[str, torch.Tensor] = {
        name: watch.move(tensor.clone()) for name, tensor in named.items()
    }
    moved = {n: watch.move(v) if isinstance(v, torch.Tensor) else v for n, v in batch.items()}

    def emulated() -> None:
        with meta_autocast(None), watch:
            forward(lambda **given: functional_call(module, held, (), given), moved)

    failed = _failure(emulated, nullcontext(module.train()))
    num_in_training = len(watch.seen)
    failed_in_evaluation = _failure(emulated, nullcontext(module.eval()))
    seen = [  # evaluation may wait; it is all there is where few rows fail in a batch norm
        each
        for number, each in enumerate(watch.seen)
        if failed or number < num_in_training or each.kind != "waits"
    ]
    errors = [error for error in (failed, failed_in_evaluation) if error is not None]
    refused = [each for error in errors for each in _refused(error)]
    found = [_finding(each) for each in dict.fromkeys([*seen, *refused])]
    if failed_in_evaluation is not None and not found:
        tried = "was not tried" if failed else "was not tried in evaluation"
        message = f"The forward of {type(module).__name__} {tried}: "
        return [NOT_EMULATED.finding((message + describe_error(failed_in_evaluation))[:300])]
    return found


def _finding(seen: Seen) -> Finding:
    rules = {"waits": HOST_WAITS, "numpy": NUMPY_OF_DEVICE}
    found = rules.get(seen.kind, CPU_TENSOR_IN_FORWARD)
    fix = ON_HOST_FIX if seen.kind == "host" else ""
    return found.finding(_said(seen.place, seen.what), fix=fix, **_where(seen.place))


def _refused(error: Exception) -> list[Seen]:
    """An error of torch itself that names the two devices."""
    from surefit.checks.emulated_device import Seen

    message, place = describe_error(error), _own_frame(error)
    named = all(re.search(rf"\b{device}\b", message) for device in ("device", "meta", "cpu"))
    if place is None or not named:
        return []
    return [Seen("mixed", place, f"fails: {message.replace('meta', 'cuda:0')[:200]}")]


def _in_mixed_precision(
    module: nn.Module, forward: Forward, batch: Mapping[str, Any], dtype: torch.dtype | None
) -> list[Finding]:
    """Run it under autocast on this machine, if it can compute so."""
    import torch

    from surefit.checks.half_precision_trial import why_not

    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    device = next((parameter.device.type for parameter in module.parameters()), "cpu")
    if dtype is None or (device == "cpu" and why_not(names[dtype]) is not None):
        return []
    with torch.backends.mkldnn.flags(enabled=False):  # oneDNN refuses LSTMs that a GPU computes
        failed = _failure(lambda: forward(module, batch), torch.autocast(device, dtype))
    if failed is None or _failure(lambda: forward(module, batch), nullcontext()) is not None:
        return []  # what fails in float32 as well is no matter of the precision
    place = _own_frame(failed)
    if place is None:
        return []
    message = _said(place, f"{describe_error(failed)[:200]} (precision {names[dtype]})")
    return [MIXED_PRECISION_FAILS.finding(message, **_where(place))]


def _failure(run: Callable[[], Any], within: AbstractContextManager[Any]) -> Exception | None:
    import torch

    try:
        with torch.no_grad(), within:
            run()
    except Exception as error:  # the module's own code may fail in any way
        return error
    return None


def _own_frame(error: BaseException) -> Place | None:
    """The line of the user's code that a traceback ends in."""
    from surefit.checks.emulated_device import Place, own_line

    frames = traceback.extract_tb(error.__traceback__)
    return own_line(Place(frame.filename, frame.lineno or 0) for frame in reversed(frames))


def _said(place: Place, what: str) -> str:
    import linecache

    code = linecache.getline(place.file, place.line).strip()
    return f"{place.file}:{place.line}: {code!r} {what}."


def _where(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line}
