"""A process of its own that resumes a run, and may kill itself: `verify_resume` starts it.

`python -P -m surefit.training.resume_child FOLDER [STEP]`
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from surefit.errors import SurefitError
from surefit.request import make_request
from surefit.run.choose_checkpoint import list_checkpoints
from surefit.run.events import Event
from surefit.training.resume import resume_run
from surefit.training.start import Listeners

WAIT_SECONDS = 60.0


def resume_and_die(folder: Path, step: int | None) -> None:
    """Resume a run; with a step, SIGKILL this process once that step is done."""

    def watch(event: Event) -> None:
        if event["event"] == "step" and event["step"] == step:
            _wait_for_checkpoint(folder)
            os.kill(os.getpid(), signal.SIGKILL)

    remote: dict[str, Any] = {}
    if os.environ.get("SUREFIT_TRUST_REMOTE_CODE") == "1":  # set by the parent, which was allowed
        remote["trust_remote_code"] = True
    resume_run(folder, make_request(remote), set(remote), Listeners((watch,)))


def _wait_for_checkpoint(folder: Path) -> None:
    """Wait until the thread that saves has finished a checkpoint: there is one to resume from."""
    until = time.monotonic() + WAIT_SECONDS
    while not list_checkpoints(folder / "checkpoints") and time.monotonic() < until:
        time.sleep(0.005)


if __name__ == "__main__":
    try:
        resume_and_die(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
    except SurefitError as error:
        print(error.message, error.fix, file=sys.stderr)
        sys.exit(error.exit_code)
