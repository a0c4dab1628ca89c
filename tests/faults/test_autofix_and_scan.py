"""autofix=false refuses repairs; scan=N checks a sample of the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from builders import echo_rows, write_jsonl, write_module
from surefit.cli import run

FLAT = {"features": np.random.default_rng(0).normal(size=(30, 20)), "label": np.arange(30) % 3}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    code = run(["check", "--json", *options])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_repairs_are_errors_without_autofix(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(folder / "flat.npz", **FLAT)
    options = ("--data", "flat.npz", "--model", write_module(folder, "net_autofix"))
    code, plan = checked(capsys, *options)
    repaired = [f["code"] for f in plan["findings"] if f["severity"] == "fixed"]
    assert (code, repaired) == (0, ["SF420", "SF209"])
    code, plan = checked(capsys, *options, "--set", "autofix=false")
    assert [f["code"] for f in plan["findings"] if f["severity"] == "error"] == repaired
    assert (code, plan["ok"]) == (1, False)
    assert run(["train", *options, "--set", "autofix=false", "--output", "run"]) == 1
    assert not (folder / "run").exists()


def test_data_that_needs_no_repair_is_fine_without_autofix(folder: Path) -> None:
    path = write_jsonl(folder / "rows.jsonl", echo_rows(20))
    assert surefit.check(data=str(path), model="tiny:llama", autofix=False).ok


def test_sample_of_the_rows_is_checked_and_said_to_be(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(folder / "rows.jsonl", echo_rows(200))
    options = ("--data", "rows.jsonl", "--model", "tiny:llama", "--set", "scan=50")
    code, plan = checked(capsys, *options)
    assert (code, plan["ledger"]["rows"]) == (0, 50)
    assert any(n.startswith("50 of 200 rows of rows.jsonl are checked") for n in plan["notes"])
    assert checked(capsys, *options)[1]["data_key"] == plan["data_key"]
    other = checked(capsys, *options, "--seed", "1")[1]
    assert other["data_key"] != plan["data_key"]


def test_sample_keeps_the_numbers_of_rows_and_covers_evaluation_data() -> None:
    rows: list[dict[str, Any]] = [{**row, "completion": ""} for row in echo_rows(99)]
    rows += echo_rows(101, seed=1)
    plan = surefit.check(
        data=rows, eval_data=echo_rows(80, seed=2), model="tiny:llama", scan=60, eval_share=0.0
    )
    assert plan.ledger is not None
    assert plan.ledger.rows == 120
    (dropped,) = [f for f in plan.findings if f.code == "SF270"]
    assert 0 < int(dropped.where["row"]) < 99
    assert rows[int(dropped.where["row"])]["completion"] == ""
    assert sum("are checked, drawn by the seed" in note for note in plan.notes) == 2


def test_scan_of_more_rows_than_there_are_is_all_of_them() -> None:
    plan = surefit.check(data=echo_rows(20), model="tiny:llama", scan=1000)
    assert plan.ledger is not None
    assert plan.ledger.rows == 20
    assert not any("drawn by the seed" in note for note in plan.notes)


def test_training_refuses_a_sample(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(folder / "rows.jsonl", echo_rows(20))
    options = ["--data", "rows.jsonl", "--model", "tiny:llama", "--set", "scan=10"]
    assert run(["train", *options, "--output", "run"]) == 2
    assert "scan=10 is for check" in capsys.readouterr().err
    assert not (folder / "run").exists()
