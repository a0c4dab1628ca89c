"""Gigabytes: the unit of every memory option and message."""

from __future__ import annotations

GB = 10**9


def to_bytes(gigabytes: float) -> int:
    """Gigabytes as a whole number of bytes.

    >>> to_bytes(1.5)
    1500000000
    """
    return round(gigabytes * GB)


def show_gb(num_bytes: int) -> str:
    """Bytes as messages print them.

    >>> show_gb(550_000_000)
    '0.55 GB'
    """
    return f"{num_bytes / GB:.2f} GB"
