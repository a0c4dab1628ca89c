"""The point where text leaves for a terminal or pipe: all of it passes here.

`guard_streams` replaces stdout and stderr with streams that escape control characters, whoever
writes: a command, a library, the user's code.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import IO, Any

from surefit.printable import printable


class GuardedStream:
    """A text stream that escapes control characters and outlives its reader.

    If the reader of stdout is gone (`| head`), the command ends without a message; without a reader
    of stderr, the command continues.
    """

    def __init__(self, stream: io.TextIOWrapper, *, ends_command: bool) -> None:
        self.rich_proxied_file = stream  # rich writes its own codes there
        self._stream = stream
        self._ends_command = ends_command

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text; a carriage return at its start is that of a progress bar."""
        start = "\r" if text.startswith("\r") else ""
        try:
            self._stream.write(start + printable(text[len(start) :]))
        except BrokenPipeError:
            self.lose_reader()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of the lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self.lose_reader()

    def lose_reader(self) -> None:
        """Send the rest nowhere, also what is still buffered at exit."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if self._ends_command:
            raise SystemExit(0)


def guard_streams() -> None:
    """Escape what is written to stdout and stderr, as UTF-8 in pipes and files in any locale."""
    for name in ("stdout", "stderr"):
        stream: IO[str] | None = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.isatty():
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        setattr(sys, name, GuardedStream(stream, ends_command=name == "stdout"))


def user_output_to_stderr() -> redirect_stdout[Any]:
    """Send what the user's own code prints to stderr, apart from the results."""
    return redirect_stdout(sys.stderr)
