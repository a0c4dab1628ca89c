"""Bad rows: named by file, line and row in check and train alike, exit code 1, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bad_input import FEATURES, SFT, found_by_check, without_bytecode

from builders import (
    echo_rows,
    mostly_slow,
    sentiment_rows,
    write_jsonl,
)
from surefit.cli import run

pytestmark = pytest.mark.usefixtures("folder")


def lines(path: Path, *texts: str) -> None:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def prompts(place: int, odd: Any) -> list[Any]:
    rows: list[Any] = list(echo_rows(20))
    rows[place] = odd
    return rows


def _corrupt_jsonl(folder: Path) -> None:
    lines(folder / "bad.jsonl", *(json.dumps(row) for row in echo_rows(5)), '{"prompt": "a"')


def _corrupt_csv(folder: Path) -> None:
    lines(folder / "bad.csv", "prompt,completion", "a,b", "a,b,c")


def _mixed(folder: Path) -> None:
    write_jsonl(folder / "bad.jsonl", prompts(7, {"prompt": "a", "completion": 3}))


def _empty(folder: Path) -> None:
    (folder / "bad.jsonl").touch()


def _all_blank(folder: Path) -> None:
    write_jsonl(folder / "bad.jsonl", [{"prompt": " ", "completion": ""}] * 5)


def _nothing(folder: Path) -> None:
    """The good data will do."""


FAULTS: dict[str, tuple[Callable[[Path], None], list[str], str, dict[str, Any], str]] = {
    "corrupt line": (
        _corrupt_jsonl,
        ["--data", "bad.jsonl", "--model", "tiny:llama"],
        "SF102",
        {"file": "bad.jsonl", "line": 6},
        "bad.jsonl, line 6: not valid JSON",
    ),
    "corrupt CSV line": (
        _corrupt_csv,
        ["--data", "bad.csv", "--model", "tiny:llama"],
        "SF102",
        {"file": "bad.csv", "line": 3},
        "bad.csv, line 3: 3 cells, but the header names 2 columns",
    ),
    "mixed types": (
        _mixed,
        ["--data", "bad.jsonl", "--model", "tiny:llama"],
        "SF103",
        {"file": "bad.jsonl", "line": 8, "row": 7, "column": "completion"},
        "column 'completion' holds a number ('3'), but text in",
    ),
    "empty data": (
        _empty,
        ["--data", "bad.jsonl", "--model", "tiny:llama"],
        "SF101",
        {"file": "bad.jsonl"},
        "bad.jsonl has no rows.",
    ),
    "only empty rows": (
        _all_blank,
        ["--data", "bad.jsonl", "--model", "tiny:llama"],
        "SF401",
        {"file": "bad.jsonl", "row": 0},
        "No training row is left of 5: 5 rows are empty.",
    ),
    "image model for features": (
        _nothing,
        ["--data", "features.npz", "--model", "tiny:vit"],
        "SF326",
        {},
        "tiny:vit is a ViTModel; its forward has no argument inputs_embeds.",
    ),
    "image model for instructions": (
        _nothing,
        ["--data", "sft.jsonl", "--model", "tiny:vit"],
        "SF301",
        {},
        "tiny:vit",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_by_check_and_train_alike(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    prepare, options, code, where, message = FAULTS[name]
    prepare(folder)
    before = without_bytecode(folder)
    assert run(["check", *options, "--json"]) == 1
    checked = capsys.readouterr()
    (found,) = (f for f in json.loads(checked.out)["findings"] if f["severity"] == "error")
    assert (found["code"], found["where"]) == (code, where)
    assert message in found["message"]
    assert found["fix"]
    assert checked.err == ""
    assert run(["train", *options, "--output", "run"]) == 1
    trained = capsys.readouterr()
    assert trained.out == ""
    assert trained.err.count("error ") == 1
    assert f"{code}  {found['message']}" in trained.err
    assert "Traceback" not in trained.err
    assert without_bytecode(folder) == before, "failed planning leaves no folder"


def test_check_without_json_shows_the_plan_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", *FEATURES]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("ready to train\n")
    assert "Traceback" not in captured.err


def test_empty_rows_are_dropped_and_counted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Any] = sentiment_rows(30)
    rows[4]["text"], rows[9]["text"] = "  ", None
    rows[11]["label"], rows[20]["label"] = " ", None
    write_jsonl(folder / "some.jsonl", rows)
    code, plan = found_by_check(capsys, "--data", "some.jsonl", "--model", "tiny:bert")
    assert code == 0
    ledger = plan["ledger"]
    assert ledger["dropped_rows"] == {"empty": 2, "no_label": 2}
    assert (ledger["rows"], ledger["used_rows"]) == (30, 26)
    (note,) = (found for found in plan["findings"] if found["code"] == "SF215")
    assert note["severity"] == "warning"
    assert note["message"] == (
        "4 of 30 rows are dropped: 2 rows are empty, 2 rows have no label. "
        "For example, rows 4, 9 are empty; rows 11, 20 have no label."
    )
    assert note["where"]["row"] in (4, 9)


def test_too_many_empty_rows_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*echo_rows(4), *({"prompt": "", "completion": str(n)} for n in range(6))]
    write_jsonl(folder / "most.jsonl", rows)
    options = ["--data", "most.jsonl", "--model", "tiny:llama"]
    code, plan = found_by_check(capsys, *options)
    errors = [found["code"] for found in plan["findings"] if found["severity"] == "error"]
    assert (code, errors) == (1, ["SF204"])
    code, plan = found_by_check(capsys, *options, "--set", "max_dropped_share=0.6")
    assert (code, plan["ledger"]["dropped_rows"]) == (0, {"empty": 6})


@pytest.mark.parametrize("value", [[[1], [2, 3]], float("nan"), None, {"a": 1}])
def test_inspecting_an_odd_row_gives_json(
    folder: Path, capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    write_jsonl(folder / "odd.jsonl", [{"x": value, "y": 1}])
    assert run(["inspect", "odd.jsonl", "--row", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["y"] == 1


PROCESSES: dict[str, tuple[list[str], int, str]] = {
    "unknown option": (["train", "--bach-size", "3"], 2, "--batch-size"),
    "unknown key": (["check", *SFT, "--set", "kep=1"], 2, "Did you mean 'keep'?"),
    "missing file": (["train", "--data", "x.csv", "--model", "tiny:llama"], 2, "no file or folder"),
    "corrupt line": (["train", "--data", "bad.jsonl", "--model", "tiny:llama"], 1, "line 6"),
    "output is a file": (["train", *SFT, "--output", "sft.jsonl"], 2, "is not a folder"),
}


@pytest.mark.parametrize("name", mostly_slow(PROCESSES, every=3))
def test_bad_input_as_a_real_process(folder: Path, name: str) -> None:
    arguments, code, message = PROCESSES[name]
    _corrupt_jsonl(folder)
    before = sorted(folder.rglob("*"))
    ended = subprocess.run(
        [sys.executable, "-m", "surefit", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == code
    assert ended.stdout == ""
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert sorted(folder.rglob("*")) == before


def test_json_of_a_real_process_is_one_object(folder: Path) -> None:
    _corrupt_jsonl(folder)
    ended = subprocess.run(
        [sys.executable, "-m", "surefit", "check", "--json", *SFT, "--data", "bad.jsonl"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    plan = json.loads(ended.stdout)
    assert plan["findings"][0]["where"] == {"file": "bad.jsonl", "line": 6}
    assert ended.stderr == ""


def test_real_data_with_the_wrong_column_is_refused(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(shared / "data" / "gsm8k" / "test.jsonl")
    code, plan = found_by_check(
        capsys, "--data", path, "--model", "tiny:bert", "--task", "text-classification"
    )
    assert code == 1
    (found,) = plan["findings"]
    assert found["code"] == "SF205"
    assert "too many to be classes" in found["message"]
