"""Resuming and evaluating after the data was touched, copied, moved or changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from builders import feature_rows, save_ragged, write_module
from surefit.cli import run as command
from surefit.data.cache_contents import clean_cache
from surefit.data.cache_use import release_leases
from surefit.training.changed_rows import describe_difference

TRAIN = ["train", "--data", "data.npz", "--model", "movednet:make", "--batch-size", "4"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a run that stopped after its second step."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_module(folder, "movednet")
    save_ragged(folder / "data.npz", feature_rows(30))
    assert command([*TRAIN, "--max-steps", "2", "--output", "run"]) == 0
    return folder


def resume(*more: str) -> int:
    return command(["train", "--resume", "run", "--max-steps", "4", *more])


def test_touched_data_is_the_same(home: Path) -> None:
    os.utime(home / "data.npz", (1, 1))
    assert command(["evaluate", "run"]) == 0
    content = (home / "data.npz").read_bytes()
    (home / "data.npz").unlink()
    (home / "data.npz").write_bytes(content)  # as after git checkout
    assert resume() == 0


def test_moved_data_is_found_or_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "later").mkdir()
    shutil.move("data.npz", "later/renamed.npz")
    assert resume() == 2
    assert "--data FILE" in capsys.readouterr().err
    assert resume("--data", "later/renamed.npz") == 0
    assert str(home / "later" / "renamed.npz") in (home / "run" / "config.yaml").read_text()
    shutil.move("later/renamed.npz", "renamed.npz")
    assert command(["evaluate", "run"]) == 0  # a file of that name in the working folder
    capsys.readouterr()
    assert resume("--max-steps", "5") == 0
    assert "SF822" in capsys.readouterr().err


def test_changed_data_is_refused_with_its_rows(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = feature_rows(30)
    for row in (5, 17):
        rows[row]["features"] = rows[row]["features"] + 1
    stat = (home / "data.npz").stat()
    save_ragged(home / "data.npz", rows)
    os.utime(home / "data.npz", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert resume() == 1
    told = capsys.readouterr().err
    assert "2 rows changed: rows 5, 17" in told.replace("\n", " ")
    assert "accept=[SF403]" in told
    assert resume("--set", "accept=[SF403]") == 0
    assert resume("--max-steps", "5") == 0  # they are now the rows of the run


def test_without_the_old_rows_it_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release_leases()
    clean_cache()
    save_ragged(home / "data.npz", feature_rows(30, seed=1))
    assert resume() == 1
    assert "cannot be compared" in capsys.readouterr().err.replace("\n", " ")
    plan = json.loads((home / "run" / "plan.json").read_text())
    assert plan["stores"]


def test_rows_that_differ() -> None:
    old = [(n, n * 7) for n in range(10)]
    assert describe_difference(old, old) == ""
    longer = [*old[:4], (4, 1), *((n + 1, d) for n, d in old[4:])]
    assert describe_difference(old, longer) == "1 row added: row 4."
    assert describe_difference(longer, old) == "1 row removed: row 4."
    both = [*old[:2], (2, 1), (3, 2), *((n + 1, d) for n, d in old[3:])]
    assert "Rows 2 to 3 differ" in describe_difference(old, both)
