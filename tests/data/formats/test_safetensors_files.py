"""Safetensors: tensors as columns, where they lie; types that NumPy lacks; faults."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from builders import fault_of
from surefit.data.open_data import open_table


def test_tensors_are_columns(tmp_path: Path, cache: Path) -> None:
    features = torch.randn(6, 4, 3)
    save_file({"features": features, "label": torch.arange(6)}, tmp_path / "a.safetensors")
    rows = list(open_table(tmp_path / "a.safetensors").rows())
    np.testing.assert_array_equal(rows[5]["features"], features[5])
    assert [row["label"] for row in rows] == list(range(6))
    assert not any(cache.rglob("*.npy")), "the tensors are read where they lie"


def test_ragged_rows_as_flat_values_and_lengths(tmp_path: Path) -> None:
    values = torch.arange(18.0).reshape(9, 2)
    lengths = torch.tensor([3, 0, 1, 5])
    save_file({"features": values, "lengths": lengths}, tmp_path / "a.safetensors")
    shapes = [row["features"].shape for row in open_table(tmp_path / "a.safetensors").rows()]
    assert shapes == [(3, 2), (0, 2), (1, 2), (5, 2)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.bool])
def test_every_dtype_keeps_its_values(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(3000).remainder(2).reshape(1500, 2).to(dtype)
    save_file({"x": values}, tmp_path / "a.safetensors")
    rows = open_table(tmp_path / "a.safetensors").rows()
    np.testing.assert_array_equal([row["x"] for row in rows], values.float())


def test_values_that_lie_askew_are_read_rightly(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}}) + " "
    while len(header) % 4 != 1:
        header += " "
    values = np.arange(6, dtype=np.float32)
    content = struct.pack("<Q", len(header)) + header.encode() + values.tobytes()
    (tmp_path / "a.safetensors").write_bytes(content)
    rows = open_table(tmp_path / "a.safetensors").rows()
    np.testing.assert_array_equal([row["x"] for row in rows], values.reshape(3, 2))


SPOILT: dict[str, Callable[[Path], Any]] = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-8]),
    "empty": lambda path: path.write_bytes(b""),
    "another format": lambda path: path.write_text("this is text, and long enough\n" * 9),
    "a header that lies": lambda path: path.write_bytes(
        path.read_bytes().replace(b'"shape":[6,3]', b'"shape":[9,3]')
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_damaged_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.zeros(6, 3)}, path)
    SPOILT[name](path)
    found = fault_of(path)
    assert (found.code, found.where) == ("SF102", {"file": str(path)})


FAULTS: dict[str, tuple[dict[str, torch.Tensor], str, str]] = {
    "no tensors": ({}, "SF101", "contains no tensors"),
    "a single value": ({"x": torch.tensor(3)}, "SF213", "'x' is a single value"),
    "complex values": ({"x": torch.zeros(3, dtype=torch.complex64)}, "SF213", "complex64"),
    "rows of two counts": ({"x": torch.zeros(3, 2), "y": torch.zeros(2)}, "SF106", "x has 3"),
    "no rows": ({"x": torch.zeros(0, 2)}, "SF101", "has no rows"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_content(tmp_path: Path, name: str) -> None:
    tensors, code, message = FAULTS[name]
    save_file(tensors, tmp_path / "a.safetensors")
    found = fault_of(tmp_path / "a.safetensors")
    assert found.code == code
    assert message in found.message
    assert found.where["file"] == str(tmp_path / "a.safetensors")
