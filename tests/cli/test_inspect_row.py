"""`inspect --row --model` reads one row: it neither builds the model nor imports what trains it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from surefit.cli import run as run_cli

ROWS = [{"id": i, "prompt": f"what is {i}?", "completion": f"it is {i}"} for i in range(20)]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_row_of_text_is_shown_without_building_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("the model is built, or all rows are encoded")

    monkeypatch.setattr("surefit.plan.stages.build_module", fail)
    monkeypatch.setattr("surefit.plan.stages.encode_split", fail)
    data = write(tmp_path / "rows.jsonl", ROWS)  # `id` is a number, which no forward names
    assert run_cli(["inspect", data, "--row", "3", "--model", "tiny:llama", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["side"] in ("training", "evaluation")
    assert shown["text"] == "what is 3?\nit is 3<|end|>"
    learned = [token["text"] for token in shown["tokens"] if token["learned"]]
    assert "".join(learned) == "it is 3<|end|>"


def test_a_column_that_the_own_module_names_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, size):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(2, size)\n"
        "    def forward(self, features, age):\n"
        "        raise ValueError('called')\n"
        "def make(size):\n"
        "    print('mine')\n"
        "    return Net(size)\n"
    )
    (tmp_path / "row_net.py").write_text(code)
    rows = [{"features": [i, 1.5], "age": i / 2, "id": i, "label": "ab"[i % 2]} for i in range(20)]
    data = write(tmp_path / "rows.jsonl", rows)
    monkeypatch.chdir(tmp_path)
    assert run_cli(["inspect", data, "--row", "3", "--model", "row_net:make", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["features"], shown["age"], shown["class"]) == ([3.0, 1.5], 1.5, "b")
    assert "id" not in shown


def test_what_inspect_imports(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", ROWS)

    def loaded(*more: str) -> set[str]:
        code = (
            f"import sys; from surefit.cli import run; assert run({['inspect', data, *more]}) == 0"
        )
        code += "; print(*sys.modules, file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {*done.stderr.split()}

    trains = {"peft", "datasets", "surefit.training.run"}
    trains.add("transformers.models.llama.modeling_llama")
    assert not loaded() & {"torch", "transformers", *trains}
    assert not loaded("--row", "3", "--model", "tiny:llama") & trains
