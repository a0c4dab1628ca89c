"""A disk that fills during a run: a clear message, the last checkpoint intact, and exact resume."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import MeanPool, feature_rows, write_jsonl
from reliability.small_disk import leave_pages, small_disk
from surefit.errors import RunFailedError, SurefitError, UsageError
from surefit.run.choose_checkpoint import checkpoint_damage, list_checkpoints
from surefit.run.events import read_events

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


def fill_and_resume(disk: Path, pages: int, whole: list[dict[str, Any]]) -> str:
    """Train with so many free pages, then with enough; at which write the disk was full."""
    folder, where = disk / "run", "nothing"
    filler = leave_pages(disk, pages)
    try:
        surefit.train(model=module(), output=str(folder), **OPTIONS)
    except SurefitError as error:
        where = "model" if (folder / "model").is_dir() else f"{len(list_steps(folder))} saved"
        assert "full" in error.message or "No space left" in error.message, error.message
        assert str(folder) in error.fix or isinstance(error, UsageError)
        saved = list_steps(folder)
        assert all(not checkpoint_damage(path) for path in saved)
        if saved:
            assert isinstance(error, RunFailedError)
            assert f"step {int(saved[-1].name[5:])} is intact" in error.message
    filler.unlink()
    if (folder / "plan.json").exists():
        surefit.train(resume=folder, data=ROWS, model=module())
    else:
        surefit.train(model=module(), output=str(folder), **OPTIONS)
    assert events(folder) == whole
    assert (folder / "report.html").is_file()
    shutil.rmtree(folder)
    return where


@pytest.mark.parametrize("pages", [1, 14, 40])
def test_a_run_whose_disk_fills_resumes_to_the_same_result(
    disk: Path, whole: list[dict[str, Any]], pages: int
) -> None:
    assert fill_and_resume(disk, pages, whole) != "nothing"


@pytest.mark.slow
def test_the_disk_fills_at_every_kind_of_write(disk: Path, whole: list[dict[str, Any]]) -> None:
    met = [fill_and_resume(disk, pages, whole) for pages in range(48)]
    assert {"0 saved", "1 saved", "2 saved", "3 saved", "model"} <= {*met}


@pytest.mark.parametrize("rows", [4_000, 40_000])
def test_a_cache_that_is_too_small_is_reported(tmp_path: Path, rows: int) -> None:
    """With 4,000 rows the table still fits, and the encoded rows do not."""
    data = write_jsonl(
        tmp_path / "a.jsonl", ({"text": f"{n % 9} {n}", "label": "ab"[n % 2]} for n in range(rows))
    )
    with small_disk(tmp_path / "cache", "400k") as cache:
        try:
            plan = surefit.check(data=str(data), model="tiny:bert", cache=str(cache / "c"))
        except RunFailedError as error:
            assert rows > 4_000
            assert "is full" in error.message
            assert "--set cache=" in error.fix
        else:
            assert rows == 4_000
            assert [found.code for found in plan.findings if found.severity == "error"] == ["SF862"]
            assert "free in the cache folder" in plan.findings[-1].message
