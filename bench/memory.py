"""Peak memory on data far larger than the memory limit, and the speed of reading from disk.

    python bench/memory.py [--gb 8] [--text-gb 1] [--only shards npz rows text speed] [--write]

Every run is a separate process. The sum of `Pss_Anon` and `Pss_Shmem` over it and its children is
sampled ten times a second. `--write` writes docs/memory.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from surefit.gigabytes import show_gb, to_bytes

ROOT = Path(__file__).resolve().parents[1]
STEPS, WIDTH = 20, 271
ROW_BYTES = STEPS * WIDTH * 4


@dataclass(frozen=True)
class Watched:
    """Peak memory, time and output of a process."""

    peak_bytes: int
    seconds: float
    output: str


def tree_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process and its children; shared pages count once (PSS)."""
    process, total = psutil.Process(pid), 0
    for each in (process, *process.children(recursive=True)):
        with suppress(PermissionError, ProcessLookupError, FileNotFoundError):  # it has just ended
            rollup = Path(f"/proc/{each.pid}/smaps_rollup").read_text()
            words = [line.split() for line in rollup.splitlines()]
            total += sum(int(w[1]) * 1024 for w in words if w[0] in ("Pss_Anon:", "Pss_Shmem:"))
    return total


def watch(command: list[str], env: dict[str, str]) -> Watched:
    """Run a command to its end and sample its memory."""
    began, peak = time.perf_counter(), 0
    process = subprocess.Popen(
        command,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    while process.poll() is None:
        try:
            peak = max(peak, tree_bytes(process.pid))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.1)
    output = process.stdout.read() if process.stdout else ""
    if process.wait():
        raise SystemExit(f"failed ({process.returncode}): {' '.join(command)}")
    return Watched(peak, time.perf_counter() - began, output)


WITH_CORES = """
import os
os.sched_getaffinity = lambda pid: set(range({cores}))
from surefit.cli import main
main()
"""


def surefit_run(work: Path, data: Path, options: list[str], cores: int | None = None) -> Watched:
    """Run `surefit train` into a new folder, with an empty cache, as if there were more cores."""
    output, cache = work / "run", work / "cache"
    shutil.rmtree(output, ignore_errors=True)
    shutil.rmtree(cache, ignore_errors=True)
    as_module = ["-m", "surefit"] if cores is None else ["-c", WITH_CORES.format(cores=cores)]
    command = [
        sys.executable,
        *as_module,
        "train",
        "--data",
        str(data),
        "--output",
        str(output),
    ]
    watched = watch([*command, *options], {"SUREFIT_CACHE": str(cache)})
    shutil.rmtree(cache)
    return watched


def make_shards(folder: Path, total_bytes: int) -> Path:
    """Shards of 64 MB or so of `[n, 20, 271]` float32."""
    if folder.exists():
        return folder
    temporary = folder.with_name(folder.name + ".new")
    temporary.mkdir(parents=True)
    random = np.random.default_rng(0)
    per_shard = 3000
    for number in range(max(1, round(total_bytes / (per_shard * ROW_BYTES)))):
        values = random.standard_normal((per_shard, STEPS, WIDTH), dtype=np.float32)
        np.save(temporary / f"part-{number:04}.npy", values)
    temporary.rename(folder)
    return folder


def make_text(path: Path, total_bytes: int) -> Path:
    """Instruction rows as JSON lines, of words with a Zipf distribution."""
    if path.exists():
        return path
    random = np.random.default_rng(0)
    words = np.array(["".join(random.choice(list("etaoinshrdlu"), 1 + n % 9)) for n in range(5000)])
    shares = 1 / np.arange(1, 5001)
    texts = [" ".join(row) for row in random.choice(words, (5000, 160), p=shares / shares.sum())]
    temporary, written, number = path.with_suffix(".new"), 0, 0
    with temporary.open("w") as file:
        while written < total_bytes:
            prompt, completion = texts[number % 5000][:200], texts[number % 5000][200:]
            row = {"prompt": f"{number} {prompt}", "completion": completion}
            written += file.write(json.dumps(row) + "\n")
            number += 1
    temporary.rename(path)
    return path


PRETRAIN = ["--task", "feature-pretraining", "--model", "tiny:bert", "--batch-size", "32"]
SHORT = ["--max-steps", "100", "--set", "eval_share=0.001"]

IN_MEMORY = """
import sys, time
from pathlib import Path
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
files = sorted(Path(sys.argv[1]).glob("*.npy"))
data = TensorDataset(torch.from_numpy(np.concatenate([np.load(file) for file in files])))
model = torch.nn.Sequential(torch.nn.Linear(271, 128), torch.nn.ReLU(), torch.nn.Linear(128, 271))
optimizer = torch.optim.AdamW(model.parameters())
for step, (batch,) in enumerate(DataLoader(data, 32, shuffle=True)):
    loss = (model(batch) - batch).square().mean(); loss.backward()
    optimizer.step(); optimizer.zero_grad()
    if step == 100: break
"""


def shards(work: Path, gb: float) -> list[tuple[str, str]]:
    """Shards of many times the limit, compared with a loader that reads all rows into memory."""
    folder = make_shards(work / f"shards-{gb:g}", to_bytes(gb))
    ours = surefit_run(work, folder, [*PRETRAIN, *SHORT, "--max-memory-gb", "1"])
    plain = watch([sys.executable, "-c", IN_MEMORY, str(folder)], {})
    return [
        (f"{gb:g} GB of shards, `--max-memory-gb 1`: peak memory", show_gb(ours.peak_bytes)),
        (
            f"{gb:g} GB of shards, a loader that reads all rows into memory: peak memory",
            show_gb(plain.peak_bytes),
        ),
        (f"{gb:g} GB of shards: time from command to step 100", f"{ours.seconds:.0f} s"),
    ]


def npz(work: Path, gb: float) -> list[tuple[str, str]]:
    """Six archives with labels, plain and compressed; as many child processes as with 8 cores."""
    found, num_files = [], 6
    for name, save in (("plain", np.savez), ("compressed", np.savez_compressed)):
        folder, random = work / f"npz-{name}-{gb:g}", np.random.default_rng(0)
        per_file = round(to_bytes(gb) / num_files / ROW_BYTES)
        folder.mkdir(exist_ok=True)
        for number in range(len(list(folder.iterdir())), num_files):
            values = random.standard_normal((per_file, STEPS, WIDTH), dtype=np.float32)
            save(folder / f"part-{number}.npz", X=values, y=np.arange(per_file) % 4)
        options = ["--task", "feature-classification", "--model", "tiny:bert", *SHORT]
        ours = surefit_run(work, folder, [*options, "--max-memory-gb", "1"], cores=8)
        shown = f"{gb:g} GB of {name} `.npz` files, 8 cores, `--max-memory-gb 1`: peak memory"
        found.append((shown, show_gb(ours.peak_bytes)))
    return found


def rows(work: Path, gb: float) -> list[tuple[str, str]]:
    """Growth of peak memory with ten times the rows."""
    peaks = []
    for size in (gb / 40, gb / 4):
        folder = make_shards(work / f"shards-{size:g}", to_bytes(size))
        peaks.append(surefit_run(work, folder, [*PRETRAIN, *SHORT]).peak_bytes)
    growth = peaks[1] / peaks[0] - 1
    return [("growth of peak memory with 10× the rows", f"{growth:+.1%}")]


def text(work: Path, gb: float) -> list[tuple[str, str]]:
    """JSON lines, tokenized and trained on for 100 steps."""
    found = []
    for size in (gb / 10, gb):
        file = make_text(work / f"text-{size:g}.jsonl", to_bytes(size))
        options = ["--task", "sft", "--model", "tiny:llama", "--batch-size", "4", *SHORT]
        options += ["--set", "generate.rows=4", "--max-memory-gb", "1.5"]
        ours = surefit_run(work, file, options)
        found.append((f"{size:g} GB of JSON lines: peak memory", show_gb(ours.peak_bytes)))
        found.append(
            (f"{size:g} GB of JSON lines: time from command to step 100", f"{ours.seconds:.0f} s")
        )
    return found


FROM_MEMORY = """
import sys, time, json
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
import surefit
folder, steps = sys.argv[1], int(sys.argv[2])
plan = surefit.check(data=folder, task="feature-classification", model="tiny:bert", batch_size=32)
model, rows = plan.job.pipeline.module, np.load(folder + "/X.npy")
labels = torch.from_numpy(np.load(folder + "/y.npy"))
data = TensorDataset(torch.from_numpy(rows), labels)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
model.train(); done = 0; began = None
while done < steps:
    for x, y in DataLoader(data, 32, shuffle=True):
        if done == 5: began = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(x, torch.ones(x.shape[:2])), y)
        loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(); optimizer.zero_grad(); done += 1
        if done == steps: break
print(json.dumps((steps - 5) / (time.perf_counter() - began)))
"""


def speed(work: Path, gb: float) -> list[tuple[str, str]]:
    """Steps per second on data that fits in memory, relative to a loop over rows in memory."""
    folder, steps = work / "fits", 205
    if not folder.exists():
        folder.mkdir()
        random = np.random.default_rng(0)
        np.save(folder / "X.npy", random.standard_normal((8000, STEPS, WIDTH), dtype=np.float32))
        np.save(folder / "y.npy", np.arange(8000) % 7)
    ratios = []
    for _ in range(3):
        command = [sys.executable, "-c", FROM_MEMORY, str(folder), str(steps)]
        env = {"SUREFIT_CACHE": str(work / "plain-cache")}
        plain = json.loads(watch(command, env).output)
        options = ["--task", "feature-classification", "--model", "tiny:bert", "--batch-size", "32"]
        options += ["--max-steps", str(steps), "--set", "eval_share=0.001"]
        surefit_run(work, folder, options)
        events = [json.loads(line) for line in (work / "run/events.jsonl").read_text().splitlines()]
        seconds = [event["seconds"] for event in events if event["event"] == "step"][5:]
        ratios.append(len(seconds) / sum(seconds) / plain)
    shown = f"{statistics.median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f}, 3 rounds)"
    name = (
        "steps per second on data that fits in memory, relative to a training loop with all rows "
        "in memory"
    )
    return [(name, shown)]


PARTS: dict[str, Callable[[Path, float], list[tuple[str, str]]]] = {
    "shards": shards,
    "npz": npz,
    "rows": rows,
    "text": text,
    "speed": speed,
}


def main() -> None:
    """Run the selected parts, print the table, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=8, help="size of the shards")
    parser.add_argument("--npz-gb", type=float, default=3, help="size of the archives")
    parser.add_argument("--text-gb", type=float, default=1, help="size of the larger text")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--work", type=Path, help="folder that keeps the data; default: a temporary one"
    )
    parser.add_argument("--write", action="store_true", help="write docs/memory.md")
    asked = parser.parse_args()
    work = asked.work or Path(tempfile.mkdtemp(prefix="surefit-memory-"))
    work.mkdir(parents=True, exist_ok=True)
    results_file = work / "results.json"
    results = json.loads(results_file.read_text()) if results_file.exists() else {}
    for part in asked.only:
        size = {"text": asked.text_gb, "npz": asked.npz_gb}.get(part, asked.gb)
        results[part] = PARTS[part](work, size)
        results_file.write_text(json.dumps(results))
        for name, value in results[part]:
            print(f"{name:60} {value}", flush=True)
    if asked.write:
        (ROOT / "docs/memory.md").write_text(page(results))
    if asked.work is None:
        shutil.rmtree(work)


def page(results: dict[str, list[tuple[str, str]]]) -> str:
    """The page: the table and the machine it was measured on."""
    lines = [f"| {name} | {value} |" for part in PARTS for name, value in results.get(part, ())]
    machine = f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 1e9:.0f} GB, no GPU"
    return "\n".join(
        [
            "# Memory",
            "",
            "`python bench/memory.py --write` writes this page. Memory is the sum of the anonymous "
            "and shared proportional set size (`Pss_Anon` and `Pss_Shmem`) over all processes of a "
            "run, sampled ten times a second from start to end: opening the data, statistics, "
            "encoding, training, evaluation. Pages of memory-mapped files are not counted, because "
            "the kernel reclaims them when it needs memory.",
            "",
            f"Machine: {machine}, Python {platform.python_version()}.",
            "",
            "| measure | value |",
            "| --- | --- |",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    main()
