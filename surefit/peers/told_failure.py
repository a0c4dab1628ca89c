"""What ended one process of a run, as it tells the others through the store of the run.

The failed process posts its error, and ends when the others have heard of it. Its connections close
then, so that the others end too, and process 0 reports the error that was posted first.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from surefit.errors import SurefitError, describe_error
from surefit.peers.process_names import name_process

HEARD_SECONDS = 5.0
"""How long a failed process waits until the others have heard of it."""
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Failure:
    """The error of one process, as its own message says it."""

    rank: int
    host: str
    lines: tuple[str, ...]
    fix: str = ""
    exit_code: int = 1
    is_lost: bool = False
    """Whether the process is gone without having told it."""

    @property
    def message(self) -> tuple[str, ...]:
        """The lines, which begin with the process."""
        return f"{name_process(self.rank, self.host)}: {self.lines[0]}", *self.lines[1:]


def as_failure(error: BaseException, rank: int, host: str) -> Failure:
    """An exception in the words that other processes are told.

    >>> as_failure(ValueError("no luck"), 1, "node-7").message
    ('Process 1 of host node-7: ValueError: no luck',)
    """
    if isinstance(error, SurefitError):
        return Failure(rank, host, error.lines, error.fix, error.exit_code)
    return Failure(rank, host, (describe_error(error),))


class FailureBoard:
    """The failures of one run in the store; each thread needs a connection of its own."""

    def __init__(self, store: Any, key: str, num_processes: int) -> None:
        self._store, self._key = store, f"surefit-failed/{key}"
        self._ranks = range(num_processes)

    def post(self, failure: Failure) -> None:
        """Tell the others what ended this process."""
        text = json.dumps(asdict(failure))
        self._store.set(f"{self._key}/{failure.rank}", text)
        self._store.compare_set(f"{self._key}/first", "", text)

    def first(self) -> Failure | None:
        """The failure that was posted first."""
        return self._read("first")

    def of(self, rank: int) -> Failure | None:
        """The failure of one process."""
        return self._read(str(rank))

    def _read(self, name: str) -> Failure | None:
        if not self._store.check([f"{self._key}/{name}"]):
            return None
        said = json.loads(self._store.get(f"{self._key}/{name}"))
        return Failure(**{**said, "lines": tuple(said["lines"])})

    def note_heard(self, rank: int) -> None:
        """This process knows that another one has failed."""
        self._store.set(f"{self._key}/heard/{rank}", "")

    def wait_until_heard(self, own_rank: int, seconds: float = HEARD_SECONDS) -> bool:
        """Wait until the others know of it or have failed themselves; whether process 0 knows."""
        until = time.monotonic() + seconds
        waiting = [rank for rank in self._ranks if rank != own_rank]
        while waiting and time.monotonic() < until:
            waiting = [rank for rank in waiting if not self._knows(rank)]
            time.sleep(POLL_SECONDS if waiting else 0)
        return 0 not in waiting

    def _knows(self, rank: int) -> bool:
        # check() of several keys asks for all of them
        names = (f"{self._key}/heard/{rank}", f"{self._key}/{rank}")
        return any(self._store.check([name]) for name in names)
