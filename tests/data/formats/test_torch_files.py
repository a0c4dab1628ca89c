"""`.pt` and safetensors files: tensors as columns; pickled objects are named and never run."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from opening import fault_of
from surefit.data.open_data import open_table

X = torch.arange(24.0).reshape(4, 3, 2)
Y = torch.tensor([3, 1, 2, 0])
TENSORS = {"x": torch.zeros(60, 3)}

HELD: dict[str, tuple[Any, dict[str, torch.Tensor]]] = {
    "a tensor": (X, {"features": X}),
    "a dict": ({"x": X, "y": Y}, {"x": X, "y": Y}),
    "an ordered dict": (OrderedDict(x=X), {"x": X}),
    "a pair": ((X, Y), {"features": X, "label": Y}),
    "a list of rows": (list(X), {"features": X}),
    "a view": (X.transpose(1, 2), {"features": X.transpose(1, 2)}),
    "a parameter": (torch.nn.Parameter(X), {"features": X}),
    "half precision": (X.bfloat16(), {"features": X}),
}


@pytest.mark.parametrize("name", HELD)
def test_tensors_are_columns(tmp_path: Path, name: str) -> None:
    held, columns = HELD[name]
    torch.save(held, tmp_path / "a.pt")
    table = open_table(tmp_path / "a.pt")
    assert set(table.columns) == set(columns)
    for column, expected in columns.items():
        found = np.array([row[column] for row in table.rows()])
        np.testing.assert_array_equal(found, expected.detach().numpy())


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


BOMBS: dict[str, Callable[[Any, Path], None]] = {
    "saved by torch": lambda bomb, path: torch.save({"x": bomb}, path),
    "legacy": lambda bomb, path: torch.save(
        {"x": bomb}, path, _use_new_zipfile_serialization=False
    ),
    "a plain pickle": lambda bomb, path: path.write_bytes(pickle.dumps(bomb)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_pickled_objects_are_refused_and_not_run(tmp_path: Path, name: str) -> None:
    trace, path = tmp_path / "it-ran", tmp_path / "a.pt"
    BOMBS[name](Bomb(trace), path)
    found = fault_of(path)
    assert (found.code, found.where) == ("SF104", {"file": str(path)})
    assert not trace.exists()
    torch.load(path, weights_only=False) if "plain" not in name else pickle.loads(path.read_bytes())
    assert trace.exists()  # the bomb would have gone off


def test_rows_in_a_list(tmp_path: Path) -> None:
    torch.save([torch.ones(4), torch.zeros(4)], tmp_path / "a.pt")
    rows = list(open_table(tmp_path / "a.pt").rows())
    assert [row["features"].tolist() for row in rows] == [[1.0] * 4, [0.0] * 4]
    torch.save([torch.ones(steps, 2) for steps in (3, 1, 5)], tmp_path / "a.pt")
    shapes = [row["features"].shape for row in open_table(tmp_path / "a.pt").rows()]
    assert shapes == [(3, 2), (1, 2), (5, 2)]
    torch.save([torch.ones(2, 3), torch.ones(5, 4)], tmp_path / "b.pt")
    torch.save([torch.ones(2), (torch.ones(2), 1)], tmp_path / "c.pt")
    for name, code in (("b.pt", "SF208"), ("c.pt", "SF213")):
        found = fault_of(tmp_path / name)
        assert (found.code, found.where) == (code, {"file": str(tmp_path / name), "row": 1})
    torch.save([], tmp_path / "d.pt")
    assert fault_of(tmp_path / "d.pt").code == "SF101"


@pytest.mark.parametrize(
    ("held", "name"), [({"x": X, "note": "text"}, "note"), ({"x": {"y": X}}, "x"), (3, "int")]
)
def test_what_is_not_a_tensor_is_named(tmp_path: Path, held: Any, name: str) -> None:
    torch.save(held, tmp_path / "a.pt")
    found = fault_of(tmp_path / "a.pt")
    assert (found.code, found.where["column"]) == ("SF213", name)


def test_safetensors_are_read_where_they_lie(tmp_path: Path, cache: Path) -> None:
    features = torch.randn(6, 4, 3)
    save_file({"features": features, "label": torch.arange(6)}, tmp_path / "a.safetensors")
    rows = list(open_table(tmp_path / "a.safetensors").rows())
    np.testing.assert_array_equal(rows[5]["features"], features[5])
    assert [row["label"] for row in rows] == list(range(6))
    assert not any(cache.rglob("*.npy")), "the tensors are read where they lie"


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
