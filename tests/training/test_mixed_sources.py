"""Data from several sources: each has its columns, its share of an epoch, and its metrics."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import surefit
from surefit.batches.order import Batches
from surefit.cli import run as run_command
from surefit.errors import FindingError, UsageError
from tests.builders import write_jsonl

RANDOM = np.random.default_rng(0)


def rows(count: int, x: str = "x", label: str = "label") -> list[dict[str, Any]]:
    vectors = RANDOM.normal(size=(count, 4))
    return [{x: row.tolist(), label: int(row[0] > 0)} for row in vectors]


def sources(folder: Path, **of_far: Any) -> list[Any]:
    near = write_jsonl(folder / "near.jsonl", rows(80))
    far = write_jsonl(folder / "far.jsonl", rows(40, "v", "y"))
    columns = {"features": "v", "label": "y"}
    return [str(near), {"path": far, "name": "away", "columns": columns, **of_far}]


def options(folder: Path, **of_far: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "data": sources(folder, **of_far),
        "model": torch.nn.Linear(4, 2),
        "columns": {"features": "x"},
        "lr": 0.05,
        "quiet": True,
    }


def check(folder: Path, **of_far: Any) -> surefit.Plan:
    return surefit.check(**options(folder, **of_far))


def batches_of(plan: surefit.Plan) -> Batches:
    assert plan.job is not None
    return plan.job.batches


def test_each_source_is_read_by_its_own_columns_and_named(tmp_path: Path) -> None:
    found = sources(tmp_path)
    found[1]["columns"] = {"features": "v", "label": "class"}
    with pytest.raises(FindingError, match=r"columns.label names the column 'class'"):
        surefit.train(**{**options(tmp_path), "data": found})
    bad = write_jsonl(tmp_path / "bad.jsonl", [*rows(9, "v", "y"), {"v": [], "y": 1}])
    found[1] |= {"path": str(bad), "columns": {"features": "v", "label": "y"}}
    plan = surefit.check(**{**options(tmp_path), "data": found})
    assert any("Source away: features = v, label = y." in each for each in plan.notes)
    assert any(each.endswith(f"[file {bad}, row 9, source away]") for each in plan.notes)


@pytest.mark.parametrize(
    ("asked", "share"), [({}, 1.0), ({"weight": 2}, 2.0), ({"weight": 0.5}, 0.5), ({"cap": 5}, 0)]
)
def test_weight_and_cap_decide_what_an_epoch_draws(
    tmp_path: Path, asked: dict[str, Any], share: float
) -> None:
    plan = check(tmp_path, **asked)
    assert plan.ledger is not None
    near, far = (plan.ledger.sources[name] for name in ("near", "away"))
    assert far["drawn_rows"] == (round(share * far["train_rows"]) or 5)
    assert near["drawn_rows"] == near["train_rows"]
    batches = batches_of(plan)
    order = [batches.step_rows(0, step) for step in range(batches.steps_per_epoch)]
    assert plan.job is not None
    away = plan.job.train.sources["away"]
    counts = Counter(int(row) in away for rows in order for row in rows)
    assert counts == {True: far["drawn_rows"], False: near["drawn_rows"]}
    assert plan.ledger.train_views == sum(counts.values())


def test_each_source_has_the_metrics_of_its_own_rows(tmp_path: Path) -> None:
    run = surefit.train(**options(tmp_path), epochs=1, output=tmp_path / "run")
    rows = run.plan["ledger"]["sources"]
    counts = {name: rows[name]["eval_rows"] for name in ("near", "away")}
    for metric in ("loss", "accuracy"):
        of = {name: run.metrics[f"{name}_{metric}"] for name in counts}
        mean = sum(counts[name] * of[name] for name in counts) / sum(counts.values())
        assert run.metrics[metric] == pytest.approx(mean, rel=1e-6)
    event = next(each for each in run.history if each["event"] == "eval")
    assert event["metrics"]["away_loss"] != event["metrics"]["near_loss"]
    again = surefit.evaluate(run, quiet=True)
    assert again["away_accuracy"] == pytest.approx(run.metrics["away_accuracy"])
    assert "source away" in (run.path / "report.html").read_text()
    named = {"path": tmp_path / "far.jsonl", "columns": {"features": "v", "label": "y"}}
    assert "far_loss" in surefit.evaluate(run, [named], quiet=True)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    write = write_jsonl
    texts = [write(tmp_path / f"{name}.jsonl", rows(30, "x", "label")) for name in "ab"]
    command = ["train", "--model", "tiny:mlp", "--lr", "0.01", "--quiet", "--batch-size", "4"]
    command += ["--set", "schedule=constant", "--set", "eval_every=3"]
    data = ["--data", f"first={texts[0]}", "--data", f"{{path: {texts[1]}, weight: 0.4}}"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run_command([*command, *data, "--max-steps", "18", "--output", str(whole)]) == 0
    assert run_command([*command, *data, "--max-steps", "6", "--output", str(parts)]) == 0
    assert run_command(["train", "--resume", str(parts), "--max-steps", "18", "--quiet"]) == 0

    def events(folder: Path) -> list[dict[str, Any]]:
        lines = (folder / "events.jsonl").read_text().splitlines()
        return [{**json.loads(line), "seconds": None} for line in lines]

    same = [each for each in zip(events(whole), events(parts), strict=True) if each[0] != each[1]]
    assert not same
    other = [*data[:3], data[3].replace("0.4", "0.5")]
    assert run_command(["train", "--resume", str(parts), "--max-steps", "20", *other]) == 1


def test_what_is_not_a_source_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"data.0.weight: input should be greater than 0"):
        surefit.check(data=[{"path": "a.csv", "weight": 0}], model="tiny:mlp")
    assert run_command(["check", "--data", "{path: a.csv, wieght: 2}", "--model", "tiny:mlp"]) == 2
    assert "Unknown key 'data.0.wieght'" in capsys.readouterr().err
