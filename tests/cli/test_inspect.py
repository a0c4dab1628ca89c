"""`surefit inspect`: arrays on disk, how files are read, and one row as the model sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from builders import feature_rows, save_ragged, write_jsonl
from opening import written
from surefit.cli import run
from surefit.plan.draft import Stage


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shards of three types, and one that cannot be read."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shards"
    folder.mkdir()
    values = np.arange(2 * 5 * 6, dtype=np.float32).reshape(2, 5, 6)
    np.save(folder / "a.npy", values)
    with_gaps = values.astype(np.float64)
    with_gaps[0, 0, :3] = np.nan
    with_gaps[1, 0, 0] = np.inf
    np.save(folder / "b.npy", with_gaps)
    np.save(folder / "c.npy", values.astype(np.int32))
    (folder / "e.npy").touch()
    return folder


def test_every_array_is_reported(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["inspect", "shards", "--set", "on_bad_file=skip"]
    assert run([*options, "--json"]) == 0
    report: Any = json.loads(capsys.readouterr().out)
    by_file = {Path(each["file"]).name: each for each in report["arrays"]}
    assert by_file["a.npy"]["shape"] == [2, 5, 6]
    assert (by_file["a.npy"]["smallest"], by_file["a.npy"]["largest"]) == (0, 59)
    assert by_file["b.npy"]["dtype"] == "float64"
    assert by_file["b.npy"]["nan_share"] == pytest.approx(3 / 60)
    assert by_file["b.npy"]["infinite"] == 1
    assert by_file["c.npy"]["dtype"] == "int32"
    assert "it is empty" in by_file["e.npy"]["fault"]
    assert report["layout"]["steps"] == [5, 5]
    assert report["layout"]["width"] == 6
    assert [fix.split(": ")[0] for fix in report["layout"]["fixes"]] == ["SF420 b.npy, c.npy"]
    assert run(options) == 0
    shown = capsys.readouterr().out
    assert "b.npy  b      [2, 5, 6]  float64  3 … 59  5.00%, 1 infinite" in shown
    assert "read as   sequence length 5, feature size 6" in shown
    assert "\x1b" not in shown


def test_files_that_do_not_go_together_are_still_shown(
    shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", "shards"]) == 1
    shown = capsys.readouterr()
    assert "c.npy  c      [2, 5, 6]" in shown.out
    assert "cannot be read: shards/e.npy" in shown.out
    assert "error: shards/e.npy" in shown.err
    assert run(["inspect", "shards", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_what_the_model_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_ragged(tmp_path / "x.npz", feature_rows(40))
    surefit.train(data="x.npz", model="tiny:bert", max_steps=1, output="run")
    flat = np.zeros((6, 24), np.float32)
    np.save(tmp_path / "flat.npy", flat)
    assert run(["inspect", "flat.npy"]) == 0
    assert "unclear   rows of column 'features' are flat, [24]" in capsys.readouterr().out
    assert run(["inspect", "flat.npy", "--model", "run"]) == 0
    shown = capsys.readouterr().out
    assert "run/model: feature size 4, as in training" in shown
    assert "read as   sequence length 6, feature size 4" in shown


def test_lengths_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = surefit.inspect(str(save_ragged(tmp_path / "x.npz", feature_rows(40))))
    assert "█" in str(report)
    column = next(each for each in report.columns if each.name == "features")
    assert column.histogram is not None
    assert sum(bar[2] for bar in column.histogram) == 40
    assert {each.array for each in report.arrays} == {"features", "lengths", "label"}


def test_what_was_worked_out_is_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "a.tsv", "ham\tgo on then\nspam\twin a prize\nham\tsee you there\n")
    assert run(["inspect", str(path), "--json"]) == 0
    shown = capsys.readouterr()
    assert [column["name"] for column in json.loads(shown.out)["columns"]] == ["label", "text"]
    assert "has no header line" in shown.err
    assert run(["inspect", str(path), "--json", "--set", "read.names=[kind, words]"]) == 0
    shown = capsys.readouterr()
    assert [column["name"] for column in json.loads(shown.out)["columns"]] == ["kind", "words"]
    assert run(["inspect", str(path), "--set", "read.nmes=[a, b]"]) == 2


@pytest.mark.parametrize(("task", "model"), [("sft", "tiny:llama"), ("seq2seq", "tiny:t5")])
def test_nested_row_as_the_model_sees_it(
    task: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [{"question": f"Who is {n}?", "answers": [{"text": "Kim"}]} for n in range(6)]
    nested = {"data": [{"paragraphs": [{"context": "Kim is here.", "qas": asked}]}]}
    path = written(tmp_path / "a.json", json.dumps(nested))
    assert (
        run(["inspect", str(path), "--row", "2", "--model", model, "--task", task, "--json"]) == 0
    )
    shown = json.loads(capsys.readouterr().out)
    tokens = [*shown["tokens"], *shown.get("target_tokens", ())]
    assert "".join(t["text"] for t in tokens if not t["special"]) == (
        "Who is 2?\nKim is here.\nKim" if task == "sft" else "Who is 2?\nKim is here.Kim"
    )
    learned = [token["text"] for token in tokens if token["learned"] and not token["special"]]
    assert learned == ["Kim"]


ROWS = [{"id": i, "prompt": f"what is {i}?", "completion": f"it is {i}"} for i in range(20)]


def test_a_row_of_text_is_shown_without_building_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("the model is built, or all rows are encoded")

    monkeypatch.setattr("surefit.plan.stages.BUILDING", (Stage("building", fail),))
    monkeypatch.setattr("surefit.plan.stages.ENCODING", Stage("encoding", fail))
    data = str(
        write_jsonl(tmp_path / "rows.jsonl", ROWS)
    )  # `id` is a number, which no forward names
    assert run(["inspect", data, "--row", "3", "--model", "tiny:llama", "--json"]) == 0
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
    data = str(write_jsonl(tmp_path / "rows.jsonl", rows))
    monkeypatch.chdir(tmp_path)
    assert run(["inspect", data, "--row", "3", "--model", "row_net:make", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["features"], shown["age"], shown["class"]) == ([3.0, 1.5], 1.5, "b")
    assert "id" not in shown


@pytest.mark.slow
def test_what_inspect_imports(tmp_path: Path) -> None:
    data = str(write_jsonl(tmp_path / "rows.jsonl", ROWS))

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
