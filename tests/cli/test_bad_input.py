"""Bad input: one clear message, exit code 2 or 1, no traceback, no half-written run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders import (
    echo_rows,
    feature_rows,
    mostly_slow,
    save_ragged,
    sentiment_rows,
    write_jsonl,
    write_module,
)
from surefit.cli import run

Files = dict[str, list[str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with good data and a good module."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "sft.jsonl", echo_rows(20))
    write_jsonl(tmp_path / "texts.jsonl", sentiment_rows(30))
    save_ragged(tmp_path / "features.npz", feature_rows(30))
    write_module(tmp_path, "net")
    return tmp_path


SFT = ["--data", "sft.jsonl", "--model", "tiny:llama"]
FEATURES = ["--data", "features.npz", "--model", "net:make"]

MISTAKES: dict[str, tuple[list[str], str, str]] = {
    "unknown command": (["trian"], "No such command 'trian'.", "train"),
    "unknown option": (["train", *SFT, "--bach-size", "3"], "--bach-size", "--batch-size"),
    "option without a number": (["train", *SFT, "--epochs", "x"], "'--epochs'", "integer"),
    "value out of range": (["train", *SFT, "--epochs", "0"], "epochs: ", "found 0"),
    "unknown task": (["train", *SFT, "--task", "stf"], "Unknown task 'stf'.", "mean 'sft'?"),
    "unknown key": (["train", *SFT, "--set", "kep=1"], "Unknown key 'kep'.", "mean 'keep'?"),
    "unknown role": (
        ["train", *SFT, "--set", "columns.promt=x"],
        "columns.promt: no task has a role 'promt'.",
        "mean columns.prompt?",
    ),
    "an option and its key": (
        ["train", *SFT, "--set", "data=other.jsonl"],
        "--data and --set data=… are both given.",
        "one of them",
    ),
    "an empty model": (["train", *SFT[:3], ""], "--model is empty.", "leave it out"),
    "an empty task": (["train", *SFT, "--task", ""], "--task is empty.", "leave it out"),
    "an empty path": (["inspect", ""], "The path of the data is empty.", "Pass a file"),
    "--set without a value": (["train", *SFT, "--set", "lr"], "key=value", "found 'lr'"),
    "metric the task does not have": (
        ["train", *FEATURES, "--set", "early_stopping.metric=acuracy"],
        "early_stopping.metric is 'acuracy'",
        "loss, accuracy, macro_f1.",
    ),
    "metric that is no number": (
        ["train", *FEATURES, "--set", "early_stopping.metric=confusion"],
        "early_stopping.metric is 'confusion'",
        "loss, accuracy, macro_f1.",
    ),
    "no data": (["train", "--model", "tiny:llama"], "No data was given.", "--data"),
    "no model": (["train", "--data", "sft.jsonl"], "No model was given.", "--model"),
    "missing data": (
        ["train", "--data", "nope.jsonl", "--model", "tiny:llama"],
        "There is no file or folder nope.jsonl.",
        "path",
    ),
    "missing evaluation data": (
        ["train", *SFT, "--eval-data", "nope.jsonl"],
        "There is no file or folder nope.jsonl.",
        "path",
    ),
    "missing config": (["train", "nope.yaml"], "There is no config file nope.yaml.", "path"),
    "missing model folder": (
        ["train", "--data", "sft.jsonl", "--model", "./nope"],
        "./nope is not a model folder.",
        "path",
    ),
    "missing module": (
        ["train", "--data", "features.npz", "--model", "nope:make"],
        "There is no Python module 'nope'",
        "MODULE:FUNCTION",
    ),
    "missing function": (
        ["train", "--data", "features.npz", "--model", "net:mke"],
        "'mke'",
        "make",
    ),
    "unknown architecture": (
        ["train", "--data", "sft.jsonl", "--model", "tiny:lama"],
        "'lama' is not an architecture",
        "llama",
    ),
    "file of an unknown kind": (
        ["train", "--data", "net.py", "--model", "tiny:llama"],
        "net.py has the ending '.py'; expected .jsonl, ",
        "Convert",
    ),
    "text for a module without tokenizer": (
        ["train", "--data", "sft.jsonl", "--model", "net:make"],
        "net:make comes without a tokenizer",
        "--tokenizer",
    ),
    "output is a file": (
        ["train", *SFT, "--output", "sft.jsonl"],
        "Cannot write to sft.jsonl: sft.jsonl is not a folder.",
        "--output",
    ),
    "output below a file": (
        ["train", *SFT, "--output", "sft.jsonl/run"],
        "Cannot write to sft.jsonl/run",
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
    assert _without_bytecode(folder) == before


def _without_bytecode(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


CHECKED = {name: case for name, case in MISTAKES.items() if case[0][0] == "train"} | {
    "inspect": (["inspect", "nope.csv"], "There is no file or folder nope.csv.", "path"),
    "evaluate": (["evaluate", "nope"], "nope does not exist.", "named"),
}
WRITES_ONLY = ("resuming", "output where nothing")


@pytest.mark.parametrize("name", [n for n in CHECKED if not n.startswith(WRITES_ONLY)])
def test_mistake_with_json_is_one_object_alone_on_stdout(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (command, *rest), message, hint = CHECKED[name]
    assert run(["check" if command == "train" else command, *rest, "--json"]) == 2
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert answer.keys() == {"ok", "error"}
    assert answer["ok"] is False
    assert answer["error"].keys() == {"message", "fix"}
    assert message in answer["error"]["message"]
    assert hint in answer["error"]["message"] + answer["error"]["fix"]
    assert "Traceback" not in captured.err


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


@pytest.mark.parametrize("setting", ["precision=fp16", "trackers=nope"])
def test_what_this_machine_cannot_do_leaves_no_folder(
    folder: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(["train", *FEATURES, "--set", setting, "--output", "run"]) == 2
    assert not (folder / "run").exists()


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
    before = _without_bytecode(folder)
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
    assert _without_bytecode(folder) == before, "failed planning leaves no folder"


def test_check_without_json_shows_the_plan_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", *FEATURES]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("ready to train\n")
    assert "Traceback" not in captured.err


def found_by_check(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    code = run(["check", "--json", *options])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    plan = json.loads(captured.out)
    assert plan["ok"] is (code == 0)
    return code, plan


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


def tokens(place: int, ids: Any, labels: Any) -> list[dict[str, Any]]:
    """Tokenized rows, one of them odd."""
    rows: list[dict[str, Any]] = [
        {"input_ids": [5, 6, 7 + n], "labels": [-100, 6, 7 + n]} for n in range(20)
    ]
    rows[place] = {"input_ids": ids, "labels": labels}
    return rows


TOKEN_FAULTS: dict[str, tuple[list[dict[str, Any]], str, int, str | None, str]] = {
    "id beyond the vocabulary": (
        tokens(17, [5, 99_999], [5, 6]),
        "SF302",
        17,
        "input_ids",
        "input_ids[1] is 99999, but the model's vocabulary has 512 tokens",
    ),
    "negative id": (tokens(3, [-1, 5], [5, 6]), "SF302", 3, "input_ids", "input_ids[0] is -1"),
    "label beyond the vocabulary": (
        tokens(3, [5, 6], [5, 99_999]),
        "SF302",
        3,
        "labels",
        "labels[1] is 99999",
    ),
    "labels longer than ids": (
        tokens(8, [5, 6], [5, 6, 7]),
        "SF201",
        8,
        "labels",
        "column 'labels' has length 3, but 'input_ids', which it is aligned with, has length 2",
    ),
    "labels shorter than ids": (tokens(8, [5, 6], [5]), "SF201", 8, "labels", "has length 1"),
    "no value among the ids": (tokens(8, [5, None], [5, 6]), "SF207", 8, "input_ids", "nan at [1]"),
    "fractions": (tokens(8, [5.5, 6], [5, 6]), "SF213", 8, "input_ids", "fractions"),
    "one label per row": (
        [{"input_ids": [5, n], "labels": n % 2} for n in range(20)],
        "SF208",
        0,
        "labels",
        "expected one list of ids",
    ),
    "ids in two axes": (
        [{"input_ids": [[5, n]], "labels": [[5, n]]} for n in range(20)],
        "SF208",
        0,
        "input_ids",
        "expected one list of ids",
    ),
    "text as ids": (
        [{"input_ids": ["a", str(n)], "labels": [5, 6]} for n in range(20)],
        "SF213",
        0,
        "input_ids",
        "expected numbers",
    ),
    "longer than the model's positions": (
        tokens(8, [5] * 600, [5] * 600),
        "SF304",
        8,
        None,
        "longer than the 512 positions of the model: row 8 has 600 tokens.",
    ),
    "nothing to learn at all": (
        [{"input_ids": [5, n], "labels": [-100, -100]} for n in range(20)],
        "SF401",
        0,
        None,
        "No training row is left of 20: 20 rows have no labelled token.",
    ),
}


@pytest.mark.parametrize("name", TOKEN_FAULTS)
def test_fault_of_tokenised_rows_is_a_finding_with_its_row(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    rows, expected, row, column, message = TOKEN_FAULTS[name]
    write_jsonl(folder / "tokens.jsonl", rows)
    options = ["--data", "tokens.jsonl", "--model", "tiny:llama", "--max-seq-length", "900"]
    code, plan = found_by_check(capsys, *options, "--set", "eval_share=0")
    assert code == 1
    (found,) = (found for found in plan["findings"] if found["severity"] == "error")
    assert found["code"] == expected
    assert found["where"]["file"] == "tokens.jsonl"
    assert found["where"]["row"] == row
    assert found["where"].get("column") == column
    assert message in found["message"]


def test_row_with_nothing_to_learn_is_dropped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(folder / "tokens.jsonl", tokens(6, [5, 6], [-100, -100]))
    code, plan = found_by_check(capsys, "--data", "tokens.jsonl", "--model", "tiny:llama")
    assert code == 0
    assert plan["ledger"]["dropped_rows"] == {"nothing_to_learn": 1}
    (found,) = (f for f in plan["findings"] if "no labelled token" in f["message"])
    assert found["where"]["row"] == 6


def steps(place: int | None = None, **odd: Any) -> list[dict[str, Any]]:
    """Feature rows of width 4, one of them odd."""
    rows = [{**row, "features": row["features"].tolist()} for row in feature_rows(30)]
    if place is not None:
        rows[place] = {**rows[place], **odd}
    return rows


def every(**odd: Any) -> list[dict[str, Any]]:
    """Feature rows, all of them odd in the same way."""
    return [{**row, **odd} for row in steps()]


FEATURE_FAULTS: dict[str, tuple[list[dict[str, Any]], list[str], str, dict[str, Any], str]] = {
    "another width": (
        steps(21, features=[[1.0, 2.0, 3.0]]),
        [],
        "SF208",
        {"row": 21, "column": "features"},
        "width 3; the other rows have width 4",
    ),
    "two widths in one row": (
        steps(21, features=[[1.0, 2.0, 3.0, 4.0], [1.0]]),
        [],
        "SF208",
        {"row": 21, "column": "features"},
        "steps have different widths within the row: [1, 4]",
    ),
    "a missing step": (
        steps(21, features=[[1.0, 2.0, 3.0, 4.0], None]),
        [],
        "SF208",
        {"row": 21, "column": "features"},
        "steps have different widths within the row: [0, 4]",
    ),
    "not a number": (
        steps(21, features=[[1.0, 2.0, float("nan"), 4.0]]),
        [],
        "SF207",
        {"row": 21, "column": "features"},
        "column 'features' contains nan at [0, 2]",
    ),
    "a missing value": (
        steps(21, features=[[1.0, 2.0, None, 4.0]]),
        [],
        "SF207",
        {"row": 21, "column": "features"},
        "contains nan at [0, 2]",
    ),
    "a mask of another length": (
        [{**row, "mask": [1] * (len(row["features"]) + (n == 5))} for n, row in enumerate(steps())],
        [],
        "SF201",
        {"row": 5, "column": "mask"},
        "but 'features', which it is aligned with, has length",
    ),
    "float labels": (
        steps(21, label=1.5),
        [],
        "SF205",
        {"row": 21, "column": "label"},
        "the label 1.5 is a float; expected a class name or number",
    ),
    "lists with a label twice": (
        every(label=["a", "a"]),
        [],
        "SF205",
        {"column": "label"},
        "the label is the list ['a', 'a']; expected each of the row's classes once",
    ),
    "labels nearly all different": (
        [{**row, "label": f"row {n}"} for n, row in enumerate(steps())],
        [],
        "SF205",
        {"column": "label"},
        "column 'label' has 27 different values in 27 training rows, too many to be classes.",
    ),
    "one class only": (
        every(label="a"),
        [],
        "SF205",
        {"column": "label"},
        "column 'label' has 1 class in 27 training rows; at least 2 are needed.",
    ),
    "no label column": (
        [{"features": row["features"]} for row in steps()],
        ["--task", "feature-classification"],
        "SF202",
        {"file": "rows.jsonl"},
        "needs columns 'features' and 'label'; the columns are features (float64 array [*, *])",
    ),
    "unknown column": (
        steps(),
        ["--set", "columns.label=stars"],
        "SF202",
        {"column": "stars"},
        "columns.label names the column 'stars'; the data has features, label.",
    ),
    "columns the wrong way round": (
        steps(),
        ["--set", "columns.label=features", "--set", "columns.features=label"],
        "SF205",
        {"column": "features"},
        "expected one class per row",
    ),
}


@pytest.mark.parametrize("name", FEATURE_FAULTS)
def test_fault_of_feature_rows_is_a_finding_with_its_row(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    rows, options, expected, where, message = FEATURE_FAULTS[name]
    write_jsonl(folder / "rows.jsonl", rows)
    code, plan = found_by_check(capsys, "--data", "rows.jsonl", "--model", "net:make", *options)
    assert code == 1
    (found,) = (found for found in plan["findings"] if found["severity"] == "error")
    assert found["code"] == expected
    assert where.items() <= found["where"].items()
    assert message in found["message"]


ARRAY_FAULTS: dict[str, tuple[tuple[int, ...], list[str], str, str]] = {
    "flat rows": ((30, 22), [], "SF421", "sequence length × feature size may be 11 × 2, 2 × 11."),
    "flat rows cut unevenly": (
        (30, 20),
        ["--set", "features.steps=7"],
        "SF435",
        "[20], which does not fit: features.steps is 7",
    ),
    "a width that no axis has": (
        (30, 5, 6),
        ["--set", "features.width=4"],
        "SF435",
        "are [5, 6], but features.width is 4",
    ),
    "one axis too many": ((30, 2, 3, 4), [], "SF202", "No task could be inferred"),
}


@pytest.mark.parametrize("name", ARRAY_FAULTS)
def test_array_of_the_wrong_shape_is_a_finding(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    shape, options, expected, message = ARRAY_FAULTS[name]
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.savez(folder / "array.npz", features=values, label=np.arange(30) % 3)
    code, plan = found_by_check(
        capsys, "--data", "array.npz", "--model", "net:make", "--set", "eval_share=0", *options
    )
    assert code == 1
    found = plan["findings"][-1]
    assert (found["code"], found["severity"]) == (expected, "error")
    assert message in found["message"]
    assert "features." in found["fix"] or "sizes" in found["fix"] or expected == "SF202"


@pytest.mark.parametrize(
    ("shape", "code", "longest"),
    [((30, 20), "SF420", 5), ((30, 4, 7), "SF422", 7), ((30, 5, 6), "SF433", 5)],
    ids=["flat rows", "transposed axes", "a width the model does not have"],
)
def test_array_of_another_shape_is_adapted(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    shape: tuple[int, ...],
    code: str,
    longest: int,
) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.savez(folder / "array.npz", features=values, label=np.arange(30) % 3)
    exit_code, plan = found_by_check(
        capsys, "--data", "array.npz", "--model", "net:make", "--set", "eval_share=0"
    )
    assert exit_code == 0
    assert (code, "fixed") in {(found["code"], found["severity"]) for found in plan["findings"]}
    assert plan["batches"]["longest"] == [8, longest]


@pytest.mark.parametrize("setting", ["features.steps=5", "features.width=4"])
def test_flat_rows_are_cut_as_asked(
    folder: Path, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    values = np.random.default_rng(0).normal(size=(30, 20)).astype(np.float32)
    np.savez(folder / "array.npz", features=values, label=np.arange(30) % 3)
    options = ["--data", "array.npz", "--model", "net:make", "--set", setting]
    code, plan = found_by_check(capsys, *options)
    assert (code, plan["batches"]["longest"]) == (0, [8, 5])
    assert [found["code"] for found in plan["findings"]] == ["SF420"]


BAD_MODULES: dict[str, tuple[str, str, str]] = {
    "too few outputs": ("return Net(2)", "SF303", "has 2 outputs, but the data has 3 classes"),
    "no module": ("return 'net'", "SF301", "returned a str; expected a torch.nn.Module"),
    "a fault of its own": ("return missing", "SF305", "raised NameError: name 'missing'"),
}


@pytest.mark.parametrize("name", BAD_MODULES)
def test_module_that_does_not_suit_the_data(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    line, expected, message = BAD_MODULES[name]
    source = (folder / "net.py").read_text().replace("return Net(num_classes)", line)
    module = f"bad_net_{expected.lower()}"  # Python imports a module once per name
    (folder / f"{module}.py").write_text(source)
    code, plan = found_by_check(capsys, "--data", "features.npz", "--model", f"{module}:make")
    assert code == 1
    (found,) = (each for each in plan["findings"] if each["severity"] == "error")
    assert found["code"] == expected
    assert message in found["message"]


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
        (["train", "--resume", "run", "--output", "."], ". is not empty, so run cannot be"),
        (["check", "--resume", "run"], "check does not take --resume."),
    ):
        assert run(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert message in captured.err
    assert _content(finished) == before


def test_resuming_on_other_data_says_so(
    finished: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_ragged(folder / "features.npz", feature_rows(31))
    shutil.rmtree(finished / "model")  # as if it had been stopped before the end
    before = _content(finished)
    assert run(["train", "--resume", "run"]) == 1
    captured = capsys.readouterr()
    assert "SF403  The rows of run are not those it was begun with." in captured.err
    assert _content(finished) == before


@pytest.mark.parametrize("value", [[[1], [2, 3]], float("nan"), None, {"a": 1}])
def test_inspecting_an_odd_row_gives_json(
    folder: Path, capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    write_jsonl(folder / "odd.jsonl", [{"x": value, "y": 1}])
    assert run(["inspect", "odd.jsonl", "--row", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["y"] == 1


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
