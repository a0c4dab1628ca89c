"""A long run with evaluations and checkpoints: memory, descriptors, threads and files stay flat.

    python tests/reliability/soak.py [--steps 5000] [--job NAME]

Each job is a process of its own. A line is fitted to the samples of the last 80 % of its steps. A
figure fails where both the rise of the line and the rise of the median, from the first half of the
samples to the second, exceed its bound in `BOUNDS`: a checkpoint that a sample happens to see half
written moves the line of a short run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from configurations import NET, OUTPUT, SHORT, prepare

JOBS = {
    "language model": (
        "tiny Llama, LoRA, generation in each evaluation",
        f"--data rows.jsonl --model tiny:llama --lora-r 4 --batch-size 4 {SHORT}",
    ),
    "features": (
        "own module, dropout, two worker processes",
        f"{NET} --max-tokens 64 --set workers=2",
    ),
}
BOUNDS = {
    "private memory (MB)": 8.0,
    "private memory of workers (MB)": 8.0,
    "descriptors": 2.0,
    "threads": 1.0,
    "files of the run": 10.0,
    "temporary files": 1.0,
}
"""How much the fitted line may grow over the last 80 % of the steps."""
SKIPPED = 0.2
SAMPLES_PER_SECOND = 10


def main() -> int:
    """Run the jobs and print what grew; 1 if anything did."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, default=5000)
    arguments.add_argument("--job", choices=JOBS, action="append")
    given = arguments.parse_args()
    found = {name: soak(JOBS[name][1], given.steps) for name in given.job or JOBS}
    wrong = [
        f"{job}: {name} grew by {figures['grew']:.2f}, more than {BOUNDS[name]}"
        for job, measured in found.items()
        for name, figures in measured["figures"].items()
        if min(figures["grew"], figures["median grew"]) > BOUNDS[name]
    ]
    for job, measured in found.items():
        print(f"{job} ({JOBS[job][0]}): {measured['steps']} steps, {measured['samples']} samples")
        for name, figures in measured["figures"].items():
            shown = ", ".join(f"{key} {value:.2f}" for key, value in figures.items())
            print(f"  {name}: {shown} (bound {BOUNDS[name]})")
    print("\n".join(wrong) or "nothing grew")
    return min(len(wrong), 1)


def soak(options: str, steps: int) -> dict[str, Any]:
    """Run one job and sample its process; first, last and fitted growth of each figure."""
    place = Path(tempfile.mkdtemp(prefix="soak-"))
    folder, temporary = prepare(place / "job"), place / "tmp"
    temporary.mkdir()
    every = max(steps // 50, 10)
    command = ["train", *options.split(), "--output", OUTPUT]
    command += ["--epochs", str(steps), "--max-steps", str(steps)]
    command += ["--set", f"save_every={every}", "--set", f"eval_every={2 * every}"]
    environment = {
        **os.environ,
        "SUREFIT_CACHE": str(place / "cache"),
        "XDG_STATE_HOME": str(place / "state"),
        "TMPDIR": str(temporary),
        "OMP_NUM_THREADS": "1",
    }
    with (place / "printed").open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "surefit", *command],
            cwd=folder,
            env=environment,
            stdout=printed,
            stderr=printed,
        )
        samples = list(_sample(process, folder / OUTPUT, temporary))
    if process.returncode:
        raise SystemExit((place / "printed").read_text()[-3000:])
    done = _lines(folder / OUTPUT / "events.jsonl", b'"event": "step"')
    assert done == steps, f"{done} steps, not {steps}"
    shutil.rmtree(place)
    kept = [sample for sample in samples if SKIPPED * steps <= sample["step"] < steps]
    at = np.array([sample["step"] for sample in kept])
    figures = {}
    for name in BOUNDS:
        values = np.array([sample[name] for sample in kept], float)
        slope = np.polyfit(at, values, 1)[0]
        ends = {"first": float(values[0]), "last": float(values[-1]), "most": float(values.max())}
        early, late = np.array_split(values, 2)
        figures[name] = {
            **ends,
            "grew": float(slope * (at[-1] - at[0])),
            "median grew": float(np.median(late) - np.median(early)),
        }
    return {"steps": steps, "samples": len(kept), "figures": figures}


def _sample(process: Any, run: Path, temporary: Path) -> Iterator[dict[str, float]]:
    """What the process holds, several times a second, once it has begun to train."""
    while process.poll() is None:
        step = _lines(run / "events.jsonl", b'"event": "step"')
        if step:
            try:
                yield {"step": step, **_held(process.pid, run, temporary)}
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
        time.sleep(1 / SAMPLES_PER_SECOND)


def _held(pid: int, run: Path, temporary: Path) -> dict[str, float]:
    place = Path(f"/proc/{pid}")
    workers = (place / "task" / str(pid) / "children").read_text().split()
    return {
        "private memory (MB)": _private(pid),
        "private memory of workers (MB)": sum(_private(int(worker)) for worker in workers),
        "descriptors": len(os.listdir(place / "fd")),
        "threads": len(os.listdir(place / "task")),
        "files of the run": sum(1 for _ in run.rglob("*")),
        "temporary files": len(os.listdir(temporary)),
    }


def _private(pid: int) -> float:
    """Memory that no file stands behind, in MB; pages that a forked worker still shares count."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n")
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


def _lines(path: Path, words: bytes) -> int:
    return path.read_bytes().count(words) if path.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
