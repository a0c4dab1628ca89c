"""IDX files: images with their labels beside them; wrong bytes named."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opening import entry_files, fault_of, notes_of, rows_of, written
from surefit.data.formats.idx import TYPES
from surefit.data.open_data import open_table

IMAGES = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
LABELS = np.array([3, 1, 4, 1, 5], np.uint8)


def packed(array: Any, kind: int = 0x08) -> bytes:
    head = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(TYPES[kind]).tobytes()


NAMES = [
    ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
    ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"),
    ("train-images.idx3-ubyte", "train-labels.idx1-ubyte"),
    ("my-images.idx", "my-labels.idx"),
]


@pytest.mark.parametrize("names", NAMES)
def test_images_with_the_labels_beside_them(tmp_path: Path, names: tuple[str, str]) -> None:
    images = written(tmp_path / names[0], packed(IMAGES))
    labels = written(tmp_path / names[1], packed(LABELS))
    for data in (images, [images, labels], tmp_path):
        rows = rows_of(data)
        assert [row["label"] for row in rows] == LABELS.tolist()
        np.testing.assert_array_equal(np.stack([row["image"] for row in rows]), IMAGES)
        assert rows[0]["image"].dtype == np.uint8
    ((code, message),) = notes_of(images)
    assert (code, names[1] in message) == ("", True)
    assert rows_of(labels)[0] == {"label": 3}


def test_labels_are_part_of_the_content(tmp_path: Path) -> None:
    images = written(tmp_path / NAMES[0][0], packed(IMAGES))
    assert open_table(images).columns == ("image",)
    alone = open_table(images).key
    written(tmp_path / NAMES[0][1], packed(LABELS))
    assert open_table(images).columns == ("image", "label")
    assert open_table(images).key != alone


@pytest.mark.parametrize("kind", TYPES)
def test_numbers_of_every_kind(tmp_path: Path, kind: int) -> None:
    values = np.arange(6).reshape(3, 2)
    rows = rows_of(written(tmp_path / "a-idx2", packed(values, kind)))
    np.testing.assert_array_equal([row["features"] for row in rows], values)
    assert rows[0]["features"].dtype == np.dtype(TYPES[kind]).newbyteorder("=")


WHOLE = packed(IMAGES)
FAULTS = {
    "cut short": (WHOLE[:-7], "has 53 bytes, but its header announces 60"),
    "cut within the header": (WHOLE[:10], "has 10 bytes, but its header announces 16"),
    "bytes too many": (WHOLE + b"12", "has 62 bytes, but its header announces 60"),
    "another magic number": (b"\x89PNG" + WHOLE, "begins with 89 50 4e 47"),
    "an unknown type": (b"\0\0\x07\x03" + WHOLE[4:], "begins with 00 00 07 03"),
    "no axes": (b"\0\0\x08\0", "begins with 00 00 08 00"),
    "a size beyond measure": (b"\0\0\x08\x03" + b"\xff" * 12, "but its header announces"),
    "nothing": (b"", "begins with nothing"),
}


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("name", FAULTS)
def test_wrong_bytes_are_named(tmp_path: Path, name: str, ending: str, cache: Path) -> None:
    content, message = FAULTS[name]
    path = written(tmp_path / f"a-images-idx3-ubyte{ending}", content)
    found = fault_of(path)
    assert (found.code, found.where["file"]) == ("SF102", str(path))
    assert message in found.message
    assert not entry_files(cache)


def test_damaged_gzip_and_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "a-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(WHOLE)[:-9])
    assert "damaged gzip" in fault_of(path).message
    assert fault_of(written(path, packed(IMAGES[:0]))).code == "SF101"


def test_other_number_of_labels(tmp_path: Path) -> None:
    images = written(tmp_path / NAMES[0][0], packed(IMAGES))
    labels = written(tmp_path / NAMES[0][1], packed(LABELS[:3]))
    found = fault_of(images)
    assert (found.code, found.where) == ("SF106", {"file": str(labels)})
    assert "has 5 rows" in found.message
    assert "has 3 labels" in found.message
