"""`surefit inspect` says what was worked out, and reads as it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opening import written
from surefit.cli import run


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
