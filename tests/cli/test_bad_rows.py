"""Bad rows: named by file, line and row in check and train alike, exit code 1, no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bad_input import found_by_check, without_bytecode

from builders import (
    echo_rows,
    sentiment_rows,
    write_jsonl,
)
from surefit.cli import run

pytestmark = pytest.mark.usefixtures("folder")


def _corrupt(folder: Path) -> None:
    rows = "".join(f"{json.dumps(row)}\n" for row in echo_rows(5))
    (folder / "bad.jsonl").write_text(rows + '{"prompt": "a"\n', encoding="utf-8")


def test_a_fault_is_found_by_check_and_train_alike(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _corrupt(folder)
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
        "4 of 30 rows are dropped: 2 empty, 2 without a label. "
        "For example, rows 4, 9 (empty), rows 11, 20 (without a label)."
    )
    assert note["where"]["row"] in (4, 9)


@pytest.mark.parametrize("value", [[[1], [2, 3]], float("nan"), None, {"a": 1}])
def test_inspecting_an_odd_row_gives_json(
    folder: Path, capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    write_jsonl(folder / "odd.jsonl", [{"x": value, "y": 1}])
    assert run(["inspect", "odd.jsonl", "--row", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["y"] == 1
