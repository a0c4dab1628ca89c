"""The Python functions show what the commands show, on stderr or in the notebook."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import rich.console
from torch import nn

import surefit
from surefit.cli import display as shown_run
from surefit.cli import run as run_cli

ROWS = [{"features": [i % 2 + 0.1, i / 9, 1.0], "label": "ab"[i % 2]} for i in range(20)]
OPTIONS: dict[str, Any] = {"epochs": 1, "lr": 0.01, "batch_size": 8, "rehearse": False}
SHOWN = (
    "task      feature-classification",
    "steps     3 per epoch",
    "note      forward",
    "ready to train",
)


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2))


def test_train_shows_plan_findings_progress_and_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = lambda event: print("heard", event["event"])  # noqa: E731
    run = surefit.train(
        data=ROWS, model=make(), output=str(tmp_path / "run"), callbacks=[heard], **OPTIONS
    )
    said = capsys.readouterr()
    assert set(said.out.split("\n")) == {"heard step", "heard eval", ""}  # the user's own
    for text in (*SHOWN, "step 1 of 3: loss", "epoch 1/1  step 3", f"run             {run.path}"):
        assert text in said.err
    assert "\r" not in said.err
    surefit.evaluate(run, ROWS)
    surefit.predict(run, ROWS)
    assert capsys.readouterr().err == ""


def test_quiet_shows_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    surefit.train(data=ROWS, model=make(), output=str(tmp_path / "run"), quiet=True, **OPTIONS)
    surefit.check(data=ROWS, model=make(), quiet=True, **OPTIONS)
    surefit.inspect(ROWS, quiet=True)
    said = capsys.readouterr()
    assert said.out + said.err == ""


def test_check_shows_the_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    surefit.check(data=ROWS, model=make(), **OPTIONS)
    said = capsys.readouterr()
    assert said.out == ""
    assert all(text in said.err for text in SHOWN)
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    surefit.check(data=ROWS, model=make(), **OPTIONS)
    said = capsys.readouterr()
    assert said.err == ""  # a notebook shows stderr as an error
    assert all(text in said.out for text in SHOWN)
    assert not {"\r", "\x1b"} & {*said.out}
    monkeypatch.setattr(shown_run, "is_main", lambda: False)
    surefit.check(data=ROWS, model=make(), **OPTIONS)
    said = capsys.readouterr()
    assert said.out + said.err == ""


def test_python_and_the_command_show_the_same_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b,label\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(20)))
    varies = ("memory", "time", "disk", "predicting")
    surefit.check(data=str(path), model="tiny:mlp")
    of_python = capsys.readouterr().err.splitlines()
    assert run_cli(["check", "--data", str(path), "--model", "tiny:mlp"]) == 0
    of_command = capsys.readouterr().out.splitlines()
    assert [line for line in of_python if not line.startswith(varies)] == [
        line for line in of_command if not line.startswith(varies)
    ]


def test_the_text_of_an_exception_has_its_fix() -> None:
    with pytest.raises(surefit.UsageError) as caught:
        surefit.train(data="none.jsonl", model=make())
    assert str(caught.value).endswith(f"\nfix: {caught.value.fix}")
    assert caught.value.fix
    ragged = [{**row, "features": row["features"][: 2 + i % 2]} for i, row in enumerate(ROWS)]  # type: ignore[index]
    with pytest.raises(surefit.FindingError) as found:
        surefit.train(data=ragged, model=make(), **OPTIONS)
    for each in found.value.findings:
        for part in (each.code, each.message, f"row {each.where['row']}", f"fix: {each.fix}"):
            assert part in str(found.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
