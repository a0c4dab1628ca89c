"""One array per file is one row for a model that was trained on such rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import surefit
from builders import MeanPool


def rows_of(folder: Path, arrays: list[Any]) -> str:
    """A CSV file beside arrays of one row each."""
    lines = ["file,label"]
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", array)
        lines.append(f"{number}.npy,{number % 2}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "rows.csv")


def train(folder: Path, arrays: list[Any], model: nn.Module) -> Any:
    data, output = rows_of(folder, arrays), str(folder / "run")
    return surefit.train(data=data, model=model, max_steps=1, output=output)


def predicted(run: Any, data: Any) -> list[Any]:
    return [row["probability"] for row in surefit.predict(run, data)]


def test_one_vector_is_one_row(tmp_path: Path) -> None:
    arrays = list(np.random.default_rng(0).normal(size=(30, 6)).astype("float32"))
    run = train(tmp_path, arrays, nn.Linear(6, 2))
    every = predicted(run, {"file": np.stack(arrays)})
    assert predicted(run, str(tmp_path / "3.npy")) == [every[3]]
    np.save(tmp_path / "many.npy", np.stack(arrays[:6]))  # six rows, as before
    assert np.allclose(predicted(run, str(tmp_path / "many.npy")), every[:6])


def test_one_sequence_is_one_row_and_many_are_many(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = [random.normal(size=(5 + n % 3, 4)).astype("float32") for n in range(30)]
    torch.manual_seed(0)
    run = train(tmp_path, arrays, MeanPool())
    every = predicted(run, str(tmp_path / "rows.csv"))
    assert np.allclose(predicted(run, str(tmp_path / "7.npy")), [every[7]])
    np.save(tmp_path / "many.npy", random.normal(size=(3, 5, 4)).astype("float32"))
    assert len(predicted(run, str(tmp_path / "many.npy"))) == 3
    flat = {"file": random.normal(size=(3, 4)).astype("float32")}  # from no file: a step per row
    assert len(predicted(run, flat)) == 3
