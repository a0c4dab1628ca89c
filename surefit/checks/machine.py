"""What the config asks of the machine, against what the machine has."""

from __future__ import annotations

from collections.abc import Sequence

from surefit.errors import UsageError


def check_machine(precision: str, trackers: Sequence[str]) -> None:
    """Refuse, before anything is written, what this machine does not have."""
    import torch

    if precision == "fp16" and not torch.cuda.is_available():
        raise UsageError("precision=fp16 needs CUDA.", "Use bf16 or fp32 here.")
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


def device_name() -> str:
    """What the model will be trained on, as the user knows it."""
    import torch

    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name()})"
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    threads = torch.get_num_threads()
    return device.type if device else f"cpu ({threads} thread{'s' if threads > 1 else ''})"
