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
from builders import events_of, feature_rows, same_pool, write_jsonl
from surefit.errors import RunFailedError, SurefitError, UsageError
from surefit.run.choose_checkpoint import checkpoint_damage, list_checkpoints

PAGE = 4096
ROWS = feature_rows(40)
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    surefit.train(model=same_pool(0.1), output=str(folder), **OPTIONS)
    return events_of(folder)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_disk(tmp_path_factory.mktemp("disk") / "small") as mounted:
        yield mounted


@pytest.mark.parametrize("pages", [1, 14, 25])
def test_a_run_whose_disk_fills_resumes_to_the_same_result(
    disk: Path, whole: list[dict[str, Any]], pages: int
) -> None:
    folder = disk / "run"
    leave_pages(disk, pages)
    with pytest.raises(SurefitError, match=r"full|No space left") as failed:
        surefit.train(model=same_pool(0.1), output=str(folder), **OPTIONS)
    saved = list_checkpoints(folder / "checkpoints") if folder.is_dir() else []
    error = failed.value
    assert all(not checkpoint_damage(path) for path in saved)
    if saved:
        assert f"step {int(saved[-1].name[5:])} is intact" in error.message
    assert str(folder) in error.fix or isinstance(error, UsageError)
    (disk / "filler").unlink()
    if (folder / "plan.json").exists():
        surefit.train(resume=folder, data=ROWS, model=same_pool(0.1))
    else:
        surefit.train(model=same_pool(0.1), output=str(folder), **OPTIONS)
    assert events_of(folder) == whole
    assert (folder / "report.html").is_file()
    shutil.rmtree(folder)


def test_a_cache_that_does_not_hold_the_rows_is_reported(tmp_path: Path) -> None:
    rows = [{"text": f"{n % 9} {n}", "label": "ab"[n % 2]} for n in range(40_000)]
    few, many = (
        write_jsonl(tmp_path / "few.jsonl", rows[:5000]),
        write_jsonl(tmp_path / "many.jsonl", rows),
    )
    with small_disk(tmp_path / "cache", "400k") as cache:
        options = {"model": "tiny:bert", "cache": str(cache / "c")}
        found = surefit.check(data=str(few), **options).findings
        assert [each.code for each in found if each.severity == "error"] == ["SF862"]
        assert "free in the cache folder" in found[-1].message  # before they are encoded
        with pytest.raises(RunFailedError, match="is full") as failed:
            surefit.check(data=str(many), **options)
    assert "--set cache=" in failed.value.fix
