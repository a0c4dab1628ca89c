"""Devices that runs are planned for where they are not: memory, bf16, how fast they exchange.

`check --device NAME` uses it; `--device NAME,exchange_gb_per_second=25` changes a figure for one
plan. The figures are the makers' own. Free memory is somewhat less (`--set device_memory_gb=…`
gives it exactly), and no exchange reaches the full rate of its links.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import inf
from typing import Any

from surefit.errors import UsageError
from surefit.gigabytes import to_bytes


@dataclass(frozen=True)
class Device:
    """A kind of accelerator."""

    memory_gb: float
    exchange_gb_per_second: float
    """What one device sends to the others of its host: NVLink, or PCI Express."""
    bf16: bool = True
    """Whether it computes in bfloat16; those that emulate it do not count."""

    def seconds_to_send(self, num_bytes: int) -> float:
        """The least time that so many bytes take to another device of the host."""
        return num_bytes / to_bytes(self.exchange_gb_per_second)


DEVICES = {
    "t4-16gb": Device(16, 16, bf16=False),
    "v100-16gb": Device(16, 150, bf16=False),
    "v100-32gb": Device(32, 150, bf16=False),
    "p100-16gb": Device(16, 16, bf16=False),
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
OF_THIS_MACHINE = ("mps", "cpu", "cuda", "gpu", "xpu", "hpu", "auto")
"""What other programs call a device that is here; torch chooses it."""
FIGURES = ("memory_gb", "exchange_gb_per_second")
"""What `--device NAME,figure=value` may change."""


def find_device(name: str) -> Device:
    """The device of a name; another one is refused, with those that are known.

    >>> find_device("A100-80GB").memory_gb
    80
    >>> find_device("a100-80gb,memory_gb=76.5").memory_gb
    76.5
    """
    kind, *changes = (part.strip() for part in name.split(","))
    known = kind.lower().replace("_", "-").replace(" ", "-")
    if known not in DEVICES:
        near = [each for each in DEVICES if each.startswith(f"{known}-")]
        near = near or get_close_matches(known, DEVICES, 1)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        if known in OF_THIS_MACHINE:
            hint = "The devices of this machine need no --device: leave it out. "
        raise UsageError(
            f"The device {kind!r} is not known.",
            f"{hint}Known are {', '.join(DEVICES)}; for any other: --set device_memory_gb=….",
        )
    figures: dict[str, Any] = dict(map(_read_figure, changes))
    return replace(DEVICES[known], **figures)


def _read_figure(text: str) -> tuple[str, float]:
    """A figure of a device as `name=value`."""
    name, _, value = text.partition("=")
    with suppress(ValueError):
        if name in FIGURES and 0 < float(value) < inf:
            return name, float(value)
    raise UsageError(
        f"--device has {text!r} after the name.",
        f"Write NAME,figure=value with a positive value; the figures are {' and '.join(FIGURES)}.",
    )
