"""`surefit selftest`: what is asked for, what is printed, and a failure that is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surefit.cli import run as command
from surefit.cli import selftest


@pytest.fixture(autouse=True)
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(machine: selftest.Machine) -> selftest.Outcome:
        return {"accuracy": 0.5}, False

    def without(machine: selftest.Machine) -> selftest.Outcome:
        raise selftest.CheckEndedError("skipped", "no second device")

    def unknown_option(machine: selftest.Machine) -> selftest.Outcome:
        machine.surefit("train", "--nonsense")
        return {}, True

    monkeypatch.chdir(tmp_path)
    found = {"right": lambda machine: ({"loss": 0.25}, True), "wrong": wrong, "without": without}
    monkeypatch.setattr(selftest, "CHECKS", {**found, "command": unknown_option})


@pytest.mark.parametrize("options", [["--only", "sfd"], ["--device", "tpu"]])
def test_what_is_not_there_is_refused(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["selftest", *options]) == 2
    assert options[1] in capsys.readouterr().err


def test_a_failed_check_is_named_and_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["selftest", "--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "passed   right" in out
    assert "loss 0.25" in out
    assert "accuracy 0.5" in out
    assert "no second device" in out
    assert "exit status 2" in out
    assert "--nonsense" in out


def test_json_is_what_the_file_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["selftest", "--device", "cpu", "--only", "right", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(Path("surefit-selftest.json").read_text(encoding="utf-8"))
    assert printed["ok"]
    assert [check["status"] for check in printed["checks"]] == ["passed"]
    assert printed["machine"]["packages"]["torch"]
