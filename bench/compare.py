"""surefit beside what a user would pick instead, on this machine, in one run.

python bench/compare.py [--only PART ...] [--rounds 3] [--quick] [--results FILE]
                        [--contenders NAME ...] [--against FOLDER] [--cpu-time]
                        [--rows N]

Every contender runs in a process of its own, so that its peak memory is its own; contenders
take turns, round by round, so that a busy moment of the machine hits all of them. Results are kept
per part in a JSON file; docs/speed.md and docs/speed.svg are written from it, also when only some
parts were run again. `--quick` is for trying the bench itself and writes neither. `--against` adds
another version of surefit: its repository, with an environment of its own in `.venv`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from page import write_page

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "speed.json"
LANGUAGE = (
    "surefit",
    "HF Trainer",
    "HF Trainer grouped",
    "TRL",
    "TRL grouped",
    "TRL packed",
    "plain loop",
)
PARTS: dict[str, tuple[str, ...]] = {
    "gemm": ("torch",),
    "lora": LANGUAGE,
    "checkpointing": ("surefit", "HF Trainer", "TRL", "TRL packed"),
    "full": ("surefit", "HF Trainer", "HF Trainer grouped", "plain loop"),
    "classification": ("surefit", "HF Trainer", "HF Trainer grouped"),
    "collating": ("surefit", "stock collator", "stock collator, rows as lists"),
    "tokenising": ("surefit", "datasets.map", "datasets.map, 2 processes", "tokenizer alone"),
    "overhead": ("surefit", "HF Trainer", "torch alone"),
    "size": ("surefit", "surefit, 10 × the rows"),
    "profile": ("surefit",),
}


def main() -> None:
    """Run the parts asked for, round by round, and write what came of all parts so far."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, no page")
    parser.add_argument("--results", type=Path, default=None)
    parser.add_argument("--contenders", nargs="*", help="only these")
    parser.add_argument("--against", type=Path, help="the repository of another version")
    parser.add_argument("--rows", type=int, help="of each job that trains, only the first ones")
    parser.add_argument("--cpu-time", action="store_true", help="for a machine with other work")
    args = parser.parse_args()
    how = ["--quick"] * args.quick + ["--cpu-time"] * args.cpu_time
    how += ["--rows", str(args.rows)] if args.rows else []
    path = args.results or (None if args.quick else RESULTS)
    known = json.loads(path.read_text(encoding="utf-8")) if path and path.is_file() else {}
    for part in args.only:
        homes = {name: ROOT for name in PARTS[part] if name in (args.contenders or PARTS[part])}
        if args.against is not None:
            homes[f"surefit of {args.against.name}"] = args.against.absolute()
        known[part] = measure(part, homes, 1 if args.quick else args.rounds, how)
        if path is not None:
            path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    if path == RESULTS:
        write_page(known, ROOT)


def measure(part: str, homes: dict[str, Path], rounds: int, how: list[str]) -> dict[str, Any]:
    """Every contender of a part, `rounds` times, taking turns; medians and all single figures.

    `homes` has the repository whose code each contender runs.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in homes}
    for turn in range(rounds):
        for name, home in homes.items():
            figures = contend(part, name.partition(" of ")[0], home, how)
            found[name].append(figures)
            shown = ", ".join(f"{k} {v:.4g}" for k, v in figures.items() if isinstance(v, float))
            print(f"{part} {turn + 1}/{rounds} {name}: {shown or figures}", flush=True)
    medians = {
        name: {
            key: statistics.median(one[key] for one in each)
            for key, value in each[0].items()
            if isinstance(value, int | float)
        }
        for name, each in found.items()
    }
    return {"machine": machine(), "rounds": found, "medians": medians}


def contend(part: str, contender: str, home: Path, how: list[str]) -> dict[str, Any]:
    """The figures of one contender, from a process of its own."""
    python = sys.executable if home == ROOT else str(home / ".venv/bin/python")
    command = [python, str(home / "bench/contend.py"), part, contender, *how]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{part}, {contender} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    from importlib.metadata import version

    names = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
    return {
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "processor": _processor(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        **{name: version(name) for name in names},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


if __name__ == "__main__":
    main()
