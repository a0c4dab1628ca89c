"""A precision that this CPU cannot compute is found by `check`, and never by the system's kill."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import surefit
from builders import MeanPool, echo_rows, feature_rows, save_ragged, write_module
from surefit.checks import half_precision_trial as trial
from surefit.checks.half_precision_trial import why_not
from surefit.checks.machine import check_machine, check_weights
from surefit.cli import run as command
from surefit.errors import FindingError

KILLED = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"]


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without an accelerator."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU that announces bf16 and kills what uses it."""
    monkeypatch.setattr(trial, "trial_command", lambda precision: KILLED)


def never(precision: str) -> str | None:
    raise AssertionError(f"{precision} was tried")


@pytest.mark.parametrize(
    ("child", "reason"),
    [
        (KILLED, "killed by SIGILL (illegal instruction)"),
        ([sys.executable, "-c", "print('addmm is wrong by 9%'); exit(1)"], "addmm is wrong by 9%"),
        ([sys.executable, "-c", "import nothing_of_this_name"], "nothing_of_this_name"),
        (["./no-such-program"], "could not be started"),
    ],
    ids=["killed", "wrong", "failed", "not there"],
)
def test_a_trial_that_fails_gives_the_reason_and_is_tried_again(
    child: list[str], reason: str, cache: Path
) -> None:
    assert reason in (why_not("bf16", child) or "")
    assert not (cache / "precision").exists()


def test_a_trial_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 0.5)
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert "did not end" in (why_not("bf16", child) or "")


def test_a_trial_that_passes_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"open({str(tmp_path / 'tries')!r}, 'a').write('x')"
    for _ in range(3):
        assert why_not("bf16", [sys.executable, "-c", source]) is None
    assert (tmp_path / "tries").read_text() == "x"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")  # other kernels are tried anew
    assert why_not("bf16", [sys.executable, "-c", source]) is None
    assert (tmp_path / "tries").read_text() == "xx"


def test_full_precision_is_not_tried() -> None:
    for precision in ("auto", "fp32"):
        check_machine(precision, (), why_not=never)
    check_weights(nn.Linear(2, 2).double(), why_not=never)


def test_half_precision_on_another_device_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    check_machine("bf16", (), why_not=never)
    check_weights(nn.Linear(2, 2, device="meta").bfloat16(), why_not=never)


@pytest.mark.usefixtures("broken")
def test_check_and_train_refuse_what_the_cpu_cannot_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"data": echo_rows(20), "model": "tiny:llama", "precision": "bf16"}
    plan = surefit.check(**options)
    (found,) = plan.findings
    assert (found.code, found.severity) == ("SF408", "error")
    assert "SIGILL" in found.message
    assert "precision=fp32" in found.fix
    with pytest.raises(FindingError, match="cannot compute in bf16"):
        surefit.train(**options, output=str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    save_ragged(tmp_path / "x.npz", feature_rows(20))
    arguments = ["--data", "x.npz", "--model", write_module(tmp_path, "net_bf16")]
    assert command(["train", *arguments, "--set", "precision=bf16", "--output", "run"]) == 1
    assert "SF408" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert command(["check", *arguments, "--set", "precision=fp32"]) == 0


@pytest.mark.usefixtures("broken")
def test_weights_that_the_cpu_cannot_compute_with_are_refused() -> None:
    plan = surefit.check(data=feature_rows(20), model=MeanPool().bfloat16())
    errors = [found for found in plan.findings if found.severity == "error"]
    assert [found.code for found in errors] == ["SF408"]
    assert "weights in bf16" in errors[0].message
    assert "model.float()" in errors[0].fix


@pytest.mark.usefixtures("broken")
def test_a_run_in_half_precision_is_evaluated_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = save_ragged(tmp_path / "x.npz", feature_rows(40))
    options = {"data": str(data), "model": write_module(tmp_path, "net_half"), "max_steps": 1}
    run = surefit.train(**options, output=str(tmp_path / "run"))
    path = run.path / "config.yaml"
    for precision in ("bf16", "fp16"):  # as if it had been trained on another machine
        config = {**yaml.safe_load(path.read_text(encoding="utf-8")), "precision": precision}
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        plan = {**run.plan, "precision": precision}
        (run.path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        assert surefit.evaluate(run.path)["loss"] == pytest.approx(run.metrics["loss"])


def test_a_wrong_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(4, 4), (4, 4)]
    monkeypatch.setattr(trial, "PRODUCTS", {"sum": (torch.add, shapes)})
    assert trial.find_fault(torch.bfloat16) is None  # sums are computed by every CPU
    monkeypatch.setattr(trial, "PRODUCTS", {"sum": (_wrong, shapes)})
    assert "sum is wrong by" in (trial.find_fault(torch.bfloat16) or "")


def _wrong(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (2 if torch.is_autocast_enabled("cpu") else 1) * (x + y)
