"""Files that are one row each: one image, a flat folder, a pattern; labels in the names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pictures import SHAPES, draw, write_png

import surefit
from surefit.cli import run as command
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


@pytest.mark.slow
def test_predictions_for_one_image_a_flat_folder_and_a_pattern(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = surefit.train(
        data=str(place / "classes"), model="tiny:vit", max_steps=2, output=str(tmp_path / "run")
    )
    files = sorted((place / "flat").iterdir())
    expected = surefit.predict(run, [{"image": str(file)} for file in files])
    assert surefit.predict(run, place / "flat") == expected
    assert surefit.predict(run, str(place / "flat" / "*.png")) == expected
    one = surefit.predict(run, files[4])
    assert [row["prediction"] for row in one] == [expected[4]["prediction"]]
    assert command(["predict", str(run.path), "--data", str(place / "*" / "none-*.png")]) == 2
    assert "No file matches" in capsys.readouterr().err


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
