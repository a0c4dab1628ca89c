"""Cross-validation: the rows of each fold, five runs, and their summary."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import surefit
from builders import (
    MeanPool,
    assert_same_weights,
    feature_rows,
    same_pool,
    sentiment_rows,
    write_jsonl,
)
from surefit.cli import run as run_cli
from surefit.errors import InterruptedRunError, UsageError
from surefit.plan.split_data import deal_rows
from surefit.training.folds import FoldRuns, summarise


@settings(deadline=None, max_examples=60)
@given(
    groups=st.lists(st.integers(0, 30), min_size=5, max_size=200),
    num_folds=st.integers(2, 5),
    seed=st.integers(0, 3),
)
def test_groups_stay_in_one_fold(groups: list[int], num_folds: int, seed: int) -> None:
    hashes = np.array(groups, np.uint64)
    classes = np.array([g % 3 for g in groups])
    folds = deal_rows(hashes, num_folds, seed, classes)
    assert (folds == deal_rows(hashes, num_folds, seed, classes)).all()
    assert len(folds) == len(groups)
    assert set(folds) <= set(range(num_folds))
    for group in set(groups):
        assert len(set(folds[hashes == group])) == 1


def test_classes_and_sizes_are_even() -> None:
    classes = np.array([0] * 503 + [1] * 52 + [2] * 11)
    folds = deal_rows(np.arange(len(classes), dtype=np.uint64), 5, 0, classes)
    table = np.array([np.bincount(folds[classes == kind], minlength=5) for kind in range(3)])
    assert (table.max(1) - table.min(1) <= 1).all()
    assert table.sum(0).max() - table.sum(0).min() <= 1
    other = deal_rows(np.arange(len(classes), dtype=np.uint64), 5, 1, classes)
    assert (folds != other).any()


def test_each_row_is_held_out_once() -> None:
    rows = [{**row, "who": n // 4} for n, row in enumerate(feature_rows(40))]
    seen: list[int] = []
    for fold in range(4):
        split = {"folds": 4, "fold": fold, "by": "who"}
        plan = surefit.check(data=rows, model=MeanPool(), split=split)
        held = plan.job.validation.source_row.tolist()
        assert len({rows[row]["who"] for row in held}) * 4 == len(held)
        seen += held
    assert sorted(seen) == list(range(40))


def train(folder: Path, **options: Any) -> Any:
    given: dict[str, Any] = {"data": feature_rows(60), "model": same_pool(), "epochs": 1}
    given["lr"] = 0.01
    given |= {"task": "feature-classification", "split": {"folds": 3}, "output": str(folder)}
    return surefit.train(**{**given, **options})


def test_a_run_for_each_fold_and_their_summary(tmp_path: Path) -> None:
    model = same_pool()
    folds = train(tmp_path / "all", model=model)
    assert isinstance(folds, FoldRuns)
    assert [run.path.name for run in folds.runs] == ["fold-0", "fold-1", "fold-2"]
    assert all(run.finished for run in folds.runs)
    assert_same_weights(model, same_pool())  # each fold trains a copy
    written = json.loads((tmp_path / "all" / "folds.json").read_text())
    assert written["finished"]
    values = [run.metrics["accuracy"] for run in folds.runs]
    assert written["metrics"]["accuracy"] == {
        "mean": pytest.approx(statistics.fmean(values)),
        "spread": pytest.approx(statistics.stdev(values)),
        "values": values,
    }
    rows = sum(run.plan["ledger"]["eval_rows"] for run in folds.runs)
    assert rows == 60
    alone = train(tmp_path / "one", split={"folds": 3, "fold": 1})
    assert alone.metrics == folds.runs[1].metrics
    with pytest.raises(UsageError, match=r"already holds a run \(folds.json\)"):
        train(tmp_path / "all")


@pytest.mark.slow
def test_resumed_fold_by_fold(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole")
    begun: list[int] = []

    def stop(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 2:
            begun.append(1)
            if len(begun) == 2:  # in the second fold
                raise InterruptedRunError("stopped")

    with pytest.raises(InterruptedRunError):
        train(tmp_path / "cut", callbacks=[stop], save_every=1)
    assert (tmp_path / "cut" / "fold-1").is_dir()
    assert not (tmp_path / "cut" / "fold-2").exists()
    resumed = surefit.train(resume=tmp_path / "cut", data=feature_rows(60), model=same_pool())
    assert isinstance(resumed, FoldRuns)
    assert resumed.metrics == whole.metrics
    assert json.loads((tmp_path / "cut" / "folds.json").read_text())["finished"]


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", sentiment_rows(60))
    command = ["--data", str(data), "--model", "tiny:bert", "--max-steps", "2"]
    command += ["--set", "split.folds=2", "--output", str(tmp_path / "out")]
    assert run_cli(["check", "--json", *command]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ledger"]["eval_rows"] == 30
    assert found["notes"][0].startswith("2 runs are trained, one for each fold")
    assert run_cli(["train", *command]) == 0
    said = capsys.readouterr()
    assert "accuracy" in said.out
    assert "±" in said.out
    assert "folds.json" in said.out
    assert (tmp_path / "out" / "fold-1" / "report.html").is_file()
    assert run_cli(["evaluate", str(tmp_path / "out" / "fold-1"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 30
    assert run_cli(["train", "--resume", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"folds": 3, "fold": 3}, "split.fold"),
        ({"fold": 0}, "split.fold"),
        ({"folds": 1}, "split.folds"),
        ({"folds": 61}, "there are 60 rows"),
        ({"folds": 4, "by": "who"}, "has 3 groups"),
    ],
)
def test_wrong_folds_are_refused(split: dict[str, Any], said: str) -> None:
    rows = [{**row, "who": n % 3} for n, row in enumerate(sentiment_rows(60))]
    with pytest.raises(UsageError) as caught:
        surefit.check(data=rows, model="tiny:bert", split=split)
    assert said in f"{caught.value} {caught.value.fix}"


def test_folds_have_no_validation_data_and_no_optimizer_of_their_own() -> None:
    model, rows = MeanPool(), feature_rows(60)
    with pytest.raises(UsageError, match="validation data of its own"):
        surefit.check(data=rows, model=model, split={"folds": 3}, eval_data=rows[:10])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="holds the parameters of one"):
        surefit.train(data=rows, model=model, optimizer=optimizer, split={"folds": 3})


def test_numbers_that_a_fold_lacks_or_that_are_not_finite() -> None:
    found = summarise([{"recall: ant": 0.5, "loss": math.nan}, {"recall: bee": 1.0}])
    assert found["recall: ant"] == {"mean": 0.5, "spread": None, "values": [0.5, None]}
    assert found["loss"]["mean"] is None
