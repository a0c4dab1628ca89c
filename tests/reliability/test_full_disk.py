"""A disk that fills during a run: a clear message, the last checkpoint intact, and exact resume."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import MeanPool, feature_rows, write_jsonl
from surefit.errors import RunFailedError, SurefitError, UsageError
from surefit.plan.plan import Plan
from surefit.run.choose_checkpoint import checkpoint_damage, list_checkpoints
from surefit.run.events import read_events

PAGE = 4096
ROWS = feature_rows(40)
STATE = MeanPool().state_dict()
OPTIONS: dict[str, Any] = {
    "data": ROWS,
    "batch_size": 4,
    "epochs": 2,
    "lr": 0.01,
    "save_every": 3,
    "accept": ["SF860"],
}


@contextmanager
def small_disk(folder: Path, size: str = "16m") -> Iterator[Path]:
    """Mount a tmpfs at `folder` while the block runs; skips where that is not possible."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def leave_pages(disk: Path, pages: int) -> Path:
    """Fill a disk but for some pages; the file that fills it."""
    filler = disk / "filler"
    free = os.statvfs(disk)
    with filler.open("wb") as file:
        for _ in range(free.f_bavail * free.f_frsize // PAGE - pages):
            file.write(b"\0" * PAGE)
    return filler


def module() -> MeanPool:
    fresh = MeanPool(dropout=0.1)
    fresh.load_state_dict(STATE)
    return fresh


def events(folder: Path) -> list[dict[str, Any]]:
    return [{**event, "seconds": 0} for event in read_events(folder / "events.jsonl")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    surefit.train(model=module(), output=str(folder), **OPTIONS)
    return events(folder)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_disk(tmp_path_factory.mktemp("disk") / "small") as mounted:
        yield mounted


def list_steps(folder: Path) -> list[Path]:
    return list_checkpoints(folder / "checkpoints") if folder.is_dir() else []


@pytest.mark.parametrize("pages", [1, 14, 40])
def test_a_run_whose_disk_fills_resumes_to_the_same_result(
    disk: Path, whole: list[dict[str, Any]], pages: int
) -> None:
    folder = disk / "run"
    leave_pages(disk, pages)
    with pytest.raises(SurefitError, match=r"full|No space left") as failed:
        surefit.train(model=module(), output=str(folder), **OPTIONS)
    saved, error = list_steps(folder), failed.value
    assert all(not checkpoint_damage(path) for path in saved)
    if saved:
        assert f"step {int(saved[-1].name[5:])} is intact" in error.message
    assert str(folder) in error.fix or isinstance(error, UsageError)
    (disk / "filler").unlink()
    if (folder / "plan.json").exists():
        surefit.train(resume=folder, data=ROWS, model=module())
    else:
        surefit.train(model=module(), output=str(folder), **OPTIONS)
    assert events(folder) == whole
    assert (folder / "report.html").is_file()
    shutil.rmtree(folder)


def check_in_small_cache(tmp_path: Path, rows: int) -> Plan:
    data = write_jsonl(
        tmp_path / "a.jsonl", ({"text": f"{n % 9} {n}", "label": "ab"[n % 2]} for n in range(rows))
    )
    with small_disk(tmp_path / "cache", "400k") as cache:
        return surefit.check(data=str(data), model="tiny:bert", cache=str(cache / "c"))


def test_rows_that_do_not_fit_in_the_cache_are_refused_before_they_are_encoded(
    tmp_path: Path,
) -> None:
    found = check_in_small_cache(tmp_path, 5_000).findings
    assert [each.code for each in found if each.severity == "error"] == ["SF862"]
    assert "free in the cache folder" in found[-1].message


def test_a_table_that_fills_the_disk_of_the_cache_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="is full") as failed:
        check_in_small_cache(tmp_path, 40_000)
    assert "--set cache=" in failed.value.fix
