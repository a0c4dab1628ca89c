"""Arrays and texts that a column names are read in place of their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import surefit
from builders import sentiment_rows, write_jsonl
from surefit.data.open_data import open_table
from surefit.errors import FindingError


def write_arrays(folder: Path, count: int = 24) -> list[np.ndarray]:
    """A manifest beside a folder of ragged arrays, which it names."""
    rows = [np.full((2 + n % 4, 3), n % 2, np.float32) for n in range(count)]
    (folder / "steps").mkdir()
    for n, row in enumerate(rows):
        np.save(folder / "steps" / f"{n}.npy", row + np.random.default_rng(n).normal(0, 0.1))
    lines = ["path,label", *(f"steps/{n}.npy,{'ab'[n % 2]}" for n in range(count))]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return [np.load(folder / "steps" / f"{n}.npy") for n in range(count)]


def test_ragged_arrays_beside_the_manifest(tmp_path: Path) -> None:
    rows = write_arrays(tmp_path)
    table = open_table(tmp_path / "rows.csv")
    for row, expected in zip(table.rows(), rows, strict=True):
        assert np.array_equal(row["path"], expected)
    plan = surefit.check(data=str(tmp_path / "rows.csv"), model="tiny:bert")
    assert plan.ok, plan.findings
    assert plan.task is not None
    assert plan.task.name == "feature-classification"
    assert plan.roles == {"features": "path", "label": "label"}
    assert "SF196" in {found.code for found in plan.findings}


def test_the_key_follows_the_content_of_the_files(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    key = open_table(tmp_path / "rows.csv").key
    np.save(tmp_path / "steps" / "5.npy", np.ones((3, 3), np.float32))
    assert open_table(tmp_path / "rows.csv").key != key


def test_texts_named_twice_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three")
    rows = [{"file": name, "label": n % 2} for n, name in enumerate(["a.txt", "b.txt", "a.txt"])]
    write_jsonl(tmp_path / "rows.jsonl", [*rows, {"file": None, "label": 0}])
    table = open_table(tmp_path / "rows.jsonl")
    assert table.arrow["file"].to_pylist() == ["one\ntwo", "three", "one\ntwo", None]


def test_a_run_on_named_texts_predicts_for_them(tmp_path: Path) -> None:
    rows = sentiment_rows(24)
    for n, row in enumerate(rows):
        (tmp_path / f"{n}.txt").write_text(row["text"])
    named = [{"path": f"{n}.txt", "label": row["label"]} for n, row in enumerate(rows)]
    data = write_jsonl(tmp_path / "rows.jsonl", named)
    run = surefit.train(
        data=str(data), model="tiny:bert", max_steps=2, output=str(tmp_path / "run")
    )
    assert run.plan["task"] == "text-classification"
    asked = write_jsonl(tmp_path / "new.jsonl", [{"path": row["path"]} for row in named])
    by_file = [row["prediction"] for row in surefit.predict(run, str(asked))]
    by_text = surefit.predict(run, [{"path": row["text"]} for row in rows])
    assert by_file == [row["prediction"] for row in by_text]


def test_paths_beside_their_content_stay_paths(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    write_jsonl(tmp_path / "rows.jsonl", [{"text": "one", "path": "a.txt"}] * 3)
    assert open_table(tmp_path / "rows.jsonl").arrow["path"].to_pylist() == ["a.txt"] * 3


def test_a_missing_file_is_named_with_its_row(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    (tmp_path / "steps" / "7.npy").unlink()
    with pytest.raises(FindingError) as raised:
        open_table(tmp_path / "rows.csv")
    fault = raised.value.findings[0]
    assert (fault.code, fault.where["row"], fault.where["column"]) == ("SF197", 7, "path")
