"""`surefit explain`: the cause of a failure, from a traceback or a log."""

from __future__ import annotations

import codecs
import os
import select
import sys
from collections.abc import Sequence
from typing import Annotated, BinaryIO

import typer

from surefit.cli.options import TrustCode

WRITER_WAIT_SECONDS = 5.0  # for the first byte of a named pipe


def explain(
    file: Annotated[
        str,
        typer.Argument(help="A file with a traceback or a log, a run's folder, or - for stdin."),
    ] = "-",
    trust_code: TrustCode = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> int:
    """Name the cause of a failure, the fix, and what does not help; of a run, the failing row."""
    from surefit.cli.display import print_json
    from surefit.explainer import explain

    if os.path.isdir(file):
        return _explain_run(file, trust_code or (), json)
    found = explain(read_text(file))
    print_json(found.as_dict()) if json else print(str(found))
    return 0 if found.known else 1


def _explain_run(folder: str, trust_code: Sequence[str], json: bool) -> int:
    """Replay the step of a run that was not finite; of other failures, explain the traceback."""
    from surefit.cli.display import Display, print_json
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.errors import UsageError
    from surefit.explainer import explain
    from surefit.run.run_folder import open_run
    from surefit.training.replay import failed_step, find_bad_rows

    run = open_run(folder, trust_code)
    about = failed_step(run)
    if about is None:
        bundles = sorted((run.path / "failures").glob("step-*/traceback.txt"))
        if not bundles:
            raise UsageError(
                f"{folder} has no failed step.", "Pass a file with the traceback or log instead."
            )
        found = explain(read_text(str(bundles[-1])))
        print_json(found.as_dict()) if json else print(str(found))
        return 0 if found.known else 1
    with Display() as display, user_output_to_stderr():
        bad = find_bad_rows(run, int(about["step"]), progress=display.progress)
    print_json(bad.as_dict()) if json else print(str(bad))
    return 0 if bad.rows else 1


def read_text(file: str) -> str:
    """Read a file or stdin, of a long one the end. Empty and binary files are refused."""
    from surefit.errors import UsageError

    name = "stdin" if file == "-" else file
    try:
        content = _read_stdin() if file == "-" else _read_file(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"Cannot read {name}: {reason}.", "Name a file with the log, or - for stdin."
        ) from None
    if not content.strip():
        raise UsageError(f"{name} is empty.", "Pass the traceback or log of the failed run.")
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace")  # what PowerShell's > writes
    if b"\0" in content[:8000]:
        raise UsageError(f"{name} is not text.", "Pass the traceback or log of the failed run.")
    return content.decode("utf-8", errors="replace")


def _read_stdin() -> bytes:
    if sys.stdin is None:  # closed by the caller
        return b""
    if sys.stdin.isatty():
        print("Paste the traceback, then press Ctrl-D:", file=sys.stderr)
    return _end_of_stream(sys.stdin.buffer)


def _read_file(path: str) -> bytes:
    from surefit.core.files import special_kind
    from surefit.explainer.log_reading import MAX_CHARS

    if special_kind(path) == "a device":
        raise ValueError("it is a device")
    # To open a named pipe in the usual way would wait without end for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
        select.select([opened], [], [], WRITER_WAIT_SECONDS)
        os.set_blocking(opened.fileno(), True)
        if opened.seekable():
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - MAX_CHARS))
        return _end_of_stream(opened)


def _end_of_stream(stream: BinaryIO) -> bytes:
    """Return the last bytes of a stream of any length, without holding all of it."""
    from surefit.explainer.log_reading import MAX_CHARS

    end = b""
    while part := stream.read(1 << 20):
        end = (end + part)[-MAX_CHARS:]
    return end
