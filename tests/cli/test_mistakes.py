"""Mistakes in a command and bad rows: a message, exit code 2 or 1, no traceback, no half run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builders import echo_rows, feature_rows, save_ragged, write_jsonl, write_module
from surefit.cli import run

SFT = ["--data", "sft.jsonl", "--model", "tiny:llama"]
FEATURES = ["--data", "features.npz", "--model", "net:make"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with good data and a good module."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "sft.jsonl", echo_rows(20))
    save_ragged(tmp_path / "features.npz", feature_rows(30))
    write_module(tmp_path, "net")
    return tmp_path


def without_bytecode(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


MISTAKES: dict[str, tuple[list[str], str, str]] = {
    "unknown command": (["trian"], "No such command 'trian'.", "train"),
    "unknown option": (["train", *SFT, "--bach-size", "3"], "--bach-size", "--batch-size"),
    "option without a number": (["train", *SFT, "--epochs", "x"], "'--epochs'", "integer"),
    "value out of range": (["train", *SFT, "--epochs", "0"], "epochs: ", "found 0"),
    "unknown key": (["train", *SFT, "--set", "kep=1"], "Unknown key 'kep'.", "mean 'keep'?"),
    "an option and its key": (
        ["train", *SFT, "--set", "data=other.jsonl"],
        "--data and --set data=… are both given.",
        "one of them",
    ),
    "an empty model": (["train", *SFT[:3], ""], "--model is empty.", "leave it out"),
    "an empty path": (["inspect", ""], "The path of the data is empty.", "Pass a file"),
    "--set without a value": (["train", *SFT, "--set", "lr"], "key=value", "found 'lr'"),
    "metric that is no number": (
        ["train", *FEATURES, "--set", "early_stopping.metric=confusion"],
        "early_stopping.metric is 'confusion'",
        "loss, accuracy, macro_f1.",
    ),
    "no data": (["train", "--model", "tiny:llama"], "No data was given.", "--data"),
    "no model": (["train", "--data", "sft.jsonl"], "No model was given.", "--model"),
    "missing config": (["train", "nope.yaml"], "There is no config file nope.yaml.", "path"),
    "missing function": (["train", *FEATURES[:3], "net:mke"], "'mke'", "make"),
    "file of an unknown kind": (
        ["train", "--data", "net.py", "--model", "tiny:llama"],
        "net.py has the ending '.py'; expected .jsonl, ",
        "Convert",
    ),
    "output is a file": (
        ["train", *SFT, "--output", "sft.jsonl"],
        "Cannot write to sft.jsonl: sft.jsonl is not a folder.",
        "--output",
    ),
    "output where nothing can be made": (
        ["train", *FEATURES, "--output", "/proc/run"],
        "Cannot write to /proc/run",
        "--output",
    ),
    "resuming what is not there": (["train", "--resume", "nope"], "nope does not exist.", "named"),
    "resuming what is no run": (["train", "--resume", "."], ". is not the folder of a run.", ""),
    "evaluating what is not there": (["evaluate", "nope"], "nope does not exist.", "named"),
    "predicting with what is not there": (
        ["predict", "nope", "--text", "x"],
        "nope does not exist.",
        "named",
    ),
    "a row that is not there": (
        ["inspect", "sft.jsonl", "--row", "99"],
        "--row is 99; expected 0 to 19.",
        "number",
    ),
}
"""Those of `check` are in tests/faults/settings.py, with their JSON."""


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_gets_one_message_and_exit_2(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    arguments, message, hint = MISTAKES[name]
    before = sorted(folder.rglob("*"))
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("error: ") == 1
    assert message in captured.err
    assert hint in captured.err
    assert "Traceback" not in captured.err
    assert without_bytecode(folder) == before


AS_ANYONE = """
import os, sys
from surefit.errors import UsageError
from surefit.run.run_folder import choose_folder
if os.geteuid() == 0:  # who may write to every folder
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    choose_folder(sys.argv[1], "run")
except UsageError as error:
    print(error.message)
"""


@pytest.mark.parametrize(
    ("mode", "output"), [(0o500, "locked/run"), (0o500, "locked/a/b"), (0o000, "locked/a/b")]
)
def test_read_only_output_folder(folder: Path, mode: int, output: str) -> None:
    folder.chmod(0o755)
    (folder / "locked").mkdir(mode=mode)
    command = [sys.executable, "-c", AS_ANYONE, output]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    said = f"Cannot write to {output}: locked may not be written to.\n"
    assert (ended.stdout, ended.returncode) == (said, 0), ended.stderr


@pytest.fixture
def finished(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of one step."""
    assert run(["train", *FEATURES, "--max-steps", "1", "--output", "run"]) == 0
    captured = capsys.readouterr()
    assert [line.split()[0] for line in captured.out.splitlines()][-2:] == ["run", "report"]
    assert "ready to train" in captured.err
    return folder / "run"


def _content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_output_that_holds_a_run_and_contradictions_of_it_are_refused(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _content(finished)
    for arguments, message in (
        (["train", *FEATURES, "--output", "run"], "run already holds a run (config.yaml)."),
        (["check", *FEATURES, "--output", "run"], "run already holds a run (config.yaml)."),
        (["train", "--resume", "run", "--batch-size", "9"], "batch_size"),
        (["train", "--resume", "run", "--lr", "0.5"], "lr"),
        (
            ["train", "--resume", "run", "--output", "."],
            "--resume resumes run where it is",
        ),
        (["check", "--resume", "run"], "check does not take --resume."),
    ):
        assert run(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert message in captured.err
    assert _content(finished) == before


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert capsys.readouterr().out.startswith("Usage: surefit")


def test_fault_of_our_own_is_one_message_and_a_traceback_only_with_debug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("surefit.data.open_data.open_table", broken)
    assert run(["inspect", "sft.jsonl", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"]["message"] == "ZeroDivisionError: oops"
    assert "--debug" in answer["error"]["fix"]
    with pytest.raises(ZeroDivisionError):
        run(["inspect", "sft.jsonl", "--debug"])


def test_a_fault_is_found_by_check_and_train_alike(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{json.dumps(row)}\n" for row in echo_rows(5))
    (folder / "bad.jsonl").write_text(rows + '{"prompt": "a"\n', encoding="utf-8")
    options = ["--data", "bad.jsonl", "--model", "tiny:llama"]
    before = without_bytecode(folder)
    assert run(["check", *options, "--json"]) == 1
    checked = capsys.readouterr()
    (found,) = (f for f in json.loads(checked.out)["findings"] if f["severity"] == "error")
    assert (found["code"], found["where"]) == ("SF102", {"file": "bad.jsonl", "line": 6})
    assert found["message"].startswith("bad.jsonl, line 6: not valid JSON")
    assert found["fix"]
    assert checked.err == ""
    assert run(["train", *options, "--output", "run"]) == 1
    trained = capsys.readouterr()
    assert trained.out == ""
    assert trained.err.count("error ") == 1
    assert f"{found['code']}  {found['message']}" in trained.err
    assert "Traceback" not in trained.err
    assert without_bytecode(folder) == before, "failed planning leaves no folder"


@pytest.mark.parametrize("value", [[[1], [2, 3]], float("nan"), None, {"a": 1}])
def test_inspecting_an_odd_row_gives_json(
    folder: Path, capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    write_jsonl(folder / "odd.jsonl", [{"x": value, "y": 1}])
    assert run(["inspect", "odd.jsonl", "--row", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["y"] == 1
