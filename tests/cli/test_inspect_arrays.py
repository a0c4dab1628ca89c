"""`surefit inspect` on arrays: what lies on disk, how it will be read, what the model expects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from builders import feature_rows, save_ragged
from surefit.cli import run


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shards that lie in four ways, and one that cannot be read."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shards"
    folder.mkdir()
    values = np.arange(2 * 5 * 6, dtype=np.float32).reshape(2, 5, 6)
    np.save(folder / "a.npy", values)
    with_gaps = values.astype(np.float64)
    with_gaps[0, 0, :3] = np.nan
    with_gaps[1, 0, 0] = np.inf
    np.save(folder / "b.npy", with_gaps)
    np.save(folder / "c.npy", values.reshape(2, -1))
    np.save(folder / "d.npy", values.swapaxes(1, 2))
    (folder / "e.npy").touch()
    return folder


def test_every_array_is_reported(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["inspect", "shards", "--set", "on_bad_file=skip"]
    assert run([*options, "--json"]) == 0
    report: Any = json.loads(capsys.readouterr().out)
    by_file = {Path(each["file"]).name: each for each in report["arrays"]}
    assert by_file["a.npy"]["shape"] == [2, 5, 6]
    assert (by_file["a.npy"]["smallest"], by_file["a.npy"]["largest"]) == (0, 59)
    assert by_file["b.npy"]["dtype"] == "float64"
    assert by_file["b.npy"]["nan_share"] == pytest.approx(3 / 60)
    assert by_file["b.npy"]["infinite"] == 1
    assert by_file["c.npy"]["shape"] == [2, 30]
    assert by_file["d.npy"]["shape"] == [2, 6, 5]
    assert "it is empty" in by_file["e.npy"]["fault"]
    assert report["layout"]["steps"] == [5, 5]
    assert report["layout"]["width"] == 6
    assert [fix.split(": ")[0] for fix in report["layout"]["fixes"]] == [
        "SF427 b.npy",
        "SF427 c.npy",
        "SF427 d.npy",
    ]
    assert run(options) == 0
    shown = capsys.readouterr().out
    assert "b.npy  b      [2, 5, 6]  float64  3 … 59  5.00%, 1 infinite" in shown
    assert "read as   sequence length 5, feature size 6" in shown
    assert "\x1b" not in shown


def test_files_that_do_not_go_together_are_still_shown(
    shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", "shards"]) == 1
    shown = capsys.readouterr()
    assert "d.npy  d      [2, 6, 5]" in shown.out
    assert "cannot be read: shards/e.npy" in shown.out
    assert "error: shards/e.npy" in shown.err
    assert run(["inspect", "shards", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_what_the_model_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_ragged(tmp_path / "x.npz", feature_rows(40))
    surefit.train(data="x.npz", model="tiny:bert", max_steps=1, output="run")
    flat = np.zeros((6, 24), np.float32)
    np.save(tmp_path / "flat.npy", flat)
    assert run(["inspect", "flat.npy"]) == 0
    assert "unclear   rows of column 'features' are flat, [24]" in capsys.readouterr().out
    assert run(["inspect", "flat.npy", "--model", "run"]) == 0
    shown = capsys.readouterr().out
    assert "run/model: feature size 4, as in training" in shown
    assert "read as   sequence length 6, feature size 4" in shown


def test_lengths_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = surefit.inspect(str(save_ragged(tmp_path / "x.npz", feature_rows(40))))
    assert "█" in str(report)
    column = next(each for each in report.columns if each.name == "features")
    assert column.histogram is not None
    assert sum(bar[2] for bar in column.histogram) == 40
    assert {each.array for each in report.arrays} == {"features", "lengths", "label"}
