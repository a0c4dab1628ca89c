"""A long run with evaluations and checkpoints: memory, descriptors, threads and files stay flat.

    python tests/reliability/soak.py [--steps 5000] [--job NAME]

Each job is a process of its own, which counts what it holds after every few steps. A line is fitted
to the last 80 % of these samples. A figure fails where both the rise of the line and the rise of
the median, from the first half of the samples to the second, exceed its bound in `BOUNDS`: a
checkpoint that a sample happens to see half written moves the line of a short run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from configurations import OUTPUT, prepare

LANGUAGE = {"data": "rows.jsonl", "model": "tiny:llama", "lora_r": 4, "batch_size": 4}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "language model": (
        "tiny Llama, LoRA, generation in each evaluation",
        {**LANGUAGE, "generate": {"rows": 2, "max_new_tokens": 4}},
    ),
    "features": (
        "own module, dropout, two worker processes",
        {"data": "data.npz", "model": "net:make", "lr": 0.01, "max_tokens": 64, "workers": 2},
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
SAMPLES = 100


def main() -> int:
    """Run the jobs and print what grew; 1 if anything did."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, default=5000)
    arguments.add_argument("--job", choices=JOBS, action="append")
    arguments.add_argument("--here", action="store_true", help="run the job in this process")
    given = arguments.parse_args()
    if given.here:
        train(JOBS[given.job[0]][1], given.steps)
        return 0
    wrong = []
    for name in given.job or JOBS:
        samples = soak(name, given.steps)
        print(f"{name} ({JOBS[name][0]}): {given.steps} steps, {len(samples)} samples")
        for figure, bound in BOUNDS.items():
            grew = judge([sample[figure] for sample in samples])
            shown = ", ".join(f"{key} {value:.2f}" for key, value in grew.items())
            print(f"  {figure}: {shown} (bound {bound})", flush=True)
            if min(grew["line grew"], grew["median grew"]) > bound:
                wrong.append(f"{name}: {figure} grew by {grew['line grew']:.2f}")
    print("\n".join(wrong) or "nothing grew")
    return min(len(wrong), 1)


def soak(job: str, steps: int) -> list[dict[str, float]]:
    """Run one job in a process and folders of its own; what it held, without the first fifth."""
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        folder = prepare(Path(place) / "job")
        temporary = Path(place) / "tmp"
        temporary.mkdir()
        own = {"SUREFIT_CACHE": f"{place}/cache", "XDG_STATE_HOME": f"{place}/state"}
        environment = {**os.environ, **own, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), "--here", "--job", job]
        command += ["--steps", str(steps)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        samples = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(samples) == SAMPLES
    return samples[SAMPLES // 5 :]


def train(options: dict[str, Any], steps: int) -> None:
    """Train in the working folder, and print what the process holds at equal distances."""
    import surefit

    sys.path.insert(0, "")
    results, every = sys.stdout, max(steps // 50, 10)

    def sample(event: Any) -> None:
        if event["event"] == "step" and event["step"] % (steps // SAMPLES) == 0:
            print(json.dumps(held()), file=results, flush=True)

    surefit.train(
        **options,
        epochs=steps,
        max_steps=steps,
        save_every=every,
        eval_every=2 * every,
        output=OUTPUT,
        callbacks=[sample],
    )


def held() -> dict[str, float]:
    """What this process and its workers hold."""
    own = os.getpid()
    workers = Path(f"/proc/self/task/{own}/children").read_text().split()
    return {
        "private memory (MB)": _private(own),
        "private memory of workers (MB)": sum(_private(int(worker)) for worker in workers),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "files of the run": sum(1 for _ in Path(OUTPUT).rglob("*")),
        "temporary files": len(os.listdir(os.environ["TMPDIR"])),
    }


def judge(values: list[float]) -> dict[str, float]:
    """The ends of a figure, and how much it grew: the fitted line, and the median of each half."""
    line = np.polyfit(np.arange(len(values)), values, 1)[0] * (len(values) - 1)
    early, late = np.array_split(values, 2)
    grew = float(np.median(late) - np.median(early))
    ends = {"first": values[0], "last": values[-1], "most": max(values)}
    return {**ends, "line grew": float(line), "median grew": grew}


def _private(pid: int) -> float:
    """Memory that no file stands behind, in MB; pages that a forked worker still shares count."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n")
    except OSError:  # a worker that has just ended
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


if __name__ == "__main__":
    sys.exit(main())
