"""`surefit train`: plan, then train."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefit.cli.options import Quiet, TrustCode, Verbose, takes_run_options

if TYPE_CHECKING:
    from surefit.errors import FindingError
    from surefit.request import Request


@takes_run_options
def command(  # noqa: PLR0913 - the options of the command
    settings: dict[str, Any],
    config: Path | None,
    resume: str | None,
    context: typer.Context,
    trust_code: TrustCode = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    processes: Annotated[
        int | None,
        typer.Option(help="Train in so many processes on this host.", min=1, show_default=False),
    ] = None,
) -> int:
    """Plan, then train; --resume RUN resumes a stopped run."""
    from surefit.cli.display import run_lines, shown_run
    from surefit.cli.launch import launch, without_processes
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.errors import FindingError, UsageError
    from surefit.processes import CURRENT, is_main, num_processes, together
    from surefit.request import make_request
    from surefit.training.folds import is_folds, wants_folds
    from surefit.training.resume import resume_run
    from surefit.training.run import start_run

    if processes is not None and num_processes() > 1:
        raise UsageError(
            f"--processes {processes} is given, but {num_processes()} processes are launched "
            "already.",
            "Leave --processes out.",
        )
    named, trusted = set(settings), trust_code or ()
    with together("reading the config"):
        request = make_request(settings, config.parent if config is not None else None, trusted)
    if processes is not None and processes > 1:
        launch(processes, without_processes(context.obj))
        return 0
    if wants_folds(request) if resume is None else is_folds(resume):
        return _train_folds(request, named, resume, trusted, (quiet, verbose))
    with shown_run(quiet=quiet, verbose=verbose) as (display, listeners), user_output_to_stderr():
        try:
            if resume is not None:
                run = resume_run(resume, request, named, listeners, trusted)
            else:
                run = start_run(request, listeners)
        except FindingError as error:
            if CURRENT.run and not is_main():  # of this process alone
                raise
            display.show_new(error.findings)  # on_plan has shown what planning found
            return _end_quietly(error) if quiet else error.exit_code
    if is_main():
        if display.num_steps is None and not quiet:
            print(f"{run.path} is already finished.", file=sys.stderr)
        print(*run_lines(run), sep="\n")
    return 0


def _end_quietly(error: FindingError) -> int:
    """Print errors that a quiet display did not show; return the exit code."""
    from surefit.cli.display import errors_of, show_findings
    from surefit.cli.terminal import to_stderr
    from surefit.processes import is_main

    if is_main():
        show_findings(errors_of(error.findings), to_stderr())
    return error.exit_code


def _train_folds(
    request: Request,
    named: set[str],
    resume: str | None,
    trusted: Sequence[str],
    shown: tuple[bool, bool],
) -> int:
    """Train or resume a run for each fold, and print the mean and the spread of their metrics."""
    from surefit.cli.display import fold_lines, shown_folds
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.errors import FindingError
    from surefit.processes import is_main
    from surefit.training.folds import train_folds

    try:
        with user_output_to_stderr():
            folds = train_folds(request, shown_folds(*shown), resume, named, trusted)
    except FindingError as error:
        return _end_quietly(error) if shown[0] else error.exit_code
    if is_main():
        print(*fold_lines(folds), sep="\n")
    return 0
