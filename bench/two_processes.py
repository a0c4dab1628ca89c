"""Two processes against one at the same total number of threads: rows per second, alternated.

python bench/two_processes.py [--repeats 5] [--page docs/guides.md]

One process computes with 2 threads, two with 1 thread each; the effective batch is the same. Each
pair is run one after the other, in alternating order. The ratio is that of the median step times
of a pair; the page gets the median ratio with the smallest and largest. MiniLM is a BERT of 22.7
million parameters with real weights, from a package that the tests install.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from real_run_page import fill_in

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- two_processes -->", "<!-- /two_processes -->"
STEPS, ROWS, BATCH = 30, 16, 16
SKIPPED_STEPS = 5
"""Of each run, while caches and allocators settle."""


@dataclass(frozen=True)
class Case:
    """A model, its task, and how two processes share it."""

    name: str
    model: str
    task: str
    parallel: str = "ddp"


def cases() -> list[Case]:
    """Steps of milliseconds, where starting them counts, and of about half a second."""
    minilm = fill_in("$MINILM", Path())
    return [
        Case("`tiny:llama`", "tiny:llama", "sft"),
        Case("`tiny:bert`", "tiny:bert", "text-classification"),
        Case("MiniLM", minilm, "text-classification"),
        Case("MiniLM, `parallel=fsdp`", minilm, "text-classification", "fsdp"),
    ]


def main() -> None:
    """Measure, print, and write the table into the page."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--page", type=Path)
    given = arguments.parse_args()
    lines = [
        f"Measured on {os.cpu_count()} cores ({platform.machine()}, no GPU, gloo), "
        f"{given.repeats} alternated pairs, {datetime.now(UTC):%Y-%m-%d}:",
        "",
        "| model | one process, 2 threads | two processes, 1 thread each | speed of two |",
        "| --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory(prefix="two-processes-") as place:
        write_rows(Path(place))
        for case in cases():
            pairs = [measure_pair(Path(place), case, n) for n in range(given.repeats)]
            ratios = [one / two for one, two in pairs]
            one, two = (statistics.median(times) for times in zip(*pairs, strict=True))
            lines.append(
                f"| {case.name} | {one * 1e3:.1f} ms a step | {two * 1e3:.1f} ms a step | "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) |"
            )
    print("\n".join(lines))
    if given.page is not None:
        write_into(given.page, "\n".join(lines))


def write_rows(folder: Path) -> None:
    """Texts of 5 to 60 words, with an answer and a label."""
    choose = random.Random(0)
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
    sft, labelled = [], []
    for _ in range(STEPS * ROWS + 64):
        text = " ".join(choose.choices(words, k=choose.randrange(5, 60)))
        sft.append({"prompt": text, "completion": text[:40]})
        labelled.append({"text": text, "label": choose.choice(["a", "b"])})
    for name, rows in {"sft": sft, "text-classification": labelled}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def measure_pair(folder: Path, case: Case, number: int) -> tuple[float, float]:
    """Median step time of one process and of two; every other pair begins with two."""
    order = (1, 2) if number % 2 == 0 else (2, 1)
    seconds = {count: measure(folder, case, count, number) for count in order}
    return seconds[1], seconds[2]


def measure(folder: Path, case: Case, processes: int, number: int) -> float:
    """Median step time of one run."""
    output = Path(tempfile.mkdtemp(dir=folder)) / f"run-{number}"
    command = [sys.executable, "-m", "surefit", "train", "--processes", str(processes)]
    command += ["--data", f"{case.task}.jsonl", "--task", case.task, "--model", case.model]
    command += ["--output", str(output)]
    if processes > 1:
        command += ["--set", f"parallel={case.parallel}"]
    command += ["--batch-size", str(BATCH // processes), "--max-steps", str(STEPS)]
    command += ["--set", "eval_share=0", "--set", "generate.rows=0", "--set", "compile=off"]
    env = {**os.environ, "OMP_NUM_THREADS": str(2 // processes), "CUDA_VISIBLE_DEVICES": ""}
    env |= {"PYTHONPATH": str(ROOT), "SUREFIT_CACHE": str(folder / "cache")}
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
    events = map(json.loads, (output / "events.jsonl").read_text().splitlines())
    times = [event["seconds"] for event in events if event["event"] == "step"]
    return statistics.median(times[SKIPPED_STEPS:])


def write_into(page: Path, table: str) -> None:
    """Put the table between its marks."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(START, 1)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{START}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
