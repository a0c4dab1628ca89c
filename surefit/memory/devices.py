"""Devices that runs are planned for where they are not: their memory, and how fast they exchange.

`check --device NAME` uses it. Numbers are the makers' own; free memory is somewhat less, and
`--set device_memory_gb=…` says it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from surefit.errors import UsageError
from surefit.gigabytes import to_bytes


@dataclass(frozen=True)
class Device:
    """A kind of accelerator."""

    memory_gb: float
    exchange_gb_per_second: float
    """What one device sends to the others of its host: NVLink, or PCI Express."""

    def seconds_to_send(self, num_bytes: int) -> float:
        """How long so many bytes take to another device of the host."""
        return num_bytes / to_bytes(self.exchange_gb_per_second)


DEVICES = {
    "t4-16gb": Device(16, 16),
    "v100-16gb": Device(16, 150),
    "v100-32gb": Device(32, 150),
    "p100-16gb": Device(16, 16),
    "a10-24gb": Device(24, 32),
    "l4-24gb": Device(24, 32),
    "l40s-48gb": Device(48, 32),
    "rtx3090-24gb": Device(24, 32),
    "rtx4090-24gb": Device(24, 32),
    "rtx5090-32gb": Device(32, 64),
    "a6000-48gb": Device(48, 32),
    "a100-40gb": Device(40, 300),
    "a100-80gb": Device(80, 300),
    "h100-80gb": Device(80, 450),
    "h200-141gb": Device(141, 450),
    "b200-192gb": Device(192, 900),
    "mi250-128gb": Device(128, 200),
    "mi300x-192gb": Device(192, 448),
}


def find_device(name: str) -> Device:
    """The device of a name; another one is refused, with those that are known.

    >>> find_device("A100-80GB").memory_gb
    80
    """
    known = name.strip().lower().replace("_", "-").replace(" ", "-")
    if known in DEVICES:
        return DEVICES[known]
    near = get_close_matches(known, DEVICES, 1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(
        f"The device {name!r} is not known.",
        f"{hint}Known are {', '.join(DEVICES)}; for any other: --set device_memory_gb=….",
    )
