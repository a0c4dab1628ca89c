"""What the config and the launcher ask of the machine, against what the machine has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from surefit.errors import SurefitError, UsageError
from surefit.findings import Finding, rule
from surefit.memory.limit import find_device
from surefit.processes import on_cpu
from surefit.speed.precision import HALF, emulates_bf16, lower_dtype, resolve_precision

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

BF16_EMULATED = rule(
    "SF410",
    "warning",
    "bf16 on a device that emulates it",
    why="Devices before Ampere have no bf16 arithmetic. They emulate it, much slower than fp16.",
    fix="Leave out precision, or set precision=fp16.",
    accept="The run computes in emulated bf16.",
)

WhyNot = Callable[[str], str | None]
"""The reason why the CPU cannot compute in `bf16` or `fp16`, or None."""


def check_machine(precision: str, trackers: Sequence[str], why_not: WhyNot | None = None) -> None:
    """Refuse, before anything is written, what this machine does not have."""
    import torch

    check_launcher(resolve_precision(precision))
    if precision == "fp16" and not torch.cuda.is_available():
        raise UsageError("precision=fp16 needs CUDA.", "Use bf16 or fp32 here.")
    if precision in HALF and (on_cpu() or not torch.accelerator.is_available()):
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


def planned_precision(precision: str, device_memory_gb: float | None, device: str | None) -> str:
    """`fp32`, `bf16` or `fp16`: what `auto` is on the planned device, which may be elsewhere."""
    import torch

    is_elsewhere = device_memory_gb is not None and not torch.cuda.is_available()
    if precision == "auto" and (device is not None or is_elsewhere):
        return "bf16" if device is None or find_device(device).bf16 else "fp16"
    return resolve_precision(precision)


def check_emulated(precision: str, device: str | None) -> Iterator[Finding]:
    """Yield a warning where bf16 is asked for and the planned device only emulates it."""
    if precision == "bf16" and (
        emulates_bf16() if device is None else not find_device(device).bf16
    ):
        import torch

        name = device or torch.cuda.get_device_name()
        yield BF16_EMULATED.finding(f"precision is bf16, which {name} only emulates.")


def usable_precision(precision: str, why_not: WhyNot | None = None) -> str:
    """Return the precision if this machine computes in it, else fp32."""
    precision = resolve_precision(precision)
    try:
        check_machine(precision, (), why_not)
    except SurefitError:
        return "fp32"
    return precision


def check_weights(module: nn.Module, why_not: WhyNot | None = None) -> None:
    """Refuse weights in half precision, such as a Python object may have, on a CPU without it."""
    held = {p.dtype for p in module.parameters() if p.device.type == "cpu"}
    for precision in (each for each in HALF if lower_dtype(each) in held):
        fix = "Convert the model to float32: model.float()."
        _refuse_half(precision, f"the model has weights in {precision}", why_not, fix)


def _refuse_half(precision: str, said: str, why_not: WhyNot | None, fix: str = "") -> None:
    from surefit.checks import half_precision_trial

    reason = (why_not or half_precision_trial.why_not)(precision)
    if reason is not None:
        raise PRECISION_UNSUPPORTED.error(
            f"This CPU cannot compute in {precision}, but {said}: {reason}.", fix=fix
        )


def device_name() -> str:
    """Return what the model will be trained on, as the user knows it."""
    import torch

    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name()})"
    here = torch.accelerator.is_available() and not on_cpu()
    device = torch.accelerator.current_accelerator() if here else None
    threads = torch.get_num_threads()
    return device.type if device else f"cpu ({threads} thread{'s' if threads > 1 else ''})"


PREFIX = "ACCELERATE_"
"""How the environment variables of `accelerate launch` begin."""
HARMLESS = ("USE_CPU", "USE_MPS_DEVICE", "USE_XPU")
"""Devices, which surefit finds by itself."""
ENGINES = {
    "USE_FSDP": "FSDP",
    "USE_DEEPSPEED": "DeepSpeed",
    "USE_MEGATRON_LM": "Megatron-LM",
    "USE_PARALLELISM_CONFIG": "a parallelism config",
}
"""What accelerate can train with, by the end of its variable."""
ON = ("true", "1", "yes", "on")


def check_launcher(precision: str, environment: Mapping[str, str] | None = None) -> None:
    """Refuse what `accelerate launch` was asked for and would not happen.

    >>> check_launcher("fp32", {"ACCELERATE_USE_DEEPSPEED": "true"})
    Traceback (most recent call last):
    ...
    surefit.errors.UsageError: accelerate launch was asked for DeepSpeed, which ...
    """
    given = os.environ if environment is None else environment
    asked = {
        name.removeprefix(PREFIX): value.strip().lower()
        for name, value in given.items()
        if name.startswith(PREFIX)
    }
    # Of several processes on CPUs it starts one, and leaves the others to mpirun.
    if asked and given.get("MASTER_ADDR") and "WORLD_SIZE" not in given:
        raise UsageError(
            "accelerate launch was asked for several processes on CPUs, but has not said how many, "
            "so that each would train alone.",
            "Launch with surefit train --processes N, or with torchrun.",
        )
    for name, value in sorted(asked.items()):
        if name.startswith("USE_") and name not in HARMLESS and value in ON:
            raise UsageError(
                f"accelerate launch was asked for {ENGINES.get(name, name)}, which surefit "
                "does not take from there.",
                "Leave it out of the command or of accelerate's config (accelerate config shows "
                "it), or launch with torchrun or surefit train --processes N. To shard the model: "
                "--set parallel=fsdp.",
            )
    for name, means_nothing, setting in (
        ("MIXED_PRECISION", ("no", precision), "--set precision={}"),
        ("GRADIENT_ACCUMULATION_STEPS", ("1", "auto"), "--grad-accum {}"),
        ("DYNAMO_BACKEND", ("no",), "--set compile=on"),
        ("GRADIENT_CLIPPING", ("none",), "--set clip={}"),
    ):
        value = asked.get(name, means_nothing[0])
        if value not in means_nothing:
            option = name.lower()
            raise UsageError(
                f"accelerate launch was asked for {option} {value}, which surefit does not take "
                "from there.",
                f"Say it to surefit: {setting.format(value)}; and leave it out of accelerate's.",
            )
