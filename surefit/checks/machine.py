"""What the config asks of the machine, against what the machine has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from surefit.checks.launcher import check_launcher
from surefit.errors import SurefitError, UsageError
from surefit.findings import rule
from surefit.processes import on_cpu

if TYPE_CHECKING:
    from torch import nn

PRECISION_UNSUPPORTED = rule(
    "SF408",
    "error",
    "this CPU cannot compute in half precision",
    why=(
        "Some CPUs announce instructions for bf16 or fp16 that they cannot execute: the system "
        "kills the process at the first matrix product."
    ),
    fix="Train in float32: --set precision=fp32.",
)

WhyNot = Callable[[str], str | None]
"""The reason why the CPU cannot compute in `bf16` or `fp16`, or None."""


def check_machine(precision: str, trackers: Sequence[str], why_not: WhyNot | None = None) -> None:
    """Refuse, before anything is written, what this machine does not have."""
    import torch

    check_launcher(resolve_precision(precision))
    if precision == "fp16" and not torch.cuda.is_available():
        raise UsageError("precision=fp16 needs CUDA.", "Use bf16 or fp32 here.")
    if precision in ("bf16", "fp16") and (on_cpu() or not torch.accelerator.is_available()):
        _refuse_half(precision, f"precision is {precision}", why_not)
    if not trackers:
        return
    from accelerate.tracking import get_available_trackers  # takes a second

    available = [str(tracker) for tracker in get_available_trackers()]
    for tracker in trackers:
        if tracker not in available:
            raise UsageError(
                f"The tracker {tracker!r} is not available; installed are: "
                f"{', '.join(available) or 'none'}.",
                f"Install it (pip install {tracker}), or leave it out.",
            )


def resolve_precision(precision: str) -> str:
    """The precision that a run computes in on this machine.

    `auto` is bf16 on CUDA, fp16 on CUDA devices that only emulate bf16 (before Ampere), else fp32.
    """
    import torch

    if precision != "auto":
        return precision
    if not torch.cuda.is_available():
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def usable_precision(precision: str, why_not: WhyNot | None = None) -> str:
    """The precision if this machine computes in it, else fp32."""
    precision = resolve_precision(precision)
    try:
        check_machine(precision, (), why_not)
    except SurefitError:
        return "fp32"
    return precision


def check_weights(module: nn.Module, why_not: WhyNot | None = None) -> None:
    """Refuse weights in half precision, such as a Python object may have, on a CPU without it."""
    import torch

    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    for dtype in {p.dtype for p in module.parameters() if p.device.type == "cpu"} & names.keys():
        fix = "Convert the model to float32: model.float()."
        _refuse_half(names[dtype], f"the model has weights in {names[dtype]}", why_not, fix)


def _refuse_half(precision: str, said: str, why_not: WhyNot | None, fix: str = "") -> None:
    from surefit.checks import half_precision_trial

    reason = (why_not or half_precision_trial.why_not)(precision)
    if reason is not None:
        raise PRECISION_UNSUPPORTED.error(
            f"This CPU cannot compute in {precision}, but {said}: {reason}.", fix=fix
        )


def device_name() -> str:
    """What the model will be trained on, as the user knows it."""
    import torch

    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name()})"
    here = torch.accelerator.is_available() and not on_cpu()
    device = torch.accelerator.current_accelerator() if here else None
    threads = torch.get_num_threads()
    return device.type if device else f"cpu ({threads} thread{'s' if threads > 1 else ''})"
