"""Consoles of rich that escape the text they are given; their own colours pass."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import IO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from surefit.cli.terminal import GuardedStream
from surefit.printable import one_line, printable


class GuardedConsole(Console):
    """A console whose text is escaped."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of a renderable; codes of the console itself stay as they are."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)

    @property
    def file(self) -> IO[str]:
        """The stream below the guarded one, also while rich has replaced that."""
        stream = super().file
        return cast("IO[str]", getattr(stream, "rich_proxied_file", stream))

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream

    def on_broken_pipe(self) -> None:
        """The reader is gone."""
        stream = sys.stderr if self.stderr else sys.stdout
        if isinstance(stream, GuardedStream):
            stream.lose_reader()
        else:
            self.file = io.StringIO()


def to_stderr() -> Console:
    """A console for everything that is not a result."""
    return GuardedConsole(stderr=True, highlight=False, soft_wrap=True)


def to_stdout() -> Console:
    """A console for results."""
    return GuardedConsole(highlight=False, soft_wrap=True)


def as_line(text: str, style: str = "") -> Text:
    """A text as one line of a console, whatever newlines the data has put into it."""
    return Text(one_line(text), style=style)
