"""`surefit train`: plan, then train."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from surefit.cli.options import Quiet, TrustCode, Verbose, takes_run_options


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
    from surefit.cli.launch import launch
    from surefit.cli.terminal import to_stderr, user_output_to_stderr
    from surefit.errors import FindingError, UsageError
    from surefit.processes import CURRENT, is_main, num_processes, together
    from surefit.request import make_request
    from surefit.training.run import train_request

    launched = num_processes()
    if processes is not None and launched not in (1, processes):
        raise UsageError(
            f"--processes {processes} is given, but {launched} processes are launched already.",
            "Leave --processes out.",
        )
    named, trusted = set(settings), trust_code or ()
    with together("reading the config"):
        request = make_request(settings, config.parent if config is not None else None, trusted)
    if processes is not None and processes > launched:
        launch(processes, context.obj)
        return 0
    show = partial(shown_run, quiet=quiet, verbose=verbose)
    try:
        with user_output_to_stderr():
            result = train_request(request, show, resume, named, trusted)
    except FindingError as error:
        if CURRENT.run and not is_main():  # of this process alone
            raise
        if quiet and is_main():
            show_findings(errors_of(error.findings), to_stderr())
        return error.exit_code
    if is_main():
        print(*result_lines(result), sep="\n")
    return 0
