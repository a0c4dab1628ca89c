"""Several named validation sets: each has its metrics, and one of them decides the best step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import surefit
from surefit.cli import run as run_command
from surefit.errors import UsageError

RANDOM = np.random.default_rng(0)


def rows(count: int, turned: bool = False) -> list[dict[str, Any]]:
    """Vectors whose class is the sign of the first value, or of the second."""
    x = RANDOM.normal(size=(count, 4))
    return [{"x": row.tolist(), "label": int(row[1 if turned else 0] > 0)} for row in x]


SETS = {"train": rows(80), "near": rows(30), "far": rows(20, turned=True)}


def write(folder: Path) -> dict[str, str]:
    for name, data in SETS.items():
        lines = "".join(json.dumps(row) + "\n" for row in data)
        (folder / f"{name}.jsonl").write_text(lines)
    return {name: str(folder / f"{name}.jsonl") for name in SETS}


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def train(folder: Path, **options: Any) -> surefit.Run:
    data = {name: SETS[name] for name in ("near", "far")}
    return surefit.train(
        data=SETS["train"], eval_data=data, model=module(), lr=0.05, output=folder, quiet=True,
        **options,
    )  # fmt: skip


def test_each_set_has_the_metrics_that_evaluate_gives(tmp_path: Path) -> None:
    run = train(tmp_path / "run", epochs=2)
    for name in ("near", "far"):
        alone = surefit.evaluate(run, SETS[name], quiet=True)
        for metric in ("loss", "accuracy"):
            assert run.metrics[f"{name}_{metric}"] == pytest.approx(alone[metric], rel=1e-6)
    assert run.metrics["loss"] == run.metrics["near_loss"] != run.metrics["far_loss"]
    assert any("goes by accuracy of near" in note for note in run.plan["notes"])


def test_evaluate_has_every_set_of_the_run(tmp_path: Path) -> None:
    paths = write(tmp_path)
    sets = {name: paths[name] for name in ("near", "far")}
    options: dict[str, Any] = {"model": "tiny:mlp", "max_steps": 3, "output": tmp_path / "run"}
    run = surefit.train(data=paths["train"], eval_data=sets, quiet=True, **options)
    again = surefit.evaluate(run, quiet=True)
    for name in ("loss", "near_loss", "far_loss", "far_accuracy"):
        assert again[name] == pytest.approx(run.metrics[name], rel=1e-6)


def test_the_watched_metric_names_the_deciding_set(tmp_path: Path) -> None:
    run = train(tmp_path / "run", epochs=4, early_stopping={"metric": "far_loss"})
    assert any("goes by loss of far" in note for note in run.plan["notes"])
    figures = [each["metrics"]["far_loss"] for each in run.history if each["event"] == "eval"]
    assert len({*figures}) == 4
    assert run.metrics["loss"] == run.metrics["far_loss"] == min(figures)
    with pytest.raises(UsageError, match="is 'speed', which feature-classification cannot"):
        train(tmp_path / "other", early_stopping={"metric": "far_speed"})


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    paths = write(tmp_path)
    command = ["train", "--data", paths["train"], "--model", "tiny:mlp", "--lr", "0.01"]
    command += ["--set", "eval_every=2", "--set", "schedule=constant", "--quiet"]
    named = [f"--eval-data={name}={paths[name]}" for name in ("near", "far")]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run_command([*command, *named, "--max-steps", "6", "--output", str(whole)]) == 0
    assert run_command([*command, *named, "--max-steps", "2", "--output", str(parts)]) == 0
    assert run_command(["train", "--resume", str(parts), "--max-steps", "6", "--quiet"]) == 0

    def evaluations(folder: Path) -> list[dict[str, Any]]:
        lines = (folder / "events.jsonl").read_text().splitlines()
        return [each["metrics"] for line in lines if (each := json.loads(line))["event"] == "eval"]

    assert evaluations(whole)[0].keys() >= {"loss", "near_loss", "far_accuracy"}
    assert evaluations(parts) == evaluations(whole)
    assert len({each["far_loss"] for each in evaluations(whole)}) == 3


def test_rows_of_any_set_that_are_training_rows_are_found(tmp_path: Path) -> None:
    sets = {"near": SETS["near"], "far": [*SETS["far"], *SETS["train"][:5]]}
    plan = surefit.check(data=SETS["train"], eval_data=sets, model=module())
    (found,) = (each for each in plan.findings if each.code == "SF210")
    assert found.message.startswith("5 of 25 validation rows")


def test_names_and_paths_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write(tmp_path)
    command = ["check", "--data", paths["train"], "--model", "tiny:mlp"]
    mixed = [f"--eval-data=near={paths['near']}", f"--eval-data={paths['far']}"]
    assert run_command([*command, *mixed]) == 2
    assert "NAME=path for all validation sets" in capsys.readouterr().err
