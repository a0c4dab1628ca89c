"""A check that gives no evidence has failed; one that does not apply says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from surefit.cli import run as command
from surefit.errors import UsageError
from surefit.selftest import check_child, process_runs, run_checks
from surefit.selftest.check_child import run_check
from surefit.selftest.outcome import CheckFailedError, NotApplicableError
from surefit.selftest.registry import CHECKS, summary_of


def test_the_outcome_of_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(device: str, folder: Path) -> dict[str, float]:
        raise CheckFailedError("the losses differ", {"worst": 0.5})

    def skips(device: str, folder: Path) -> dict[str, float]:
        raise NotApplicableError("there is one device")

    def breaks(device: str, folder: Path) -> dict[str, float]:
        raise ZeroDivisionError("by zero")

    checks = {"good": lambda device, folder: {"loss": 1.0}, "fails": fails, "skips": skips}
    monkeypatch.setattr(check_child, "CHECKS", {**checks, "breaks": breaks})
    found = [run_check(name, "cpu", tmp_path) for name in ("good", "fails", "skips", "breaks")]
    assert [(each.status, each.message) for each in found] == [
        ("passed", ""),
        ("failed", "the losses differ"),
        ("skipped", "there is one device"),
        ("failed", "ZeroDivisionError: by zero"),
    ]
    assert found[0].figures == {"loss": 1.0}
    assert found[1].figures == {"worst": 0.5}


def write_program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_process_that_dies_is_a_failed_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "executable", write_program(tmp_path / "dies", "echo illegal; kill -4 $$")
    )
    (outcome,) = run_checks.run_checks(["sft"], "cpu")
    assert outcome.status == "failed"
    assert outcome.message == "the process of the check was ended with code -4: illegal"


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checks, "LIMIT_SECONDS", 1)
    monkeypatch.setattr(sys, "executable", write_program(tmp_path / "hangs", "sleep 100"))
    (outcome,) = run_checks.run_checks(["sft"], "cpu")
    assert (outcome.status, outcome.message) == (
        "failed",
        "the process of the check was not finished after 1 s",
    )


def test_losses_of_two_processes_must_be_those_of_one() -> None:
    losses = [1.0 / (1 + step) for step in range(process_runs.STEPS)]
    assert process_runs._compare(losses, losses)["largest_relative_difference"] == 0
    with pytest.raises(CheckFailedError, match="the losses differ"):
        process_runs._compare(losses, [*losses[:-1], losses[-1] * 1.001])
    with pytest.raises(CheckFailedError, match="other numbers of steps"):
        process_runs._compare(losses, losses[:-1])


def test_a_run_that_fails_is_a_failed_check(tmp_path: Path) -> None:
    with pytest.raises(CheckFailedError, match=r"ended with 2: .*--no-such-option"):
        process_runs._train(tmp_path, "run", ["--no-such-option"])


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_checks.choose_device("cpu") == "cpu"
    with pytest.raises(UsageError, match="no device 'tpu'; it has cpu"):
        run_checks.choose_device("tpu")
    described = run_checks.describe_machine("cpu")
    assert described["packages"]["torch"]
    assert "host" not in json.dumps(described)


@pytest.mark.parametrize("options", [["--device", "tpu"], ["--only", "nothing"]])
def test_wrong_options_exit_with_2(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["selftest", *options]) == 2
    assert "fix:" in capsys.readouterr().err


def test_every_check_says_what_it_shows() -> None:
    assert all(len(summary_of(check)) > 20 for check in CHECKS.values())


def test_one_check_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["selftest", "--device", "cpu", "--only", "syncs", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(Path("surefit-selftest.json").read_text())
    assert [check["status"] for check in printed["checks"]] == ["skipped"]
