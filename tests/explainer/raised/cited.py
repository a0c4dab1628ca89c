"""Messages that cannot be raised here (a GPU, several machines, other versions): as their issues
quote them, in cited.txt. The issue, the code, the message."""

from __future__ import annotations

from pathlib import Path

_PARTS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("=== ")[1:]
CITED: tuple[tuple[str, str, str], ...] = tuple(
    (*about.split(" | "), message.removesuffix("\n"))  # type: ignore[misc]
    for about, message in (part.split("\n", 1) for part in _PARTS)
)
