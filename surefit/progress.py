"""Progress callbacks for long-running stages."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how much is done, and of how much."""


def silent(stage: str, done: int, total: int) -> None:
    """A Progress that shows nothing."""
