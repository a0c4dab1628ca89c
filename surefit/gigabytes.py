"""Gigabytes: the unit of every memory option and message; files may be smaller."""

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


def show_size(num_bytes: int) -> str:
    """The size of a file or disk, in the unit that suits it.

    >>> show_size(5_550_000_000), show_size(3_140_000), show_size(2_000)
    ('5.55 GB', '3.1 MB', '2 kB')
    """
    if num_bytes >= GB // 10:
        return show_gb(num_bytes)
    return f"{num_bytes / 10**6:.1f} MB" if num_bytes >= 10**5 else f"{num_bytes / 1000:.0f} kB"
