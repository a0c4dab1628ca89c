"""The point where text leaves for a terminal or pipe: all of it passes here.

`guard_streams` replaces stdout and stderr with streams that escape control characters and drop what
cannot be written, whoever writes: a command, a library, the user's code.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from surefit.printable import one_line, printable


class _Output(io.RawIOBase):
    """Writes to a file descriptor, and drops what cannot be written.

    Where `ends_command`, what cannot be written is a lost result, which ends the command: without a
    message if the reader is gone (`| head`). A slow reader is waited for there.
    """

    def __init__(self, descriptor: int, ends_command: bool) -> None:
        self._descriptor = descriptor
        self._ends_command = ends_command

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def writable(self) -> bool:
        """Return True: it is written to."""
        return True

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, content: Any) -> int:
        """Write all of the content, or drop the rest of it."""
        left = memoryview(content).cast("B")
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                if not self._ends_command:
                    break
                select.select([], [self._descriptor], [])
            except OSError as error:
                self._fail(error)
                break
        return memoryview(content).nbytes

    def _fail(self, error: OSError) -> None:
        ends_command, self._ends_command = self._ends_command, False
        if isinstance(error, BrokenPipeError):  # for ever: also for what C libraries print
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._descriptor)
            os.close(nowhere)
        if not ends_command:
            return
        if isinstance(error, BrokenPipeError):
            raise SystemExit(0)
        print(f"error: The results cannot be written: stdout: {error.strerror}.", file=sys.stderr)
        print("fix: Free some space, or write them to another place.", file=sys.stderr)
        raise SystemExit(1)


class GuardedStream:
    """A text stream that escapes control characters."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self.rich_proxied_file = stream  # rich writes its own codes there
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text; a carriage return at its start is that of a progress bar."""
        start = "\r" if text.startswith("\r") else ""
        self._stream.write(start + printable(text[len(start) :]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of the lines."""
        for line in lines:
            self.write(line)


def guard_streams(ends_command: bool) -> None:
    """Escape what is written to stdout and stderr, as UTF-8 in pipes and files in any locale.

    What cannot be written is dropped (a full disk, a terminal or reader that is gone, a closed
    stream); for a command whose results are on stdout, their loss `ends_command`.
    """
    _fill_closed()
    for descriptor, name in enumerate(("stdout", "stderr"), start=1):
        stream: IO[str] | None = getattr(sys, name)
        if stream is not None and not isinstance(stream, io.TextIOWrapper):
            continue  # of a program that calls main
        if stream is not None:
            stream.flush()
        output = _Output(descriptor, ends_command and name == "stdout")
        terminal = output.isatty()
        text = io.TextIOWrapper(
            io.BufferedWriter(output),
            encoding=stream.encoding if terminal and stream is not None else "utf-8",
            errors="replace" if terminal else "backslashreplace",
            line_buffering=terminal or name == "stderr",
        )
        setattr(sys, name, GuardedStream(text))


def _fill_closed() -> None:
    """Occupy closed standard streams, so that no file that is opened later gets their number."""
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def user_output_to_stderr() -> redirect_stdout[Any]:
    """Send what the user's own code prints to stderr, apart from the results."""
    return redirect_stdout(sys.stderr)


class GuardedConsole(Console):
    """A console whose text is escaped."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable; codes of the console itself stay as they are."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)

    @property
    def file(self) -> IO[str]:
        """Return the stream below the guarded one, also while rich has replaced that."""
        stream = super().file
        return cast("IO[str]", getattr(stream, "rich_proxied_file", stream))

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream


def to_stderr() -> Console:
    """Return a console for everything that is not a result; in a notebook, plain lines below the
    cell.

    A notebook shows stderr as if it were an error, and cannot draw bars that move.
    """
    in_notebook = Console().is_jupyter
    return GuardedConsole(
        stderr=not in_notebook, force_jupyter=False, highlight=False, soft_wrap=True
    )


def to_stdout() -> Console:
    """Return a console for results."""
    return GuardedConsole(highlight=False, soft_wrap=True)


def as_line(text: str, style: str = "") -> Text:
    """Return a text as one line of a console, whatever newlines the data has put into it."""
    return Text(one_line(text), style=style)
