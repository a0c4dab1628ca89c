"""SIGINT and SIGTERM ask a run to stop after the step it is in."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class _Asked:
    value: bool = False


@contextmanager
def stop_on_signal() -> Iterator[_Asked]:
    """While the block runs, SIGINT and SIGTERM ask to stop after the step; a second one kills."""
    asked = _Asked()
    signals = (signal.SIGINT, signal.SIGTERM)

    def ask(number: int, frame: Any) -> None:
        if asked.value:
            raise KeyboardInterrupt
        asked.value = True

    try:
        before = {number: signal.signal(number, ask) for number in signals}
    except ValueError:  # not the main thread: signals are someone else's
        yield asked
        return
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
