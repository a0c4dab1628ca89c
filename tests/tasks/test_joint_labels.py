"""Several columns of 0 and 1 as one target: columns.label is a list."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import WORDS, write_jsonl
from surefit.cli import run as command
from surefit.data.label_columns import join_columns
from surefit.data.python.rows_to_arrow import open_rows

TOPICS = ["cat", "moon", "red"]
LABEL = "[cat, moon, red]"


def topic_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Texts with a column for each of three words: whether it is in the text."""
    choose = random.Random(seed)
    texts = [choose.choices(WORDS, k=choose.randint(2, 6)) for _ in range(count)]
    return [
        {"text": " ".join(t), **{w: int(w in t) for w in TOPICS}, "id": n}
        for n, t in enumerate(texts)
    ]


def number_rows(count: int) -> list[dict[str, Any]]:
    """Two numbers, and whether each is above zero."""
    choose = random.Random(1)
    pairs = [(choose.gauss(0, 1), choose.gauss(0, 1)) for _ in range(count)]
    return [{"x": x, "y": y, "right": x + y > 0.3, "up": x - y > 0} for x, y in pairs]


def test_columns_become_lists_and_missing_values_no_label() -> None:
    rows = [{"a": 1, "b": 0, "t": "x"}, {"a": None, "b": 1, "t": "y"}, {"a": 1, "b": 1, "t": "z"}]
    table = join_columns(open_rows(rows), ["[a, b]", "t"])
    assert table.columns == ("t", "[a, b]")
    assert table.arrow["[a, b]"].to_pylist() == [[1, 0], None, [1, 1]]
    new = open_rows([{"t": "x"}])
    assert join_columns(new, ["[a, b]"]) is new


def test_texts_are_checked_with_the_columns_as_classes() -> None:
    plan = surefit.check(
        data=topic_rows(120), model="tiny:bert", columns={"label": TOPICS}, max_seq_length=32
    )
    assert plan.ok
    assert plan.task is not None
    assert plan.task.name == "text-classification"
    assert plan.columns == {"text": "text", **dict.fromkeys(TOPICS, "label"), "id": None}
    assert plan.job is not None
    encoder = plan.job.pipeline.encoder
    assert encoder.classes == TOPICS
    assert encoder.fitted["multi_label"]
    row = plan.job.pipeline.encode_row({"text": "a red cat", LABEL: [1, 0, 1]})[0]
    assert row.columns["labels"].tolist() == [1.0, 0.0, 1.0]


def test_rows_of_a_table_may_have_several_classes(tmp_path: Path) -> None:
    run = surefit.train(
        data=number_rows(200),
        model="tiny:mlp",
        columns={"label": ["right", "up"]},
        epochs=4,
        lr=0.01,
        output=str(tmp_path / "run"),
    )
    assert run.plan["columns"] == {
        "x": "features",
        "y": "features",
        "right": "label",
        "up": "label",
    }
    assert surefit.evaluate(run, number_rows(50))["macro_f1"] > 0.8
    (found,) = surefit.predict(run, [{"x": 3.0, "y": 0.0}])
    assert found["prediction"] == ["right", "up"]


@pytest.mark.parametrize(
    ("columns", "code"),
    [("[cat, moon, none]", "SF202"), ("[cat, id]", "SF205"), ("[cat, text]", "SF213")],
)
def test_columns_that_do_not_suit_are_refused(
    columns: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{**r, "more": "x y"} for r in topic_rows(60)])
    task = ["--task", "text-classification", "--set", "columns.text=text"]
    if "text" in columns:
        task = ["--task", "tabular-classification"]
    options = ["--data", str(path), "--model", "tiny:bert", "--set", f"columns.label={columns}"]
    assert command(["check", "--json", *options, *task]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [f["code"] for f in answer["findings"] if f["severity"] == "error"] == [code]


def test_several_binary_columns_are_offered_together() -> None:
    rows = topic_rows(60)
    (found,) = [
        f for f in surefit.check(data=rows, model="tiny:bert").findings if f.severity == "error"
    ]
    assert found.code == "SF143"
    assert f"--set 'columns.label={LABEL}'" in found.fix
