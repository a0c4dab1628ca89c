"""Files of a folder that are one table: brought to one shape, or left out, or named."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import surefit
from opening import fault_of
from surefit.data.open_data import open_table
from surefit.errors import FindingError


def steps(count: int, start: int = 0) -> Any:
    """Rows of 5 steps and width 6, all numbers different."""
    return (np.arange(count * 30, dtype=np.float32) + 30 * start).reshape(count, 5, 6)


def rows_of(folder: Path, **options: Any) -> Any:
    return np.stack([row["features"] for row in open_table(folder, **options).rows()])


SAVED: dict[str, Any] = {
    "float64": lambda x: x.astype(np.float64),
    "float16": lambda x: x.astype(np.float16),
    "int32": lambda x: x.astype(np.int32),
    "other byte order": lambda x: x.astype(">f4"),
    "another axis order": lambda x: np.asfortranarray(x),
}


@pytest.mark.parametrize("saved", SAVED.values(), ids=SAVED)
def test_shard_that_lies_otherwise_is_read_as_the_others(tmp_path: Path, saved: Any) -> None:
    np.save(tmp_path / "a.npy", steps(4))
    np.save(tmp_path / "b.npy", saved(steps(2, start=4)))
    np.save(tmp_path / "c.npy", steps(3, start=6))
    np.testing.assert_array_equal(rows_of(tmp_path), steps(9))
    table = open_table(tmp_path)
    assert table.where(5) == {"file": str(tmp_path / "b.npy"), "row": 1}
    agreed = [found for found in table.findings if found.code == "SF420"]
    plain = saved in (SAVED["other byte order"], SAVED["another axis order"])
    assert [Path(str(found.where["file"])).name for found in agreed] == ([] if plain else ["b.npy"])


def test_shards_of_tensors_in_another_dtype(tmp_path: Path) -> None:
    save_file({"x": torch.from_numpy(steps(2))}, tmp_path / "a.safetensors")
    save_file({"x": torch.from_numpy(steps(2, 2)).bfloat16()}, tmp_path / "b.safetensors")
    table = open_table(tmp_path)
    np.testing.assert_array_equal(np.stack([row["x"] for row in table.rows()]), steps(4))
    assert [found.code for found in table.findings] == ["SF209"]
    assert "bfloat16" in table.findings[0].message


def test_shards_of_different_length_are_ragged(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 5, 3), np.float32))
    np.save(tmp_path / "b.npy", np.ones((2, 7, 3), np.float32))
    rows = [row["features"] for row in open_table(tmp_path).rows()]
    assert [row.shape for row in rows] == [(5, 3)] * 4 + [(7, 3)] * 2
    assert (rows[5] == 1).all()


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 3, 5), (2, 15), (2, 1, 5, 3)])
def test_shard_of_other_axes_is_named(shape: tuple[int, ...], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 5, 3)))
    np.save(tmp_path / "b.npy", np.zeros(shape))
    found = fault_of(tmp_path)
    assert found.code == "SF106"
    assert found.where["file"] == str(tmp_path / "b.npy")
    expected = f"float64 array {list(shape[1:])} in b.npy, but float64 array [5, 3] in a.npy"
    assert expected in found.message


class Touch:
    """Unpickling one of these would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def write_bad_files(folder: Path) -> Path:
    """Three good shards among bad ones of every kind; the file that must not appear."""
    folder.mkdir()
    for place in range(3):
        np.save(folder / f"good-{place}.npy", steps(10, 10 * place))
    (folder / "empty.npy").touch()
    whole = (folder / "good-0.npy").read_bytes()
    (folder / "cut.npy").write_bytes(whole[: len(whole) // 2])
    (folder / "text.npy").write_text("not an array")
    np.save(folder / "words.npy", np.array([["a", "b"]]))
    witness = folder.parent / "was-run"
    np.save(folder / "pickled.npy", np.array([Touch(witness)], object), allow_pickle=True)
    return witness


LINES = b'{"text": "a b", "label": "x"}\n{"text": "c d", "label": "y"}\n'
TABLE = b"text,label\na b,x\nc d,y\n"
WHOLE = {
    ".jsonl": LINES,
    ".csv": TABLE,
    ".tsv": TABLE.replace(b",", b"\t"),
    ".json": b'[{"text": "a b", "label": "x"}, {"text": "c d", "label": "y"}]',
    ".conll": b"a\tO\n\nb\tO\n",
    ".txt": b"a b\nc d\n",
    "": b"a b\nc d\n",
}


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ending", WHOLE)
def test_empty_files_among_others_are_skipped_and_named(
    ending: str, packed: bool, place: int, tmp_path: Path
) -> None:
    contents = [WHOLE[ending]] * 2
    contents.insert(place, b"")
    for number, content in enumerate(contents):
        name = f"part-{number}{ending}{'.gz' if packed and ending else ''}"
        (tmp_path / name).write_bytes(gzip.compress(content) if packed and ending else content)
    table = open_table(tmp_path)
    assert table.num_rows == 4
    (note,) = [found for found in table.findings if found.code == "SF439"]
    assert note.message.startswith(
        f"1 of 3 files have no rows and are skipped: part-{place}{ending}"
    )
    assert f"part-{place}" in str(note.where["file"])
    assert not any(f"part-{place}" in source.file for source in table.sources)


def test_empty_files_are_an_error_where_nothing_else_is_or_they_are_needed(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(FindingError, match=r"a.jsonl, .*b.jsonl has no rows") as caught:
        open_table(tmp_path)
    assert caught.value.findings[0].code == "SF101"
    (tmp_path / "train.en").write_text("one\ntwo\n")
    (tmp_path / "train.de").write_text("")
    with pytest.raises(FindingError, match=r"train.en has 2 lines, train.de has 0"):
        open_table([tmp_path / "train.en", tmp_path / "train.de"])
    for name in ("pos", "neg", "none"):
        (tmp_path / f"{name}.txt").write_text("" if name == "none" else f"{name} a\n{name} b\n")
    files = [tmp_path / f"{name}.txt" for name in ("pos", "neg", "none")]
    table = open_table(files, each_a_class=True)
    assert table.arrow["label"].to_pylist() == ["pos", "pos", "neg", "neg"]
    assert "SF439" in [found.code for found in table.findings]


def test_a_header_alone_is_empty_and_one_blank_line_of_text_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(TABLE)
    (tmp_path / "b.csv").write_bytes(b"text,label\n")
    table = open_table(tmp_path)
    assert table.num_rows == 2
    assert "b.csv" in next(f.message for f in table.findings if f.code == "SF439")
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, content in (("a.txt", "one\ntwo\n"), ("b.txt", "\n"), ("c.txt", "three\n")):
        (texts / name).write_text(content)
    assert "SF439" not in [found.code for found in open_table(texts).findings]


def test_bad_files_are_all_named_and_the_rest_is_usable(tmp_path: Path) -> None:
    witness = write_bad_files(tmp_path / "data")
    with pytest.raises(FindingError) as caught:
        open_table(tmp_path / "data")
    named = {Path(str(found.where["file"])).name for found in caught.value.findings}
    assert named == {"empty.npy", "cut.npy", "text.npy", "words.npy", "pickled.npy"}
    assert "(and 4 more)" in caught.value.message
    table = open_table(tmp_path / "data", on_bad_file="skip")
    np.testing.assert_array_equal(np.stack([row["features"] for row in table.rows()]), steps(30))
    left_out = [found for found in table.findings if found.code == "SF430"]
    assert {Path(str(found.where["file"])).name for found in left_out} == named
    assert any("it is truncated after" in found.message for found in left_out)
    assert any("it is empty" in found.message for found in left_out)
    options = {"data": str(tmp_path / "data"), "model": "tiny:bert"}
    assert not surefit.check(**options).ok
    plan = surefit.check(**options, on_bad_file="skip")
    assert plan.ok
    assert plan.ledger.rows == 30
    assert not witness.exists()


@pytest.mark.parametrize(
    ("features", "labels"),
    [("X", "y"), ("X_train", "y_train"), ("features", "labels"), ("s1-x", "s1-y")],
)
def test_labels_beside_their_features(tmp_path: Path, features: str, labels: str) -> None:
    np.save(tmp_path / f"{features}.npy", steps(6))
    np.save(tmp_path / f"{labels}.npy", np.arange(6) % 2)
    table = open_table(tmp_path / f"{features}.npy")
    assert [row["label"] for row in table.rows()] == [0, 1] * 3
    assert [found.code for found in table.findings] == [""]
    np.save(tmp_path / f"{labels}.npy", np.arange(5))
    found = fault_of(tmp_path / f"{features}.npy")
    assert found.code == "SF106"
    assert f"{features}.npy has 6 rows, but {labels}.npy has 5" in found.message


def test_folder_of_pairs(tmp_path: Path) -> None:
    for place in range(3):
        np.save(tmp_path / f"x_{place}.npy", steps(4, 4 * place))
        np.save(tmp_path / f"y_{place}.npy", np.full(4, place))
    rows = list(open_table(tmp_path).rows())
    assert [row["label"] for row in rows] == [0] * 4 + [1] * 4 + [2] * 4
    np.testing.assert_array_equal(np.stack([row["features"] for row in rows]), steps(12))


def test_masks_in_a_file_of_their_own(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", steps(6))
    np.save(tmp_path / "mask.npy", np.tile([1, 1, 1, 0, 0], (6, 1)))
    rows = list(open_table(tmp_path).rows())
    assert set(rows[0]) == {"x", "mask"}
    assert rows[0]["mask"].tolist() == [1, 1, 1, 0, 0]
