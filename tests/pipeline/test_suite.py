"""evaluate --suite, --general-text and --base: what is right for each prompt, before and after."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import surefit
from surefit.cli import run as run_command
from surefit.data.python.rows_to_arrow import open_rows
from surefit.data.table import Table
from surefit.errors import RunFailedError, UsageError
from surefit.pipeline.suite import judge_suite
from tests.builders import echo_rows, write_jsonl


def judged(rows: list[dict[str, Any]], answer: str, **functions: Any) -> Any:
    def answers(table: Table) -> Iterator[Mapping[str, Any]]:
        assert table.columns == ("prompt",)
        yield from ({"row": n, "prompt": "p", "prediction": answer} for n in range(table.num_rows))

    return judge_suite(open_rows([{"prompt": "p", **row} for row in rows]), answers, functions.get)


KNOWN = [
    ({"exact": "The cat."}, "cat", 1.0),
    ({"exact": "cats"}, "cat", 0.0),
    ({"exact": ["dog", "cat"]}, "cat", 1.0),
    ({"regex": "c[a-z]t$"}, "a cat", 1.0),
    ({"regex": "^cat"}, "a cat", 0.0),
    ({"f1": "red cat"}, "blue cat", 0.5),
    ({"function": "long"}, "cat", 3.0),
]


@pytest.mark.parametrize(("row", "answer", "score"), KNOWN)
def test_each_kind_scores_as_it_says(row: dict[str, Any], answer: str, score: float) -> None:
    [item], scores = judged([row], answer, long=lambda got, row: len(got))
    [kind] = row
    assert scores == {kind: score, "all": score}
    assert item == {
        "row": 0, "kind": kind, "expected": row[kind], "prompt": "p", "answer": answer,
        "score": score,
    }  # fmt: skip


def test_scores_are_means_by_kind_and_of_all() -> None:
    _, scores = judged([{"exact": "cat"}, {"exact": "dog"}, {"f1": "red cat"}], "cat")
    assert scores == pytest.approx({"exact": 0.5, "f1": 2 / 3, "all": (1 + 2 / 3) / 3})


def test_a_row_says_in_one_way_what_is_right() -> None:
    with pytest.raises(UsageError, match=r"Row 1 of .* has exact and regex of"):
        judged([{"exact": "a"}, {"exact": "a", "regex": "a"}], "a")
    with pytest.raises(UsageError, match=r"Row 0 of .* has none of"):
        judged([{}], "a")
    with pytest.raises(UsageError, match=r"Row 0 of the suite: '\(' is no regular expression"):
        judged([{"regex": "("}], "a")
    with pytest.raises(RunFailedError, match="Row 0 of the suite: own failed: ZeroDivisionError"):
        judged([{"function": "own"}], "a", own=lambda got, row: 1 / 0)


def test_a_run_is_judged_beside_its_base(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.py").write_text("def is_b(answer, row):\n    return row['prompt'] == 'b'\n")
    run = surefit.train(
        data=write_jsonl(tmp_path / "data.jsonl", echo_rows(24)), model="tiny:llama", max_steps=2,
        lr=0.01, output=tmp_path / "run", eval_at_start=True, quiet=True,
        generate={"rows": 0, "max_new_tokens": 4},
    )  # fmt: skip
    rows = [{"prompt": "a", "regex": "."}, {"prompt": "b", "function": "judge:is_b"}]
    suite = str(write_jsonl(tmp_path / "suite.jsonl", rows))
    command = ["evaluate", str(run.path), "--suite", suite, "--json"]
    assert run_command(command) == 2  # the code that a file names is not run
    capsys.readouterr()
    assert run_command([*command, "--trust-code", "judge:is_b", "--base"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scores"]["function"] == 1
    assert [each["row"] for each in found["items"]] == [0, 1]
    assert {*found["before"]["metrics"]} == {"regex", "function", "all"}
    text = tmp_path / "general.txt"
    text.write_text("red blue green\none two three\n" * 9)
    figures = surefit.evaluate(run, general_text=text, base=True, quiet=True)
    before = figures["before"]
    for each in (figures, before):
        assert each["general_perplexity"] == pytest.approx(math.exp(each["general_loss"]))
    assert before["general_loss"] != figures["general_loss"]
    [start, *_] = (each["metrics"] for each in run.history if each["event"] == "eval")
    assert before["loss"] == pytest.approx(start["loss"])
    assert before["loss"] != figures["loss"] == pytest.approx(run.metrics["loss"])
