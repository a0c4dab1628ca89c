"""Run surefit on real data from the command line, and write what was reached to docs/real-runs.md.

python bench/real_runs.py [--only NAME ...] [--again] [--fresh] [--page]

Runs every run whose recorded result (bench/real_run_results.json) is missing or of another command
or of other figures; with --fresh, all of them. --only limits it to runs whose name contains NAME.
--again repeats the runs with renamed columns (as Parquet), another seed, and the model's module
copied out of the repository under another name. --page only writes the page. A run that fails
keeps its former result. Exits with 1 if a run fails or misses a goal.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).parent)]

from real_run_list import RealRun  # noqa: E402
from real_run_page import (  # noqa: E402  # noqa: E402
    KINDS,
    ROOT,
    SHARED,
    Result,
    data_files,
    is_current,
    reaches_goals,
    read_results,
    renew,
    run_surefit,
    runs_of,
    shown_command,
    tables,
    train_arguments,
    write_results,
)

PAGE = ROOT / "docs" / "real-runs.md"


@dataclass(frozen=True)
class Finished:
    """A run that was trained in `work`, for the figures to be measured on."""

    spec: RealRun
    work: Path
    shared: Path
    renamed: bool

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.work / "run"

    def surefit(self, *arguments: str) -> str:
        """Run a command in the work folder and return what it printed."""
        return run_surefit(self.work, arguments)

    def files(self, which: str) -> list[str]:
        """The paths behind `data`, `eval_data` or `test_data`."""
        return data_files(self.spec, which, self.work, self.renamed)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The run's events of one kind."""
        lines = (self.run / "events.jsonl").read_text("utf-8").splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    def evaluate(self) -> dict[str, Any]:
        """What `surefit evaluate` prints for the test data, or for the validation rows."""
        data = [word for file in self.files("test_data") for word in ("--data", file)]
        found: dict[str, Any] = json.loads(self.surefit("evaluate", "run", *data, "--json"))
        return found


def execute(spec: RealRun, work: Path, seed: int = 0, renamed: bool = False) -> Result:
    """Train in the folder `work` and measure every figure; a plain dict, ready for JSON."""
    began = time.monotonic()
    if spec.prepare is not None:
        spec.prepare(SHARED / "data", work)
    run_surefit(work, train_arguments(spec, work, seed, renamed))
    done = Finished(spec, work, SHARED, renamed)
    figures = {figure.text: figure.measure(done) for figure in spec.figures}
    return {
        "command": shown_command(spec, seed, renamed),
        "figures": figures,
        "minutes": (time.monotonic() - began) / 60,
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def machine() -> str:
    """Cores and processor, without the machine's name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = os.environ.get("OMP_NUM_THREADS")
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    cpu = next(named, platform.processor() or platform.machine())
    threads = f", {limit} thread{'s' if limit != '1' else ''}" if limit else ""
    return f"{cpu}, {cores} cores{threads}"


def run_apart(spec: RealRun, seed: int, renamed: bool) -> Result | None:
    """Execute in a temporary folder with a cache of its own; None if the run fails."""
    with tempfile.TemporaryDirectory() as work:
        os.environ["SUREFIT_CACHE"] = str(Path(work, "cache"))
        folder = Path(work, "work")
        folder.mkdir()
        try:
            return execute(spec, folder, seed, renamed)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return None


def measure(spec: RealRun, kind: str, fresh: bool) -> bool:
    """Run one run unless it has a current result, and record it; whether it reaches its goals."""
    result = read_results()[kind].get(spec.name)
    if result is None or fresh or not is_current(result, spec, kind):
        print(f"{kind}: {spec.name} …", file=sys.stderr, flush=True)
        result = run_apart(spec, *KINDS[kind])
        if result is None:
            return False
        results = read_results()  # read again: another process may have written meanwhile
        results[kind][spec.name] = result
        write_results(results)
        print(json.dumps(result["figures"]), flush=True)
    return reaches_goals(result, spec)


def main() -> int:
    """Run what is asked for and write the page; 0 if all of it reached its goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="runs whose name contains one")
    parser.add_argument("--again", action="store_true", help="repeat with other names and seed")
    parser.add_argument("--fresh", action="store_true", help="also run what has a result")
    parser.add_argument("--page", action="store_true", help="only write the page")
    args = parser.parse_args()
    kind = "again" if args.again else "first"
    chosen = [s for s in runs_of(kind) if not args.only or any(p in s.name for p in args.only)]
    ok = True
    for spec in [] if args.page else chosen:
        ok &= measure(spec, kind, args.fresh)
    PAGE.write_text(renew(PAGE.read_text("utf-8"), tables(read_results())), "utf-8")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
