"""`surefit explain`: a traceback or log to its true cause."""

from __future__ import annotations

import os
import sys
from typing import Annotated, BinaryIO

import typer

LONGEST_BYTES = 4_000_000
"""Of a longer log the end is read, where the failure is."""


def command(
    file: Annotated[
        str, typer.Argument(help="A file with a traceback or a log; - for stdin.")
    ] = "-",
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> int:
    """The true cause of a failure, the fix, and what does not help."""
    from surefit.cli.display import print_json
    from surefit.explainer import explain

    found = explain(read_text(file))
    print_json(found.as_dict()) if json else print(found)
    return 0 if found.known else 1


def read_text(file: str) -> str:
    """The end of a file or of stdin as text; what is empty or no text is refused."""
    from surefit.errors import UsageError

    if file == "-":
        if sys.stdin.isatty():
            print("paste the traceback, then press Ctrl-D:", file=sys.stderr)
        content, name = _end_of_stream(sys.stdin.buffer), "stdin"
    else:
        try:
            with open(file, "rb") as opened:
                opened.seek(max(0, os.fstat(opened.fileno()).st_size - LONGEST_BYTES))
                content, name = opened.read(), file
        except OSError as error:
            raise UsageError(
                f"Cannot read {file}: {error.strerror}.",
                "Give a file with the log, or - for stdin.",
            ) from None
    if not content.strip():
        raise UsageError(f"{name} is empty.", "Give the traceback or log of the failed run.")
    if b"\0" in content[:8000]:
        raise UsageError(f"{name} is no text.", "Give the traceback or log of the failed run.")
    return content.decode("utf-8", errors="replace")


def _end_of_stream(stream: BinaryIO) -> bytes:
    """The last bytes of a stream of any length, without holding all of it."""
    end = b""
    while part := stream.read(1 << 20):
        end = (end + part)[-LONGEST_BYTES:]
    return end
