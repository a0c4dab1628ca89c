"""SIGINT and SIGTERM ask a run to stop after the step it is in."""

from __future__ import annotations

import mmap
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from surefit.errors import InterruptedRunError
from surefit.processes import ends_by_itself
from surefit.run.run_folder import Run

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SecondSignal(KeyboardInterrupt):
    """A signal that does not wait for the step to finish."""


class StopRequest:
    """Whether a signal asked to stop: one byte that forked worker processes share."""

    def __init__(self) -> None:
        self._asked = mmap.mmap(-1, 1)

    @property
    def value(self) -> bool:
        """Whether this process or one of its workers was asked to stop."""
        return self._asked[0] != 0

    def ask(self) -> None:
        """Ask to stop after the step."""
        self._asked[0] = 1


@contextmanager
def stop_on_signal(on_stop: Callable[[int], None] = lambda number: None) -> Iterator[StopRequest]:
    """While the block runs, SIGINT and SIGTERM ask to stop after the step; a second one stops now.

    `on_stop` is called with the number of the first one, in the signal handler.
    """
    request, received = StopRequest(), 0

    def ask(number: int, frame: Any) -> None:
        nonlocal received
        if number == signal.SIGTERM and ends_by_itself():
            return
        received += 1
        if received > 1:
            raise SecondSignal
        request.ask()
        on_stop(number)

    try:
        before = {number: signal.signal(number, ask) for number in SIGNALS}
    except ValueError:  # not the main thread: signals are someone else's
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def report_interrupt(run: Run) -> Iterator[None]:
    """Turn a signal that did not wait for the step into a message about what is saved."""
    try:
        yield
    except SecondSignal:
        saved = run.saved_step
        kept = f"the checkpoint of step {saved} is kept" if saved else "no step was saved"
        raise InterruptedRunError(
            f"Stopped at once; the step in work is lost, and {kept}.",
            f"Resume with: surefit train --resume {run.path}",
        ) from None
