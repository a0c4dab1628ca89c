"""Waits for what the devices of several processes do together, in a place that the watchdog knows.

Collectives on a device (NCCL) return before they are done. A process meets the others where it
first reads a result: inside of torch, at full processor load, and deaf to signals. So it waits here
before it reads. The watchdog knows this place from all others, and signals are heard.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate import Accelerator

LATE_SHARE = 0.01
"""How much longer than needed a process may wait, as a share of the time it has waited."""
LONGEST_PAUSE_SECONDS = 0.1


def wait_for_devices(accelerator: Accelerator) -> None:
    """Wait until the device has done all it was asked for, together with those of the others.

    One process waits for nobody, and a CPU has done it already.
    """
    if accelerator.num_processes == 1 or accelerator.device.type == "cpu":
        return
    import torch

    done = torch.Event(accelerator.device)
    done.record()
    began = time.perf_counter()
    while not done.query():
        waited = time.perf_counter() - began
        time.sleep(min(LATE_SHARE * waited, LONGEST_PAUSE_SECONDS))
