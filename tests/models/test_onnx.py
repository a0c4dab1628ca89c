"""`export --to onnx`: the file computes what the module does, for any batch size and length."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import surefit
from builders import WORDS, feature_rows, save_ragged, write_jsonl, write_module
from surefit.cli import run as command

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(4, num_classes)

    def forward(self, inputs_embeds, attention_mask):
        pooled = inputs_embeds.mean(1)
        {line}
        return self.head(pooled)


def make(num_classes):
    return Net(num_classes)
"""
WRONG = {
    "pooled = pooled + 1 if torch.compiler.is_compiling() else pooled": "differs from the module's",
    "pooled = pooled + 1 if pooled.sum().item() > 0 else pooled": "torch cannot write Net as ONNX",
}
"""Lines of a forward that ONNX does not compute as torch does, and what is said of them."""


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_ragged(tmp_path / "data.npz", feature_rows(24))
    name = write_module(tmp_path, "onnxnet")
    surefit.train(data="data.npz", model=name, max_steps=2, output="run")
    return tmp_path


def outputs_of(file: Path, **columns: Any) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(["logits"], columns)[0]


@pytest.mark.slow
def test_file_computes_what_the_module_does(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert command(["export", "run", "out", "--to", "onnx"]) == 0
    said = capsys.readouterr()
    assert said.out == "out\n"
    assert "largest relative difference" in said.err
    module = surefit.load("run")
    for rows, steps in ((1, 1), (2, 5), (7, 31)):  # others than it was tried with
        given = torch.randn(rows, steps, 4)
        mask = torch.ones(rows, steps, dtype=torch.int64)
        with torch.no_grad():
            expected = module(given, mask).numpy()
        file = trained / "out" / "model.onnx"
        made = outputs_of(file, inputs_embeds=given.numpy(), attention_mask=mask.numpy())
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(surefit.UsageError, match="onnxruntime"):
        surefit.load("out")


@pytest.mark.slow
def test_table_without_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    rows = [{"a": n % 7, "b": WORDS[n % 3], "label": "xy"[n % 7 > 3]} for n in range(40)]
    surefit.train(data=rows, model="tiny:mlp", max_steps=2, output="run")
    assert command(["export", "run", "out", "--to", "onnx"]) == 2  # the rows were in memory
    write_jsonl(tmp_path / "rows.jsonl", rows)
    assert command(["export", "run", "out", "--to", "onnx", "--data", "rows.jsonl"]) == 0
    assert (tmp_path / "out" / "encoder.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("line", WRONG)
def test_file_that_would_compute_something_else_is_refused(
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    save_ragged(tmp_path / "data.npz", feature_rows(24))
    name = f"wrongnet{len(line)}"
    (tmp_path / f"{name}.py").write_text(NET.format(line=line))
    surefit.train(data="data.npz", model=f"{name}:make", max_steps=2, output="run")
    capsys.readouterr()
    assert command(["export", "run", "out", "--to", "onnx"]) == 2
    assert WRONG[line] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_missing_extra_is_named(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    assert command(["export", "run", "out", "--to", "onnx"]) == 2
    assert "pip install 'surefit[onnx]'" in capsys.readouterr().err
    assert not (trained / "out").exists()
