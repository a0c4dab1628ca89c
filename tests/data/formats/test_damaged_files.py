"""Damaged binary files are named, with the row where it is known; nothing of them is kept."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from opening import entry_files, fault_of

TABLE = pa.table({"text": [f"row number {i}" for i in range(2500)], "x": list(range(2500))})
VALUES = np.random.default_rng(0).integers(0, 9, 5000)


def save_arrow(path: Path, new: Callable[..., Any] = pa.ipc.new_file) -> None:
    with new(path, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=1000)


FORMATS: dict[str, Callable[[Path], Any]] = {
    "a.arrow": save_arrow,
    "stream.arrow": lambda path: save_arrow(path, pa.ipc.new_stream),
    "a.parquet": lambda path: pq.write_table(TABLE, path, row_group_size=700),
    "a.npy": lambda path: np.save(path, VALUES),
    "a.npz": lambda path: np.savez_compressed(path, x=VALUES),
    "a.pt": lambda path: torch.save(torch.zeros(60, 3), path),
    "a.safetensors": lambda path: save_file({"x": torch.zeros(60, 3)}, path),
}


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "x")


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-300]),
    "empty": lambda path: path.write_bytes(b""),
    "another format": lambda path: path.write_text("this is text, and long enough\n" * 9),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_file_is_named(tmp_path: Path, cache: Path, name: str, damage: str) -> None:
    path = tmp_path / name
    FORMATS[name](path)
    DAMAGE[damage](path)
    found = fault_of(path)
    assert (found.code, found.where["file"]) == ("SF102", str(path))
    assert path.name in found.message
    assert not entry_files(cache)


def overwrite(path: Path, place: int, raw: bytes) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:place] + raw + content[place + len(raw) :])


def spoil_offsets(path: Path) -> None:
    """Let text offsets of the second batch point outside of it."""
    second = pa.array(TABLE["text"].to_pylist()[1000:2000]).buffers()[1].to_pybytes()
    overwrite(path, path.read_bytes().index(second[:64]), b"\xff\xff\xff\x7f" * 16)


def spoil_group(path: Path) -> None:
    column = pq.ParquetFile(path).metadata.row_group(2).column(0)
    overwrite(path, column.dictionary_page_offset or column.data_page_offset, b"\xff" * 40)


INSIDE: dict[str, tuple[str, Callable[[Path], Any], dict[str, int]]] = {
    "offsets that point outside": ("a.arrow", spoil_offsets, {"row": 1000}),
    "a stream cut in a batch": (
        "stream.arrow",
        lambda path: path.write_bytes(path.read_bytes()[:-900]),
        {"row": 2000},
    ),
    "a damaged row group": ("a.parquet", spoil_group, {"row": 1400}),
    "a damaged member": ("a.npz", lambda path: overwrite(path, 200, b"\xff" * 60), {}),
    "a header that lies": (
        "a.safetensors",
        lambda path: path.write_bytes(path.read_bytes().replace(b"[60,3]", b"[90,3]")),
        {},
    ),
    "an archive of something else": ("a.pt", write_zip, {}),
}


@pytest.mark.parametrize("damage", INSIDE)
def test_damage_inside_is_named_with_its_row(tmp_path: Path, damage: str) -> None:
    name, spoil, place = INSIDE[damage]
    FORMATS[name](tmp_path / name)
    spoil(tmp_path / name)
    found = fault_of(tmp_path / name)
    assert (found.code, found.where) == ("SF102", {"file": str(tmp_path / name), **place})
