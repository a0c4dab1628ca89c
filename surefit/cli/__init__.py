"""The command line: thin functions. Results go to stdout, the rest to stderr."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from functools import lru_cache
from types import FrameType
from typing import Any

import typer

from surefit.cli import (
    chat,
    check,
    demo,
    explain,
    inspect,
    listings,
    run_commands,
    selftest,
    train,
    ui,
)
from surefit.cli.terminal import guard_streams
from surefit.errors import describe_error, to_resume
from surefit.printable import one_line

app = typer.Typer(
    name="surefit",
    help="Train PyTorch models on your data; errors are found before the first step.",
    epilog="With --debug, any command prints the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
MAKE_WRITABLE = (
    "Free some space or make the disk writable (df -h shows the disks), then run the command "
    "again. To resume a run that had begun: surefit train --resume RUN."
)
NOT_ON_STDOUT = ("train", "demo")
"""Commands whose result is a run; what they print may be lost."""
STOPPED = "Stopped before training started; nothing was written."

COMMANDS = (
    *(train.train, check.check, check.encode, inspect.inspect, explain.explain),
    *(run_commands.evaluate, run_commands.predict, chat.chat),
    *(run_commands.export, run_commands.report, ui.ui),
    *(run_commands.verify, selftest.selftest, listings.tasks, demo.demo, listings.cache),
    *(listings.rule, listings.schema),
)
for command in COMMANDS:
    app.command(command.__name__)(command)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code; SIGTERM and SIGHUP stop it as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup ignores SIGHUP
            signal.signal(number, _stop)
    os.environ["PYTHONSAFEPATH"] = "1"  # no process that is started imports from the working folder
    asked = sys.argv[1:] if arguments is None else arguments
    command = next((each for each in asked if not each.startswith("-")), "")
    guard_streams(ends_command=command not in NOT_ON_STDOUT)
    # torch prints pages of stack frames about connections, which its errors repeat.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "WARNING" if "--debug" in asked else "ERROR")
    code = run(asked)
    if code:
        from surefit.processes import record_error

        record_error(SystemExit(code))  # unless the error itself is recorded
    sys.stdout.flush()  # here it may still end the command
    sys.exit(code)


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop as Ctrl-C does; a launcher also sends SIGTERM where another process has failed."""
    from surefit.processes import CURRENT

    if not CURRENT.is_ending:
        signal.default_int_handler(number, frame)


def run(arguments: list[str]) -> int:
    """Run one command; an error ends in a message and an exit code, not in a traceback."""
    from surefit.errors import SurefitError
    from surefit.processes import CURRENT, record_error

    CURRENT.run, CURRENT.is_ending = "", False  # of an earlier command in this process
    debug, given = "--debug" in arguments, arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    as_json = "--json" in arguments
    asked = arguments or ["--help"]
    try:
        code = _commands()(asked, prog_name="surefit", standalone_mode=False, obj=given)
        if code == 130:  # what newer versions of typer make of a KeyboardInterrupt
            return _fail(*_stopped(asked[0]), 130, as_json)
        return code if isinstance(code, int) else 0
    except SurefitError as error:
        record_error(error)
        if debug:
            raise
        if getattr(error, "is_reported", False):
            return error.exit_code
        is_printed = bool(getattr(error, "is_printed", False))
        return _fail(error.lines, error.fix, error.exit_code, as_json, is_printed)
    except KeyboardInterrupt:
        return _fail(*_stopped(asked[0]), 130, as_json)
    except Exception as error:
        if type(error).__name__ == "Abort":  # what typer makes of a KeyboardInterrupt
            return _fail(*_stopped(asked[0]), 130, as_json)
        if hasattr(error, "format_message"):  # typer's own: unknown option, missing argument
            from surefit.cli.options import explain_usage

            return _fail(*explain_usage(error, arguments), 2, as_json)
        record_error(error)
        if debug:
            raise
        return _fail(*_explained(error), 1, as_json)


@lru_cache
def _commands() -> Any:
    """Return the commands as click has them; typer would read every signature on each call."""
    return typer.main.get_command(app)


def _stopped(command: str) -> tuple[list[str], str]:
    """Return the message and fix of a command that was stopped, by the run that had begun."""
    from surefit.processes import CURRENT

    if not CURRENT.run or not os.path.isfile(os.path.join(CURRENT.run, "plan.json")):
        return [STOPPED if command == "train" else "Stopped."], ""  # none, or taken back
    return [f"Stopped. What was saved is in {CURRENT.run}."], (
        f"Resume it: {to_resume(CURRENT.run)}"
    )


def _explained(error: Exception) -> tuple[list[str], str]:
    """Return the message and fix of an unexpected exception, with the cause if it is known."""
    from surefit.explainer import explain

    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return [describe_error(error)], MAKE_WRITABLE
    message, found = describe_error(error), explain(error)
    if found.known:
        cause = " ".join((f"{found.code} {found.title}.", *found.derived))
        return [message, f"cause: {cause}"], found.fix or ""
    if isinstance(error, OSError) and error.filename is not None:
        return [f"{error.filename!s:.200}: {error.strerror}."], "Check the path and who may use it."
    if isinstance(error, MemoryError | OSError):
        return [message], ""
    return [message], "This is an internal error: please report it with the output of --debug."


def _fail(
    lines: Sequence[str], fix: str, code: int, as_json: bool, is_printed: bool = False
) -> int:
    """Print what ended a command; of several processes, only what the first one does not print."""
    from surefit.processes import host_name, is_main, name_process, num_processes, process_index

    if not is_main():
        if is_printed or code == 130:
            return code
        as_json = False
    if num_processes() > 1 and not is_printed and code != 130:
        name = name_process(process_index(), host_name())
        lines = [f"{name}: {lines[0]}", *lines[1:]]
    if as_json:
        fault: dict[str, Any] = {"ok": False, "error": {"message": "\n".join(lines), "fix": fix}}
        print(json.dumps(fault, ensure_ascii=False))
    else:
        shown = "\n".join(map(one_line, lines))
        print(f"{'stopped' if code == 130 else 'error'}: {shown}", file=sys.stderr)
        if fix:
            print(f"fix: {one_line(fix)}", file=sys.stderr)
    return code
