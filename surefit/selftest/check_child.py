"""One check in a process of its own: `python -m surefit.selftest.check_child NAME DEVICE FOLDER`.

The outcome is written to `outcome.json` in the folder; without that file the check has failed.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path

from surefit.errors import describe_error
from surefit.selftest.outcome import CheckFailedError, NotApplicableError, Outcome
from surefit.selftest.registry import CHECKS

OUTCOME = "outcome.json"


def run_check(name: str, device: str, folder: Path) -> Outcome:
    """Do one check, whatever comes of it."""
    began = time.perf_counter()

    def outcome(**parts: object) -> Outcome:
        return Outcome(name, seconds=time.perf_counter() - began, **parts)  # type: ignore[arg-type]

    try:
        return outcome(status="passed", figures=CHECKS[name](device, folder))
    except NotApplicableError as reason:
        return outcome(status="skipped", message=str(reason))
    except CheckFailedError as error:
        return outcome(status="failed", message=str(error), figures=error.figures)
    except Exception as error:
        traceback.print_exc()  # to the log of the check
        return outcome(status="failed", message=describe_error(error))


if __name__ == "__main__":
    name, device, folder = sys.argv[1:]
    found = run_check(name, device, Path(folder))
    Path(folder, OUTCOME).write_text(json.dumps(found.as_dict()), encoding="utf-8")
