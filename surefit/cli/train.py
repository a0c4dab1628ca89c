"""`surefit train`: plan, then train."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefit.cli.options import Quiet, TrustCode, Verbose, takes_run_options

if TYPE_CHECKING:
    from surefit.run.run_folder import Run
    from surefit.training.folds import FoldRuns


@takes_run_options
def train(  # noqa: PLR0913 - the options of the command
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
    from surefit.cli.display import errors_of, result_lines, show_findings, shown_run
    from surefit.cli.launch import launch, without_processes
    from surefit.cli.terminal import to_stderr, user_output_to_stderr
    from surefit.errors import FindingError, UsageError
    from surefit.processes import CURRENT, is_main, num_processes, together
    from surefit.request import make_request
    from surefit.training.folds import is_folds, train_folds, wants_folds
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
    show = partial(shown_run, quiet=quiet, verbose=verbose)
    result: Run | FoldRuns
    try:
        with user_output_to_stderr():
            if wants_folds(request) if resume is None else is_folds(resume):
                result = train_folds(request, show, resume, named, trusted)
            else:
                with show() as listeners:
                    if resume is None:
                        result = start_run(request, listeners)
                    else:
                        result = resume_run(resume, request, named, listeners, trusted)
    except FindingError as error:
        if CURRENT.run and not is_main():  # of this process alone
            raise
        if quiet and is_main():
            show_findings(errors_of(error.findings), to_stderr())
        return error.exit_code
    if is_main():
        print(*result_lines(result), sep="\n")
    return 0
