"""Files, folders, official splits and cloned hub datasets to Tables, and what the cache keeps."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from builders import write_jsonl
from opening import FLAT, NAMES, RAGGED, entry_files, fault_of, rows_of, written
from surefit.data.official_splits import find_splits, part_of
from surefit.data.open_data import open_table, validation_of
from surefit.errors import FindingError, UsageError


def test_skipping_a_damaged_file_is_advised_where_others_are_left(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.jsonl", '{"a": 1}\n')
    damaged = written(tmp_path / "b.jsonl", '{"a": 1\n')
    assert "on_bad_file" not in fault_of(damaged).fix
    assert fault_of([whole, damaged]).fix.endswith("--set on_bad_file=skip.")
    assert len(list(open_table([whole, damaged], on_bad_file="skip").rows())) == 1
    empty = written(tmp_path / "c.npy", b"")
    assert "on_bad_file" not in fault_of(empty).fix


def test_several_files_are_concatenated_and_rows_keep_their_file(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", [{"x": 1}, {"x": 2}])
    second = written(tmp_path / "b.csv", "x,late\n2.5,y\n")
    table = open_table([first, second])
    assert list(table.rows()) == [
        {"x": 1.0, "late": None},
        {"x": 2.0, "late": None},
        {"x": 2.5, "late": "y"},
    ]
    assert table.where(1) == {"file": str(first), "row": 1}
    assert table.where(2) == {"file": str(second), "row": 0}
    assert table.row(2)["late"] == "y"


def test_folder_is_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in "cab":
        write_jsonl(tmp_path / f"{name}.jsonl", [{"x": name}])
    written(tmp_path / "notes.md", "not data")
    assert [row["x"] for row in rows_of(tmp_path)] == ["a", "b", "c"]


def test_npy_files_of_different_ranks_are_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", FLAT)
    np.save(tmp_path / "lengths.npy", np.array([3, 0, 1, 5]))
    np.save(tmp_path / "y.npy", NAMES)
    rows = rows_of(tmp_path)
    assert [row["y"] for row in rows] == NAMES.tolist()
    np.testing.assert_array_equal(rows[3]["X"], RAGGED[3])


def test_list_of_dicts_with_arrays(tmp_path: Path) -> None:
    rows = [
        {"features": None, "label": 0},
        {"features": RAGGED[0], "label": np.int64(1)},
        {"features": RAGGED[3], "label": 2},
    ]
    opened = rows_of(rows)
    assert [row["label"] for row in opened] == [0, 1, 2]
    assert [row["features"].shape for row in opened] == [(0, 2), (3, 2), (5, 2)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.npz", "a.npy"])
def test_second_opening_converts_nothing_again(tmp_path: Path, cache: Path, name: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / name
    if name == "a.npy":
        np.save(path, np.asfortranarray(np.arange(6.0).reshape(3, 2)))
    elif name == "a.npz":
        np.savez(path, x=np.arange(6))
    else:
        written(path, {"a.jsonl": '{"x": 1}\n', "a.csv": "x\n1\n"}[name])
    first = open_table(path)
    converted = entry_files(cache)
    assert converted
    second = open_table(path)
    assert second.key == first.key
    assert second.arrow.equals(first.arrow)
    assert entry_files(cache) == converted
    assert os.listdir(folder) == [name], "nothing is written beside the user's data"


REAL = {
    "gsm8k/test.jsonl": (300, ("question", "answer")),
    "sms-spam/sms.tsv": (5574, ("label", "text")),
    "wnut17/wnut17train.conll": (3394, ("tokens", "tags")),
    "fashion-mnist": (10_000, ("image", "label")),
    "trec/TREC.train": (5452, ("label", "fine", "text")),
    "japanese-vowels/JapaneseVowels_TRAIN.ts": (270, ("features", "label")),
    "self-instruct/seed_tasks.jsonl": (175, ("instruction", "output")),
    "xquad/xquad.en.json": (1190, ("context", "question", "answer", "answer_start")),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files_have_their_rows_and_columns(shared: Path, name: str) -> None:
    table, (count, columns) = open_table(shared / "data" / name), REAL[name]
    assert table.num_rows == count
    assert {*columns} <= {*table.columns}
    assert all(table.row(count - 1)[column] is not None for column in columns)


SPLIT_NAMES = {
    "train": ("train.csv", "X_TRAIN.ts", "train-00000-of-00002.parquet", "TREC.train", "training"),
    "validation": ("val.jsonl", "dev.messages.jsonl", "valid.txt", "val2017", "emerging.dev.conll"),
    "test": ("test.csv", "t10k-images-idx3-ubyte.gz", "y_test.npy", "GunPointTest.ts", "xtest.npy"),
    None: ("data.csv", "latest.csv", "contest.json", "trainer.txt", "train_test.csv", "valley"),
}


@pytest.mark.parametrize(
    ("part", "name"), [(p, n) for p, names in SPLIT_NAMES.items() for n in names]
)
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
    assert {found.code for found in table.findings} == {""}
    assert any(found.message.endswith(" is not read.") for found in table.findings)
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
    assert beside.parts == {"train": (Path("data.csv"),), "test": (Path("test.csv"),)}


def test_validation_and_test_alone_are_refused(tmp_path: Path) -> None:
    for part in ("valid", "test"):
        (tmp_path / f"{part}.txt").write_text("a\nb\n")
    with pytest.raises(FindingError, match="nothing for training"):
        open_table(tmp_path)
    assert open_table(tmp_path, part="validation").num_rows == 2


def _clone(folder: Path, configs: str, *names: str) -> Path:
    """A clone whose files have one row each: their own name."""
    notes = {"README.md": f"---\nlicense: mit\n{configs}\n---\n# Data\n", ".gitattributes": "*"}
    notes |= {"dataset_infos.json": "{}", "LICENSE": "MIT", "load.py": "print()"}
    rows = {name: f'text,label\n"{name}",1\n' for name in names}
    for name, text in (notes | rows).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _read(data: Path | str) -> tuple[list[str], list[str]]:
    """The files that are trained and validated on."""
    validation = validation_of([data])
    tables = [open_table([data]), *([open_table(validation)] if validation else [])]
    train, *others = [table.arrow["text"].to_pylist() for table in tables]
    return train, others[0] if others else []


SPLITS = """configs:
- config_name: default
  data_files:
  - {split: train, path: "data/train-*"}
  - {split: validation, path: [data/dev.csv]}
  - {split: test, path: data/test-00000.csv}"""
CARDED = (
    "data/train-00000.csv",
    "data/train-00001.csv",
    "data/dev.csv",
    "data/test-00000.csv",
)


def test_splits_of_a_card_are_read(tmp_path: Path) -> None:
    assert _read(_clone(tmp_path, SPLITS, *CARDED)) == (
        list(CARDED[:2]),
        [CARDED[2]],
    )


@pytest.mark.parametrize(
    "files",
    [
        'data_files: "d/*.csv"',
        "data_files: [d/train.csv, d/test.csv]",
        "data_files: {train: d/train.csv, test: d/test.csv}",
        "data_dir: d",
    ],
)
def test_other_ways_to_name_files(tmp_path: Path, files: str) -> None:
    card = f"configs:\n- config_name: only\n  {files}"
    assert _read(_clone(tmp_path, card, "d/train.csv", "d/test.csv"))[0] == ["d/train.csv"]


BOTH = "configs:\n" + "\n".join(
    f"- config_name: {name}\n  data_files: {name}/train.csv" for name in ("en", "de")
)


@pytest.mark.parametrize("card", [BOTH, ""], ids=["card", "folders"])
def test_one_of_several_configs_is_named(tmp_path: Path, card: str) -> None:
    folder = _clone(tmp_path / "clone", card, "en/train.csv", "de/train.csv")
    assert _read(f"{folder}:de")[0] == ["de/train.csv"]
    for asked in (str(folder), f"{folder}:fr"):
        with pytest.raises(UsageError, match=r"(en, de|de, en)\.") as error:
            _read(asked)
        assert f"--data {folder}:" in error.value.fix


def test_default_config(tmp_path: Path) -> None:
    card = BOTH.replace("name: de\n", "name: de\n  default: true\n")
    assert _read(_clone(tmp_path, card, "en/train.csv", "de/train.csv"))[0] == ["de/train.csv"]


def test_folder_data_without_configs(tmp_path: Path) -> None:
    assert _read(_clone(tmp_path, "", *CARDED)) == (
        list(CARDED[:2]),
        [CARDED[2]],
    )


@pytest.mark.parametrize("path", ["../secret.csv", "{}/secret.csv", "link.csv"])
def test_nothing_outside_of_the_folder_is_read(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.csv").write_text("text,label\nsecret,1\n")
    card = f"configs:\n- config_name: a\n  data_files: {path.format(tmp_path)}"
    folder = _clone(tmp_path / "clone", card, "train.csv")
    (folder / "link.csv").symlink_to(tmp_path / "secret.csv")
    with pytest.raises(FindingError, match="outside of the folder"):
        _read(folder)


@pytest.mark.parametrize(
    "card",
    [
        "configs: [",
        "configs:\n- config_name: a\n  data_files: gone-*.csv",
        "a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\n"
        "configs: [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e]",
    ],
    ids=["no YAML", "files that are not there", "aliases"],
)
def test_card_that_is_no_use_is_an_error(tmp_path: Path, card: str) -> None:
    with pytest.raises(FindingError, match=r"README\.md"):
        _read(_clone(tmp_path, card, "train.csv"))


def test_card_without_data_files_or_of_other_form_is_ignored(tmp_path: Path) -> None:
    for number, card in enumerate(("configs: 3", "configs:\n- 4", "configs:\n- config_name: a")):
        assert _read(_clone(tmp_path / str(number), card, "train.csv"))[0] == ["train.csv"]


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.jsonl.gz", "a.txt", "a.npy"])
def test_pointer_of_git_lfs_is_no_data(name: str, tmp_path: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"
    (tmp_path / name).write_text(pointer)
    with pytest.raises(FindingError, match=r"Git LFS pointer(.|\n)*lfs pull"):
        open_table(tmp_path / name)
