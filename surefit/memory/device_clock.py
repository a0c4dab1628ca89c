"""A clock for work on a device, which goes on after the call that started it has returned."""

from __future__ import annotations

import time


def device_seconds() -> float:
    """Seconds on a clock, read once the device has finished all it was asked to do."""
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()
