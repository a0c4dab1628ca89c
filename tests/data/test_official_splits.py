"""Official splits are recognised by name, for every format, in one place."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from builders import write_jsonl
from surefit.data.official_splits import find_splits, part_of
from surefit.data.open_data import open_table, validation_of
from surefit.errors import FindingError

NAMES = {
    "train": ("train.csv", "X_TRAIN.ts", "train-00000-of-00002.parquet", "TREC.train", "training"),
    "validation": ("val.jsonl", "dev.messages.jsonl", "valid.txt", "val2017", "emerging.dev.conll"),
    "test": ("test.csv", "t10k-images-idx3-ubyte.gz", "y_test.npy", "GunPointTest.ts", "xtest.npy"),
    None: ("data.csv", "latest.csv", "contest.json", "trainer.txt", "train_test.csv", "valley"),
}


@pytest.mark.parametrize(("part", "name"), [(p, n) for p, names in NAMES.items() for n in names])
def test_part_of_a_name(part: str | None, name: str) -> None:
    assert part_of(name) == part


def idx(values: Any) -> bytes:
    head = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    return gzip.compress(head + values.astype(np.uint8).tobytes())


def rows(kind: str, count: int) -> list[dict[str, Any]]:
    return [{"text": f"{kind} {n}", "label": n % 2} for n in range(count)]


def test_train_beside_validation_and_test(tmp_path: Path) -> None:
    for part, count in (("train", 5), ("dev", 3), ("test", 2)):
        write_jsonl(tmp_path / f"{part}.jsonl", rows(part, count))
    write_jsonl(tmp_path / "sample_submission.jsonl", rows("other", 1))
    table = open_table(tmp_path)
    assert {row["text"].split()[0] for row in table.rows()} == {"train"}
    (found,) = table.findings
    assert found.code == "SF121"
    assert "validation: dev.jsonl; not used: test.jsonl, sample_submission.jsonl" in found.message
    assert validation_of([tmp_path]) == [tmp_path / "dev.jsonl"]
    assert open_table(tmp_path, part="validation").num_rows == 3
    assert open_table(tmp_path, part="test").num_rows == 2


def test_mnist_trains_on_its_training_files_only(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("t10k", 4)):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(np.ones((count, 8, 8))))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(np.ones(count)))
    assert open_table(tmp_path).num_rows == 6
    for file in tmp_path.glob("train-*"):
        file.unlink()
    assert open_table(tmp_path).num_rows == 4  # alone, it is simply the data


def test_arrays_have_one_name_in_all_splits(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("val", 3), ("test", 2)):
        np.save(tmp_path / f"X_{part}.npy", np.zeros((count, 4, 3)))
        np.save(tmp_path / f"y_{part}.npy", np.zeros(count))
    table = open_table(tmp_path)
    validation = open_table(validation_of([tmp_path]))
    assert (table.columns, table.num_rows) == (("X", "y"), 6)
    assert (validation.columns, validation.num_rows) == (("X", "y"), 3)


def test_folders_of_classes_with_other_files_beside_them(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        for n, label in enumerate(("pos", "neg", "pos")):
            path = tmp_path / part / label / f"{n}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{part} {n}\nsecond line")
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    (tmp_path / "train" / "unsup").mkdir()
    (tmp_path / "train" / "unsup" / "9.txt").write_text("no class")
    table = open_table(tmp_path)
    assert sorted((row["text"], row["label"]) for row in table.rows()) == [
        ("train 0\nsecond line", "pos"),
        ("train 1\nsecond line", "neg"),
        ("train 2\nsecond line", "pos"),
    ]
    assert {found.code for found in table.findings} == {"SF121", "SF174"}
    assert open_table(validation_of([tmp_path])).num_rows == 3


def test_dataset_dict_brings_its_validation_rows() -> None:
    parts = {name: datasets.Dataset.from_list(rows(name, 4)) for name in ("train", "validation")}
    both = datasets.DatasetDict(parts)
    assert validation_of(both) is both["validation"]
    assert validation_of(datasets.DatasetDict({"train": parts["train"]})) is None


def test_what_is_no_official_split() -> None:
    for names in (("a.csv", "b.csv"), ("blood_test.csv", "urine.csv"), ("test1.csv", "test2.csv")):
        assert find_splits(Path(name) for name in names) is None
    beside = find_splits(Path(name) for name in ("data.csv", "test.csv"))
    assert beside is not None
    assert beside.parts == {"train": (Path("data.csv"),), "test": (Path("test.csv"),)}


def test_validation_and_test_alone_are_refused(tmp_path: Path) -> None:
    for part in ("valid", "test"):
        (tmp_path / f"{part}.txt").write_text("a\nb\n")
    with pytest.raises(FindingError, match="nothing for training"):
        open_table(tmp_path)
    assert open_table(tmp_path, part="validation").num_rows == 2
