"""A check that gives no evidence has failed; one that does not apply says why."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import surefit
from surefit.cli import run as command
from surefit.errors import UsageError
from surefit.selftest import check_child, process_runs, run_checks, small_runs
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


def test_memory_is_held_by_another_process() -> None:
    with process_runs.held_elsewhere("cpu", 1000):
        held = [p for p in psutil.Process().children() if process_runs.HOLD in p.cmdline()]
        assert len(held) == 1
    assert not held[0].is_running()
    nowhere = process_runs.held_elsewhere("nowhere", 1000)
    with pytest.raises(CheckFailedError, match="1000 bytes of nowhere could not be taken"), nowhere:
        pass


@pytest.mark.parametrize("limit_bytes", [400, 900])
def test_half_the_memory_is_taken_before_the_processes_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_bytes: int
) -> None:
    """On two GPUs that are not here: of 1000 free bytes of the second, 500 are taken."""
    done: list[str] = []
    free = [1000]

    @contextmanager
    def held(device: str, num_bytes: int) -> Iterator[None]:
        done.append(f"{device}: {num_bytes}")
        free[0] -= num_bytes
        yield
        done.append("released")

    def train(folder: Path, name: str, options: list[str]) -> list[float]:
        done.append(name)
        (folder / name).mkdir()
        (folder / name / "plan.json").write_text(
            json.dumps({"memory": {"limit_bytes": limit_bytes}})
        )
        return [1.0] * process_runs.STEPS

    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 1000))
    monkeypatch.setattr(process_runs, "held_elsewhere", held)
    monkeypatch.setattr(process_runs, "_train", train)
    if limit_bytes > 500:
        with pytest.raises(CheckFailedError, match="half the memory"):
            process_runs.unequal_processes("cuda", tmp_path)
    else:
        figures = process_runs.unequal_processes("cuda", tmp_path)
        assert (figures["free_bytes"], figures["limit_bytes"]) == (500, 400)
    assert done == ["one", "cuda:1: 500", "two", "auto", "released"]


@pytest.mark.parametrize(("device", "longest", "batch_size"), [("cpu", 12, 16), ("cuda", 400, 128)])
def test_the_peak_on_a_device_is_that_of_large_batches(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    longest: int,
    batch_size: int,
) -> None:
    asked: dict[str, Any] = {}

    def check(**settings: Any) -> Any:
        asked.update(settings)
        return SimpleNamespace(fit=SimpleNamespace(peak_bytes=100, measured_bytes=120))

    monkeypatch.setattr(surefit, "check", check)
    assert small_runs.compare_peak(device, tmp_path)["measured_over_predicted"] == 1.2
    rows = map(json.loads, Path(asked["data"]).read_text().splitlines())
    assert max(len(row["prompt"].split()) - 2 for row in rows) == longest
    assert asked["batch_size"] == batch_size
