"""One version of surefit against another: the same jobs, in alternated pairs.

python bench/versions.py REVISION [--only lora full classification] [--pairs 5] [--page FILE]

REVISION is checked out into a temporary folder. Each run is a process of its own; old and new take
turns, so that a busy moment of the machine hits both. Measured is the CPU time of the steps after
the first one, with one thread: other work on the machine hardly changes it. A figure is the median
of the pairs' ratios.
`--page` replaces the table between the markers of that file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = {"lora": 24, "full": 64, "classification": 256}
"""The parts, and how many rows of each are trained on."""
START, END = "<!-- versions -->", "<!-- end versions -->"
LAUNCH = (
    "import runpy, sys; sys.path.insert(0, sys.argv[1]); import surefit; "
    "assert surefit.__file__.startswith(sys.argv[1]); "
    "sys.argv = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


def main() -> None:
    """Run all pairs, print each, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision")
    parser.add_argument("--only", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(
            ["git", "worktree", "add", "--detach", str(old), args.revision], cwd=ROOT, check=True
        )
        try:
            lines = [measure(part, old, args.pairs) for part in args.only]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(old)], cwd=ROOT, check=True)
    text = "\n".join([*head(args.revision, args.pairs), *lines])
    print(text)
    if args.page is not None:
        page = args.page.read_text(encoding="utf-8")
        before, rest = page.split(START)
        after = rest.split(END)[1]
        args.page.write_text(f"{before}{START}\n{text}\n{END}{after}", encoding="utf-8")


def measure(part: str, old: Path, pairs: int) -> str:
    """The row of one part: seconds of both versions, and the ratio of each pair."""
    seconds: list[tuple[float, float]] = []
    for turn in range(pairs):
        both = {name: contend(part, package) for name, package in (("old", old), ("new", ROOT))}
        seconds.append((both["old"], both["new"]))
        print(
            f"{part} {turn + 1}/{pairs}: old {both['old']:.4g}, new {both['new']:.4g}", flush=True
        )
    ratios = sorted(before / new for before, new in seconds)
    before, new = (statistics.median(side) for side in zip(*seconds, strict=True))
    spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
    return f"| {part} | {before:.4g} | {new:.4g} | {statistics.median(ratios):.3f} | {spread} |"


def contend(part: str, package: Path) -> float:
    """CPU seconds of surefit, as `package` has it, on one part."""
    launch = [sys.executable, "-c", LAUNCH, str(package), str(ROOT / "bench" / "contend.py")]
    done = subprocess.run(
        [*launch, part, "surefit", "--rows", str(ROWS[part]), "--cpu-time"],
        env={**os.environ, "SUREFIT_CACHE": tempfile.mkdtemp(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def head(revision: str, pairs: int) -> list[str]:
    """What was compared, where, and the header of the table."""
    new = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return [
        f"CPU seconds of the steps of {revision} (old) and {new} (new); medians of {pairs} "
        f"alternated pairs; {cpu_name()}, {os.cpu_count()} cores, {date.today()}.",
        "",
        "| part | old, s | new, s | speed new / old, median of the pairs | lowest to highest |",
        "| --- | --- | --- | --- | --- |",
    ]


def cpu_name() -> str:
    """The processor, as the kernel names it."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().split("\n") if line.startswith("model name")]
    return names[0].split(":")[1].strip() if names else platform.processor()


if __name__ == "__main__":
    main()
