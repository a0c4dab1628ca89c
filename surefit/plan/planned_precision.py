"""The precision that a run computes in on the device that it is planned for."""

from __future__ import annotations

from collections.abc import Iterator

from surefit.checks.machine import resolve_precision
from surefit.findings import Finding, rule
from surefit.memory.devices import find_device

BF16_EMULATED = rule(
    "SF410",
    "warning",
    "bf16 on a device that emulates it",
    why="Devices before Ampere have no bf16 arithmetic. They emulate it, much slower than fp16.",
    fix="Leave out precision, or set precision=fp16.",
    accept="The run computes in emulated bf16.",
)


def planned_precision(precision: str, device_memory_gb: float | None, device: str | None) -> str:
    """`fp32`, `bf16` or `fp16`: what `auto` is on the planned device, which may be elsewhere."""
    import torch

    is_elsewhere = device_memory_gb is not None and not torch.cuda.is_available()
    if precision == "auto" and (device is not None or is_elsewhere):
        return "bf16" if device is None or find_device(device).bf16 else "fp16"
    return resolve_precision(precision)


def check_emulated(precision: str, device: str | None) -> Iterator[Finding]:
    """A warning where bf16 is asked for and the planned device only emulates it."""
    import torch

    if device is not None:
        emulates, name = not find_device(device).bf16, device
    else:
        here = torch.cuda.is_available()
        emulates = here and not torch.cuda.is_bf16_supported(including_emulation=False)
        name = torch.cuda.get_device_name() if here else ""
    if precision == "bf16" and emulates:
        yield BF16_EMULATED.finding(f"precision is bf16, which {name} only emulates.")
