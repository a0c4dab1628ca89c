"""CONTRIBUTING.md is followed to the letter: the file is written, the line added, and it trains."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from builders import WORDS, write_jsonl

ROOT = Path(__file__).resolve().parents[1]


def section(title: str) -> str:
    """One section of the page."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {title}\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def run_surefit(folder: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints, with the copy of the package in `folder`."""
    done = subprocess.run(
        [sys.executable, "-m", "surefit", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr[-2000:]
    return done.stdout


def test_the_data_format_of_the_page_is_read_and_trained_on(tmp_path: Path) -> None:
    page = section("Adding a data format")
    name = re.search(r"`surefit/data/formats/(\w+)\.py`:\n", page)
    assert name is not None
    source, line = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shutil.copytree(ROOT / "surefit", tmp_path / "surefit")
    data = tmp_path / "surefit" / "data"
    (data / "formats" / f"{name[1]}.py").write_text(source, encoding="utf-8")
    registry = (data / "open_data.py").read_text(encoding="utf-8")
    imports = "from surefit.data.formats import (\n"
    registry = registry.replace(imports, f"{imports}    {name[1]},\n")
    openers = "OPENERS: dict[str, Opener] = {\n"
    registry = registry.replace(openers, f"{openers}{line}")
    (data / "open_data.py").write_text(registry, encoding="utf-8")
    blocks = [f"text: {WORDS[n % 9]} {n}\nlabel: {'ab'[n % 2]}\n" for n in range(40)]
    (tmp_path / "notes.rec").write_text("\n".join(blocks), encoding="utf-8")
    options = ("--data", "notes.rec", "--model", "tiny:bert")
    run_surefit(tmp_path, "train", *options, "--max-steps", "2", "--output", "run")
    with gzip.open(tmp_path / "notes.rec.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join([*blocks[:9], "text without a colon\n"]))
    found = run_surefit(tmp_path, "check", "--json", *options[2:], "--data", "notes.rec.gz", code=1)
    (fault,) = json.loads(found)["findings"]
    assert (fault["code"], fault["where"]["line"]) == ("SF102", 28)


def test_the_task_of_the_page_trains(tmp_path: Path) -> None:
    page = section("Adding a task")
    name = re.search(r"`surefit/tasks/(\w+)\.py`:\n", page)
    assert name is not None
    source, line = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shutil.copytree(ROOT / "surefit", tmp_path / "surefit")
    tasks = tmp_path / "surefit" / "tasks"
    (tasks / f"{name[1]}.py").write_text(source, encoding="utf-8")
    registry = (tasks / "__init__.py").read_text(encoding="utf-8")
    registry = registry.replace(
        "from surefit.tasks import (\n", f"from surefit.tasks import (\n    {name[1]},\n"
    )
    registry = registry.replace("        sft.SPEC,\n", f"{line}        sft.SPEC,\n")
    (tasks / "__init__.py").write_text(registry, encoding="utf-8")
    rows = [{"text": " ".join(WORDS[: n % 9 + 1]), "label": n % 9 + 1} for n in range(200)]
    write_jsonl(tmp_path / "scores.jsonl", rows)

    run_surefit(
        tmp_path,
        *("train", "--task", "text-score", "--data", "scores.jsonl", "--model", "tiny:bert"),
        *("--epochs", "25", "--output", "run"),
    )
    result = json.loads(
        run_surefit(tmp_path, "evaluate", "run", "--data", "scores.jsonl", "--json")
    )
    assert result["metrics"]["mae"] < 1.0  # the mean alone would give 2.2
    answer = json.loads(
        run_surefit(tmp_path, "predict", "run", "--text", "red blue green one two three cat dog")
    )
    assert abs(answer["prediction"] - 8) < 1.5
