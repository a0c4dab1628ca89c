"""verify_resume: one child process is killed and resumed, another is not; they are compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import MeanPool, feature_rows, save_ragged, write_module
from surefit.errors import FindingError, UsageError
from surefit.training import verify_resume
from surefit.user_code.code_records import records_folder

HIDDEN_STATE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(4, num_classes)
        self.mean = torch.zeros(4)  # neither a parameter nor a buffer

    def forward(self, inputs_embeds, attention_mask):
        if self.training:
            with torch.no_grad():
                self.mean = 0.9 * self.mean + 0.1 * inputs_embeds.mean((0, 1))
        return self.head(inputs_embeds.sum(1) - self.mean)


def make(num_classes):
    return Net(num_classes)
"""


def options(tmp_path: Path) -> dict[str, Any]:
    data = save_ragged(tmp_path / "a.npz", feature_rows(60))
    return {"data": str(data), "batch_size": 4, "output": str(tmp_path / "run"), "seed": 3}


def command(tmp_path: Path, model: str) -> subprocess.CompletedProcess[str]:
    data = str(options(tmp_path)["data"])
    settings = [
        "--output",
        "run",
        "--epochs",
        "1",
        "--batch-size",
        "4",
        "--seed",
        "3",
        "--set",
        "verify_resume=true",
    ]
    return subprocess.run(
        [sys.executable, "-m", "surefit", "train", "--data", data, "--model", model, *settings],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def codes(tmp_path: Path) -> list[str]:
    plan = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))
    return [found["code"] for found in plan["findings"]]


def test_objects_that_no_child_can_get_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"which cannot get model \(MeanPool\)"):
        surefit.train(model=MeanPool(), verify_resume=True, **options(tmp_path))


@pytest.mark.slow
def test_a_healthy_run_is_verified_and_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = command(tmp_path, write_module(tmp_path, dropout=0.2))
    assert done.returncode == 0, done.stderr
    assert "SF867" in codes(tmp_path)
    assert "equals an undisturbed one to the bit" in done.stderr
    assert len(list(records_folder().iterdir())) == 1  # that of the run itself
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.slow
def test_state_outside_of_buffers_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "hidden.py").write_text(HIDDEN_STATE, encoding="utf-8")
    done = command(tmp_path, "hidden:make")
    assert done.returncode == 1, done.stderr
    assert "SF865" in done.stderr
    assert "loss of step" in done.stderr
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.glob(".*.tmp"))
    assert not list(records_folder().iterdir())


@pytest.mark.slow
def test_a_child_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_resume, "MODULE", "surefit.no_such_module")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FindingError) as refused:
        surefit.train(
            model=write_module(tmp_path, "verified"), verify_resume=True, **options(tmp_path)
        )
    assert refused.value.findings[0].code == "SF866"
    assert "No module named" in refused.value.findings[0].message
