"""The exceptions of surefit.

SurefitError            what was expected, what was found, how to fix it
├── UsageError          the request itself cannot be met (exit code 2)
├── FindingError        an `error` Finding ended the planning (exit code 1)
├── RunFailedError      training started and could not go on (exit code 1)
│   └── MemoryLimitError stopped before it exceeded max_memory_gb (exit code 1)
└── InterruptedRunError stopped by a signal after saving (exit code 130)
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from surefit.printable import redact

if TYPE_CHECKING:
    from surefit.findings import Finding


class SurefitError(Exception):
    """A fault a user can act on: `message` is what is wrong, `fix` what to do.

    A message of several lines is a sequence of them. A newline inside a line comes from data, and
    is shown as an escape.
    """

    exit_code = 1

    def __init__(self, message: str | Sequence[str], fix: str = "") -> None:
        lines = (message,) if isinstance(message, str) else tuple(message)
        self.lines = tuple(redact(line) for line in lines)
        self.message = "\n".join(self.lines)
        super().__init__(self.message)
        self.fix = redact(fix)

    def __str__(self) -> str:
        """Return the message and the fix, so that the end of a traceback says what to do."""
        return f"{self.message}\nfix: {self.fix}" if self.fix else self.message


class UsageError(SurefitError):
    """The request cannot be met: unknown option or task, missing path, unwritable output."""

    exit_code = 2


class FindingError(SurefitError):
    """Findings of severity `error`: the data or the model would make the run fail."""

    def __init__(self, *findings: Finding) -> None:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        super().__init__(findings[0].message + more, findings[0].fix)
        self.findings = findings

    def __str__(self) -> str:
        """Return every finding with its place and its fix."""
        return "\n".join(map(str, self.findings))


class RunFailedError(SurefitError):
    """Training began and could not go on."""


class MemoryLimitError(RunFailedError):
    """Stopped before the run exceeded `max_memory_gb`; it can be resumed."""


class InterruptedRunError(SurefitError):
    """Stopped by SIGINT, SIGTERM or SIGHUP; the step was finished and saved."""

    exit_code = 130


class StoppedAtOnceError(InterruptedRunError):
    """Stopped by a second signal, in this process and perhaps in no other."""


def shell(path: object) -> str:
    """Return a path as a command that is printed has it, to be pasted.

    >>> f"surefit verify {shell('my runs/a')}"
    "surefit verify 'my runs/a'"
    """
    return shlex.quote(str(path))


def to_resume(run: object) -> str:
    """Return the command that resumes a run."""
    return f"surefit train --resume {shell(run)}"


def message_of(error: BaseException) -> str:
    """Return the message of an exception, without a fix; empty where its own `__str__` fails."""
    try:
        return error.message if isinstance(error, SurefitError) else str(error)
    except Exception:
        return ""


def describe_error(error: BaseException) -> str:
    """Return the type and message of an exception.

    >>> describe_error(ValueError("no rows"))
    'ValueError: no rows'
    """
    return f"{type(error).__name__}: {message_of(error)}".removesuffix(": ")
