"""`surefit train`: plan, then train."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.cli.options import TrustCode, takes_run_options

if TYPE_CHECKING:
    from surefit.plan.plan import Plan
    from surefit.run.run_folder import Run


@takes_run_options
def command(
    settings: dict[str, Any],
    config: Path | None,
    resume: str | None,
    trust_code: TrustCode = None,
) -> int:
    """Plan, then train; --resume RUN resumes a stopped run."""
    from surefit.cli.display import Display
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.errors import FindingError
    from surefit.processes import is_main
    from surefit.request import make_request
    from surefit.training.resume import resume_run
    from surefit.training.start import Listeners, start_run

    with Display() as display, user_output_to_stderr():

        def on_plan(plan: Plan, folder: Path) -> None:
            if is_main():
                display.expect(plan)
                display.show_plan(plan)

        request = make_request(settings, config.parent if config is not None else None)
        listeners = Listeners(
            (display.observe,),
            display.progress,
            on_plan,
            display.show_fit,
            display.notice,
            announce_stop,
        )
        try:
            if resume is not None:
                run = resume_run(resume, request, set(settings), listeners, trust_code or ())
            else:
                run = start_run(request, listeners)
        except FindingError as error:
            display.show_new(error.findings)  # on_plan has shown what planning found
            return error.exit_code
    if is_main():
        if display.num_steps is None:
            print(f"{run.path} is already finished.", file=sys.stderr)
        show_run(run)
    return 0


def announce_stop() -> None:
    """Say what Ctrl-C does; written past all buffers, because a signal handler calls it."""
    text = b"stopping after this step, which is then saved; Ctrl-C again stops at once\n"
    with suppress(OSError):
        os.write(2, text)


def show_run(run: Run) -> None:
    """Print the result of a run: its metrics and its folder."""
    if run.best_step is not None:
        print(f"{'best step':<16}{run.best_step}")
    for name, value in run.metrics.items():
        if isinstance(value, int | float):
            print(f"{name:<16}{value:.6g}")
    print(f"{'run':<16}{run.path}")
    print(f"{'report':<16}{run.path / 'report.html'}")
