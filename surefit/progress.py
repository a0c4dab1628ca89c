"""Progress callbacks for long-running stages."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, the number of items done, and the total."""


def silent(stage: str, done: int, total: int) -> None:
    """Show no progress."""
