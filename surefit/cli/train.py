"""`surefit train`: plan, then train."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefit.cli.options import TrustCode, takes_run_options

if TYPE_CHECKING:
    from surefit.cli.display import Display
    from surefit.plan.plan import Plan
    from surefit.request import Request
    from surefit.run.fold_runs import FoldRuns
    from surefit.run.run_folder import Run
    from surefit.training.start import Listeners
    from surefit.training.train_folds import Work


@takes_run_options
def command(
    settings: dict[str, Any],
    config: Path | None,
    resume: str | None,
    context: typer.Context,
    trust_code: TrustCode = None,
    processes: Annotated[
        int | None,
        typer.Option(help="Train in so many processes on this host.", min=1, show_default=False),
    ] = None,
) -> int:
    """Plan, then train; --resume RUN resumes a stopped run."""
    from surefit.cli.launch import launch, without_processes
    from surefit.errors import FindingError, UsageError
    from surefit.processes import is_main, num_processes
    from surefit.request import make_request
    from surefit.run.fold_runs import is_folds
    from surefit.training.resume import resume_run
    from surefit.training.start import start_run
    from surefit.training.train_folds import wants_folds

    if processes is not None and num_processes() > 1:
        raise UsageError(
            f"--processes {processes} is given, but {num_processes()} processes are launched "
            "already.",
            "Leave --processes out.",
        )
    if processes is not None and processes > 1:
        launch(processes, without_processes(context.obj))
        return 0
    named, trusted = set(settings), trust_code or ()
    request = make_request(settings, config.parent if config is not None else None, trusted)
    if wants_folds(request) if resume is None else is_folds(resume):
        return _train_folds(request, named, resume, trusted)
    with _shown() as (display, listeners):
        try:
            if resume is not None:
                run = resume_run(resume, request, named, listeners, trusted)
            else:
                run = start_run(request, listeners)
        except FindingError as error:
            if is_main():
                display.show_new(error.findings)  # on_plan has shown what planning found
            return error.exit_code
    if is_main():
        if display.num_steps is None:
            print(f"{run.path} is already finished.", file=sys.stderr)
        show_run(run)
    return 0


@contextmanager
def _shown(title: str = "") -> Iterator[tuple[Display, Listeners]]:
    """The display of a run, and the listeners that feed it; with a title, it is shown first."""
    from surefit.cli.display import Display
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.processes import is_main
    from surefit.training.start import SILENT, Listeners

    with Display() as display, user_output_to_stderr():
        if not is_main():  # the first process speaks for all
            yield display, SILENT
            return

        def on_plan(plan: Plan, folder: Path) -> None:
            display.expect(plan)
            if title:
                display.notice(f"{title}: {folder}")
            display.show_plan(plan)

        yield (
            display,
            Listeners(
                (display.observe,),
                display.progress,
                on_plan,
                display.show_fit,
                display.notice,
                announce_stop,
            ),
        )


def _train_folds(
    request: Request, named: set[str], resume: str | None, trusted: Sequence[str]
) -> int:
    """Train or resume a run for each fold, and print the mean and the spread of their metrics."""
    from surefit.errors import FindingError
    from surefit.processes import is_main
    from surefit.training.train_folds import resume_folds, train_folds

    def listen(fold: int, work: Work) -> Run:
        with _shown(f"fold {fold}") as (display, listeners):
            try:
                return work(listeners)
            except FindingError as error:
                if is_main():
                    display.show_new(error.findings)
                raise

    try:
        if resume is None:
            folds = train_folds(request, listen)
        else:
            folds = resume_folds(resume, request, named, listen, trusted)
    except FindingError as error:
        return error.exit_code
    if is_main():
        show_folds(folds)
    return 0


def show_folds(folds: FoldRuns) -> None:
    """Print the mean and the spread of each metric over the folds."""
    from surefit.cli.summary_lines import result_line
    from surefit.run.fold_figures import flat_figures

    metrics = folds.metrics
    for name, mean, spread, values in flat_figures(metrics):
        shown = "-" if mean is None else f"{mean:.6g}"
        shown += f" ± {spread:.4g}" if spread is not None else ""
        each = ", ".join(f"{v:.4g}" if isinstance(v, int | float) else "-" for v in values)
        print(result_line(name, f"{shown}  ({each})"))
    for name, figures in metrics.items():
        if "sum" in figures:
            print(result_line(name, "sum of all folds, a line per true class"))
            for kind, line in zip(figures["classes"], figures["sum"], strict=True):
                print(result_line(f"  {kind}", " ".join(map(str, line))))
    print(result_line("folds", folds.path / "folds.json"))
    print(result_line("report", folds.path / "report.html"))


def announce_stop(number: int) -> None:
    """Say what a signal does; written past all buffers, because a signal handler calls it."""
    from surefit.processes import num_processes

    if number == signal.SIGINT:
        text = "stopping after this step, which is then saved; Ctrl-C again stops at once"
    elif num_processes() == 1:
        text = "SIGTERM: stopping after this step, which is then saved"
    else:  # torchrun also ends processes with it that have lost one of them
        text = "SIGTERM: stopping; if all processes can finish this step, it is saved"
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())


def show_run(run: Run) -> None:
    """Print the result of a run: its metrics, beside the best baseline's, and its folder."""
    from surefit.cli.summary_lines import beside_figure, result_line

    if run.best_step is not None:
        print(result_line("best step", run.best_step))
    baselines = run.plan.get("baselines", {})
    for name, value in run.metrics.items():
        if isinstance(value, int | float):
            print(result_line(name, f"{value:.6g}{beside_figure(name, baselines)}"))
    print(result_line("run", run.path))
    print(result_line("report", run.path / "report.html"))
