"""Run every case and print the outcome: python tests/faults/table.py [PART OF A NAME]."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    """One line per case with a wrong outcome, then passed/total per kind."""
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]
    from faults.case import run
    from faults.every import FAULTS, HEALTHY, USAGE

    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    all_good = True
    for kind, cases in {**FAULTS, "options": USAGE, "healthy": HEALTHY}.items():
        start, good, chosen = time.process_time(), 0, [c for c in cases if wanted in c.name]
        for case in chosen:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["SUREFIT_CACHE"] = f"{folder}/.cache"
                complaint = run(case, Path(folder)).complaint(case)
            good += not complaint
            if complaint:
                print(f"{kind}: {case.name} ({case.code}): {complaint}", flush=True)
        all_good &= good == len(chosen)
        print(f"{kind:10} {good}/{len(chosen)} ({time.process_time() - start:.1f} s)", flush=True)
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
