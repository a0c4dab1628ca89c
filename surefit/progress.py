"""Progress callbacks for long-running stages, and durations in words."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, the number of items done, and the total."""


def silent(stage: str, done: int, total: int) -> None:
    """Show no progress."""


def show_seconds(seconds: float) -> str:
    """Return a duration in words.

    >>> show_seconds(7384), show_seconds(75), show_seconds(0.2)
    ('2 h 3 min', '1 min 15 s', '1 s')
    """
    minutes, rest = divmod(max(1, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
