"""Files that are one row each, found by folder, by pattern or by a column; labels in names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pictures import SHAPES, draw, write_png
from PIL import Image

import surefit
from builders import sentiment_rows, write_jsonl
from opening import fault_of
from surefit.config import Reading, make_config
from surefit.data.open_data import open_table


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in class folders, and the same in one folder with the class in their names."""
    folder = tmp_path_factory.mktemp("pictures")
    for n in range(18):
        shape = SHAPES[n % 3]
        write_png(folder / "classes" / shape / f"{n:02}.png", draw(shape, n))
        write_png(folder / "flat" / f"{n:02}_{shape}.png", draw(shape, n))
    return folder


def test_images_are_rows(place: Path) -> None:
    files = sorted((place / "flat").iterdir())
    for data, expected in (
        (place / "flat", files),
        (str(place / "flat" / "*.png"), files),
        (files[4], files[4:5]),
    ):
        table = open_table(data, part="test")
        assert table.columns == ("image",)
        assert [row["image"] for row in table.rows()] == [str(file) for file in expected]


def test_labels_in_the_names_of_images(place: Path) -> None:
    table = open_table(str(place / "flat"), Reading(label_from=r"_(\w+)\."))
    assert table.columns == ("image", "label")
    assert table.arrow["label"].to_pylist() == [SHAPES[n % 3] for n in range(18)]
    named = make_config({"label_from": r"_(\w+)\."}).read
    assert named.label_from == r"_(\w+)\."


def test_labels_in_the_names_of_ragged_arrays(tmp_path: Path) -> None:
    rows = [np.full((2 + n % 3, 4), n, np.float32) for n in range(8)]
    for n, row in enumerate(rows):
        np.save(tmp_path / f"{n % 2}_{n}.npy", row)
    table = open_table(str(tmp_path), Reading(label_from=r"^(\d)_.*"))
    assert table.arrow["label"].to_pylist() == ["0"] * 4 + ["1"] * 4
    for row, n in zip(table.rows(), (0, 2, 4, 6, 1, 3, 5, 7), strict=True):
        assert np.array_equal(row["features"], rows[n])
    plan = surefit.check(
        data=str(tmp_path), model="tiny:bert", label_from=r"^(\d)_.*", task="feature-classification"
    )
    assert plan.ok, plan.findings


def test_a_name_without_a_label(place: Path, tmp_path: Path) -> None:
    write_png(tmp_path / "odd.png", draw(SHAPES[0], 0))
    reading = Reading(label_from=r"_(\w+)\.")
    with pytest.raises(surefit.UsageError, match=r"does not match the file name 'odd.png'"):
        open_table(str(tmp_path), reading)
    assert open_table(str(tmp_path), reading, part="test").columns == ("image",)


def test_label_from_is_for_files_that_are_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    reading = Reading(label_from="(.*)_")
    with pytest.raises(surefit.UsageError, match="label_from takes labels from the names"):
        open_table(str(tmp_path / "rows.csv"), reading)
    assert open_table(str(tmp_path / "rows.csv"), reading, part="test").num_rows == 1


@pytest.mark.parametrize("pattern", ["(", "no group"])
def test_a_pattern_that_gives_no_label_is_refused(pattern: str) -> None:
    with pytest.raises(surefit.UsageError, match="label_from"):
        make_config({"label_from": pattern})


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
    assert plan.task.name == "feature-classification"
    assert plan.roles == {"features": "path", "label": "label"}
    assert any("read in place of the names" in note for note in plan.notes)


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


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4)).save(path)
    return path


def test_images_and_the_names_of_their_folders(tmp_path: Path) -> None:
    names = ["cat/b.png", "cat/a.JPG", "dog/x.bmp", "dog/deep/y.webp"]
    paths = [picture(tmp_path / name) for name in names]
    (tmp_path / "dog" / "notes.md").write_text("not an image")
    (tmp_path / ".hidden").mkdir()
    rows = list(open_table(tmp_path).rows())
    order = [1, 0, 3, 2]
    assert rows == [{"image": str(paths[at]), "label": names[at].split("/")[0]} for at in order]


def test_class_without_images_is_named(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png")
    (tmp_path / "dog").mkdir()
    found = fault_of(tmp_path)
    assert (found.code, found.where) == ("SF101", {"file": str(tmp_path / "dog")})
