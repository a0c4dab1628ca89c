"""Rows of numbers, categories and dates: what is read, what is left out, what is learned."""

from __future__ import annotations

import json
import random
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from builders import write_jsonl
from surefit.checks.giveaways import find_columns
from surefit.cli import run as command
from surefit.errors import FindingError
from surefit.findings import Finding
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput
from surefit.inputs.table.table_input import Gathered, encode_columns


def rule_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The class is whether exactly one of two categories is of the first kind."""
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        colour, shape = choose.choice(["red", "blue", "grey"]), choose.choice(["round", "flat"])
        label = "yes" if (colour == "red") != (shape == "round") else "no"
        rows.append({"colour": colour, "shape": shape, "weight": choose.random(), "label": label})
    return rows


def gather(rows: list[dict[str, Any]], label: str = "y") -> tuple[FittedInput, list[Finding]]:
    """What is fitted on rows whose target is `label`, with findings."""
    encoder = Encoder("regression", {"label": label}, whole_rows=True)
    gathered = Gathered(encoder)
    for _ in gathered.watch(map(encoder.read, rows)):
        pass
    return gathered.fitted()


def fit(rows: list[dict[str, Any]]) -> FittedInput:
    return gather(rows)[0]


def vector(fitted: FittedInput, **cells: Any) -> list[float]:
    encoder = Encoder("regression", {}, whole_rows=True, input=fitted)
    made: Any = encode_columns(cells, encoder, {}).finish([])
    return [round(value, 4) for value in made.columns["features"].tolist()]


def test_class_by_a_rule_of_two_categories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "rows.jsonl", rule_rows(400))
    arguments = ["train", "--data", "rows.jsonl", "--model", "tiny:mlp", "--output", "run"]
    assert command([*arguments, "--epochs", "6", "--batch-size", "16"]) == 0
    run = surefit.train(resume="run")
    assert run.plan["task"] == "tabular-classification"
    metrics = surefit.evaluate("run")
    assert metrics["accuracy"] > 0.97
    assert set(metrics) == {"loss", "accuracy", "macro_f1", "confusion"}
    new = rule_rows(50, seed=3)
    unlabelled = [{k: v for k, v in row.items() if k != "label"} for row in new]
    answers = surefit.predict("run", unlabelled)
    right = [a["prediction"] == row["label"] for a, row in zip(answers, new, strict=True)]
    assert np.mean(right) > 0.95
    capsys.readouterr()
    write_jsonl(tmp_path / "new.jsonl", [{"colour": "red", "shape": "flat", "weight": 0.5}])
    assert command(["predict", "run", "--data", "new.jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"] == "yes"


def test_blanks_and_unknown_categories_can_be_predicted_for(tmp_path: Path) -> None:
    rows = rule_rows(100)
    for row in rows[::5]:
        row["weight"] = None
    run = surefit.train(data=rows, model="tiny:mlp", max_steps=3, output=str(tmp_path / "run"))
    odd = [
        {"colour": "violet", "shape": None, "weight": None},
        {"colour": "red", "shape": "flat", "weight": float("nan")},
    ]
    answers = surefit.predict(run, odd)
    assert [answer["prediction"] in ("yes", "no") for answer in answers] == [True, True]
    with pytest.raises(FindingError, match="column 'shape' is missing") as caught:
        surefit.predict(run, [{"colour": "red", "weight": 1.0}])
    assert caught.value.findings[0].code == "SF202"
    with pytest.raises(FindingError, match="'heavy' is not a number"):
        surefit.predict(run, [{"colour": "red", "shape": "flat", "weight": "heavy"}])


def test_numbers_are_scaled_and_blanks_flagged() -> None:
    values = [1.5, 3.5, 5.5, None]
    fitted = fit([{"a": value, "y": 0.0} for value in values])
    assert fitted.width == 2
    assert vector(fitted, a=3.5) == [0.0, 0.0]
    assert vector(fitted, a=5.5) == [1.2247, 0.0]
    assert vector(fitted, a=None) == vector(fitted, a=float("nan")) == [0.0, 1.0]
    with pytest.raises(RowFaultError, match="not a finite number"):
        vector(fitted, a=float("inf"))


def test_categories_have_a_place_each_and_one_for_unknown() -> None:
    fitted = fit([{"c": value, "y": 0.0} for value in ["b", "a", " a ", None]])
    assert fitted.columns is not None
    assert fitted.columns[0].values == ("a", "b", None)
    assert vector(fitted, c="a") == [1, 0, 0, 0]
    assert vector(fitted, c="") == [0, 0, 1, 0]
    assert vector(fitted, c="z") == [0, 0, 0, 1]


def test_whole_numbers_with_few_values_are_categories_too() -> None:
    fitted = fit([{"hour": n % 4, "flag": bool(n % 2), "y": 0.0} for n in range(40)])
    assert [(p.column, p.kind) for p in fitted.columns or ()] == [
        ("hour", "number"),
        ("hour", "category"),
        ("flag", "number"),
    ]
    assert fitted.width == 1 + 5 + 1


def test_whole_numbers_are_codes_if_neighbours_have_other_targets() -> None:
    rng = np.random.default_rng(0)
    ids, effect = rng.integers(1000, 1060, 900), rng.normal(size=60)
    noise = rng.normal(0, 0.5, 900)
    targets = {"shop": effect[ids - 1000] + noise, "amount": (ids - 1030) / 20 + noise}
    for name, target in targets.items():
        rows = [{name: int(n), "y": float(y)} for n, y in zip(ids, target, strict=True)]
        kinds = [part.kind for part in fit(rows).columns or ()]
        assert kinds == (["number", "hashed"] if name == "shop" else ["number"])
    fitted = fit([{"shop": int(n), "y": float(effect[n - 1000])} for n in ids])
    assert sorted(set(vector(fitted, shop=1003)[1:])) == [0, 1]
    assert vector(fitted, shop=1003)[1:] != vector(fitted, shop=1004)[1:]


def test_dates_are_read_by_their_parts() -> None:
    days = [date(2020, 1, 1) + timedelta(days=17 * n) for n in range(40)]
    for cells in (days, [day.isoformat() for day in days]):
        fitted = fit([{"at": cell, "y": 0.0} for cell in cells])
        read = {part.part for part in fitted.columns or ()}
        assert read == {"year", "month", "day", "weekday"}  # the hour is always 0
        assert len(vector(fitted, at=cells[0])) == fitted.width
        assert len(vector(fitted, at=None)) == fitted.width
        with pytest.raises(RowFaultError, match="is not a date"):
            vector(fitted, at="soon")


def test_columns_that_say_nothing_are_left_out_and_named() -> None:
    rows = [
        {
            "number": n + 100,
            "same": "x",
            "name": f"person {n}",
            "list": [1, 2],
            "a": (n * 7 % 11) / 3,
            "y": n % 5 / 3,
        }
        for n in range(80)
    ]
    fitted, (found,) = gather(rows)
    assert {part.column for part in fitted.columns or ()} == {"a"}
    for name in ("'number' only numbers", "'same' has the same", "'name' is text", "'list' holds"):
        assert name in found.message
    with pytest.raises(FindingError, match="Besides the target 'y', no column can be used"):
        fit([{"same": 1, "y": n} for n in range(30)])


def leaks(rows: list[dict[str, Any]]) -> list[str]:
    cells = {name: [row[name] for row in rows] for name in rows[0] if name != "y"}
    return [found.message for found in find_columns(cells, [row["y"] for row in rows], "y")]


def test_columns_that_give_the_target_away() -> None:
    numbers = np.random.default_rng(0).integers(0, 400, size=(100, 3)).tolist()
    rows = [{"a": a, "b": b, "c": c, "y": a + b} for a, b, c in numbers]
    assert leaks(rows) == ["columns 'a' and 'b' add up to the target 'y'."]
    rows = [{"a": a, "c": c, "scaled": 3 * a + 1, "y": a + 0.5} for a, _, c in numbers]
    assert [m.split("'")[1] for m in leaks(rows)] == ["a", "scaled"]
    rows = [{"a": a, "code": "AB"[a % 2], "y": "xy"[a % 2]} for a, _, _ in numbers]
    (message,) = leaks(rows)
    assert message.startswith("column 'code' decides 'y' in all 100 rows")
    rows = [{"a": a, "b": b, "y": a + b + c} for a, b, c in numbers]
    assert leaks(rows) == []


def test_only_training_rows_are_fitted_on() -> None:
    rows = rule_rows(100)
    held_out = [{"colour": "violet", "shape": "flat", "weight": 1e6, "label": "no"}]
    states = []
    for evaluation in (held_out, rule_rows(5, seed=8)):
        plan = surefit.check(data=rows, eval_data=evaluation, model="tiny:mlp")
        assert plan.job is not None
        states.append(plan.job.pipeline.encoder.state())
    assert states[0] == states[1]
    assert "violet" not in json.dumps(states[0])


def test_models_that_do_not_suit(tmp_path: Path) -> None:
    text = [{"text": f"word {n}", "label": n % 2} for n in range(80)]
    plan = surefit.check(data=text, model="tiny:mlp")
    assert [f.code for f in plan.findings if f.severity == "error"] == ["SF301"]
    assert "tiny:mlp reads tabular rows" in plan.findings[-1].message
    plan = surefit.check(data=rule_rows(30), model="tiny:bert", task="tabular-classification")
    assert "SF301" in [f.code for f in plan.findings]
