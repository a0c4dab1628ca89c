"""CONTRIBUTING.md is followed to the letter: the file is written, the line added, and it trains."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from builders import WORDS, write_jsonl

ROOT = Path(__file__).resolve().parents[1]


def test_the_task_of_the_page_trains(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    name = re.search(r"`surefit/tasks/(\w+)\.py`:\n", page)
    assert name is not None
    source, line = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shutil.copytree(ROOT / "surefit", tmp_path / "surefit")
    tasks = tmp_path / "surefit" / "tasks"
    (tasks / f"{name[1]}.py").write_text(source, encoding="utf-8")
    registry = (tasks / "__init__.py").read_text(encoding="utf-8")
    spec_import = "from surefit.tasks.spec import"
    registry = registry.replace(spec_import, f"from surefit.tasks import {name[1]}\n{spec_import}")
    registry = registry.replace("        sft.SPEC,\n", f"{line}        sft.SPEC,\n")
    (tasks / "__init__.py").write_text(registry, encoding="utf-8")
    rows = [{"text": " ".join(WORDS[: n % 9 + 1]), "label": n % 9 + 1} for n in range(200)]
    write_jsonl(tmp_path / "scores.jsonl", rows)

    def surefit(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "surefit", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    surefit(
        *("train", "--task", "text-score", "--data", "scores.jsonl", "--model", "tiny:bert"),
        *("--epochs", "25", "--output", "run"),
    )
    result = json.loads(surefit("evaluate", "run", "--data", "scores.jsonl", "--json"))
    assert result["metrics"]["mae"] < 1.0  # the mean alone would give 2.2
    answer = json.loads(surefit("predict", "run", "--text", "red blue green one two three cat dog"))
    assert abs(answer["prediction"] - 8) < 1.5
