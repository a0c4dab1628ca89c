"""Folders of class folders, and names that may be meant for the hub."""

from __future__ import annotations

import time
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from builders import fault_of
from surefit.data.hub import may_be_hub_id
from surefit.data.open_data import open_table
from surefit.errors import UsageError


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


def test_key_changes_when_an_image_does(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png")
    before = open_table(tmp_path).key
    assert open_table(tmp_path).key == before
    picture(tmp_path / "b" / "1.png")
    assert open_table(tmp_path).key != before


def test_train_of_several_splits(tmp_path: Path) -> None:
    for name in ("train/cat/1.png", "train/dog/1.png", "test/cat/2.png"):
        picture(tmp_path / name)
    table = open_table(tmp_path)
    assert [row["label"] for row in table.rows()] == ["cat", "dog"]
    assert [found.code for found in table.findings] == ["SF121"]


def test_class_without_images_is_named(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png")
    (tmp_path / "dog").mkdir()
    found = fault_of(tmp_path)
    assert (found.code, found.where) == ("SF101", {"file": str(tmp_path / "dog")})


def test_folder_without_anything(tmp_path: Path) -> None:
    assert "no images and no audio" in fault_of(tmp_path).message


def test_what_may_be_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("imdb", "stanfordnlp/imdb", "owner/name-1.0_x"):
        assert may_be_hub_id(Path(name)), name
    for name in ("a.jsonl", "/abs/name", "../x", "a/b/c", "data/train", "owner/x.csv", "a b"):
        assert not may_be_hub_id(Path(name)), name


def test_hub_data_set_is_opened_as_the_files_it_becomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    pq.write_table(pa.table({"text": ["a", "b"], "label": [0, 1]}), tmp_path / "d.parquet")
    real, asked = datasets.load_dataset, []

    def load_dataset(name: str, split: str) -> datasets.Dataset:
        asked.append((name, split))
        file, cache = str(tmp_path / "d.parquet"), str(tmp_path / "cache")
        return real("parquet", data_files=file, split=split, cache_dir=cache)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = list(open_table("owner/name").rows())
    assert asked == [("owner/name", "train")]
    assert rows == [{"text": "a", "label": 0}, {"text": "b", "label": 1}]


def test_name_that_nobody_knows_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(time, "sleep", pytest.fail)  # which is what trying again begins with
    with pytest.raises(UsageError, match="There is no file or folder owner/nothing, and the hub"):
        open_table("owner/nothing")
