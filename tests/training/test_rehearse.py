"""What would fail after hours of training fails before the first step, and changes nothing else."""

from __future__ import annotations

import copy
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import surefit
from builders import MeanPool, assert_same_weights, events_of, feature_rows
from surefit.core import files
from surefit.core.locks import lock_run, sweep_scratch
from surefit.errors import FindingError
from surefit.models.save_model import save_model
from surefit.tasks.classification import SEQUENCES as SPEC
from surefit.training import run as start

ROWS = feature_rows(40)
OPTIONS: dict[str, Any] = {"data": ROWS, "batch_size": 4, "epochs": 1, "lr": 0.01}


class Normed(MeanPool):
    """Buffers, dropout and weights: all that a rehearsal must leave alone."""

    def __init__(self) -> None:
        super().__init__(dropout=0.2)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(inputs_embeds, attention_mask))


STATE = Normed().state_dict()


def train(folder: Path, model: nn.Module | None = None, **more: Any) -> surefit.api.Run:
    if model is None:
        model = Normed()
        model.load_state_dict(STATE)
    return surefit.train(model=model, output=str(folder / "run"), **{**OPTIONS, **more})


def refusal(folder: Path, *args: Any, **more: Any) -> tuple[str, str]:
    """Code and message of what a run is refused for; nothing is left of it."""
    with pytest.raises(FindingError) as refused:
        train(folder, *args, **more)
    assert list(folder.iterdir()) == []
    found = refused.value.findings[0]
    return found.code, found.message


def with_metric(metric: Any) -> Any:
    return replace(SPEC, metrics={"own": metric})


class Strange(MeanPool):
    """Its state cannot be saved."""

    def get_extra_state(self) -> Any:
        return {"seen": {1, 2}}

    def set_extra_state(self, state: Any) -> None:
        pass


class Halving(MeanPool):
    """Loads other values than it saved."""

    def load_state_dict(self, state: Any, *args: Any, **more: Any) -> Any:
        return super().load_state_dict({n: v / 2 for n, v in state.items()}, *args, **more)


def no_class(outputs: Any, batch: Any) -> tuple[Any, int]:
    raise LookupError("no such class")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"task": with_metric(no_class)}, "SF863", "failed: LookupError: no such class"),
        ({"model": Strange()}, "SF863", "checkpoint failed"),
        ({"model": Halving()}, "SF864", "another value after loading"),
    ],
)
def test_what_fails_later_is_found_before_the_first_step(
    options: dict[str, Any], code: str, said: str, tmp_path: Path
) -> None:
    found, message = refusal(tmp_path, **options)
    assert (found, said in message) == (code, True), message
    assert ("test_rehearse.py, line" in message) == ("task" in options)


def test_a_metric_that_needs_more_rows_than_one_batch_is_healthy(tmp_path: Path) -> None:
    from surefit.targets.task_spec import Metric

    def figure(sums: Any) -> float:
        assert sums["rows"] > 4
        return 1.0

    metric = Metric(lambda outputs, batch: {"rows": torch.tensor([len(batch["labels"])])}, figure)
    run = train(tmp_path, task=with_metric(metric), eval_share=0.3)
    assert run.metrics["own"] == 1.0


def test_a_saved_model_that_is_another_is_found_where_all_is_rehearsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(module: nn.Module, *args: Any) -> None:
        other = copy.deepcopy(module)
        with torch.no_grad():
            next(other.parameters()).add_(0.5)
        save_model(other, *args)

    monkeypatch.setattr("surefit.plan.probe_model.save_model", save)
    code, message = refusal(tmp_path, rehearse=True)
    assert (code, "loaded again" in message) == ("SF706", True)


def test_a_report_that_cannot_be_written_is_found_unless_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: Any) -> Any:
        raise PermissionError(13, "Permission denied", "report.html")

    monkeypatch.setattr("surefit.training.rehearse.write_report", fail)
    code, message = refusal(tmp_path)
    assert (code, "report failed" in message) == ("SF863", True)
    assert train(tmp_path, accept=["SF863"]).has_model


@pytest.mark.parametrize("whole", [False, True])
def test_training_is_the_same_with_and_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    heard: list[Any] = []
    (tmp_path / "with").mkdir()
    with_it = train(tmp_path / "with", rehearse=whole, callbacks=[heard.append])
    assert with_it.plan["rehearsal"]["true_size"] is whole
    monkeypatch.setattr(start, "rehearse", lambda *_: [])
    without = train(tmp_path / "without")
    assert events_of(with_it) == events_of(without)
    assert_same_weights(with_it.load()[0], without.load()[0])
    assert [event["event"] for event in heard if event.get("rehearsal")] == (
        ["eval", "step"] if whole else []
    )
    assert [path.name for path in (tmp_path / "with").iterdir()] == ["run"]


def test_check_rehearses_and_leaves_nothing(tmp_path: Path) -> None:
    output = str(tmp_path / "runs" / "run")
    plan = surefit.check(model=Normed(), output=output, rehearse=True, **OPTIONS)
    assert plan.ok
    assert plan.as_dict()["rehearsal"]["phases"][:3] == ["evaluation", "checkpoint", "model"]
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def metric(outputs: Any, batch: Any) -> tuple[Any, int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, task=with_metric(metric))
    assert list(tmp_path.iterdir()) == []


def test_scratch_folders_of_killed_processes_are_swept(tmp_path: Path) -> None:
    names = (".run.scratch.0123abcd.tmp", ".run.scratch.89abcdef.tmp", ".run.other.tmp")
    left, used, foreign = (tmp_path / name for name in names)
    for folder in (left, used, foreign):
        folder.mkdir()
        files.mark(folder)
        (folder / "model.safetensors").write_bytes(b"half")
    with lock_run(used):
        for folder in (left, used, foreign):
            long_ago = time.time() - 3600
            os.utime(folder, (long_ago, long_ago))
        sweep_scratch(tmp_path)
        assert not left.exists()
        assert used.exists()
    assert foreign.exists()
