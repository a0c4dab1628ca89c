"""Runs and exported folders, opened as models: to predict with, and to train on from."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

import surefit
from builders import (
    assert_same_predictions,
    assert_same_weights,
    echo_rows,
    feature_rows,
    save_ragged,
    sentiment_rows,
    write_jsonl,
    write_module,
)
from surefit.cli import run as command
from surefit.errors import UsageError

ROWS = sentiment_rows(24)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, a run, and its export."""
    folder = tmp_path_factory.mktemp("exported")
    write_jsonl(folder / "rows.jsonl", ROWS)
    surefit.train(
        data=str(folder / "rows.jsonl"),
        model="tiny:bert",
        max_steps=3,
        lr=1e-2,
        output=str(folder / "run"),
    )
    assert command(["export", str(folder / "run"), str(folder / "out")]) == 0
    return folder


def test_load_predict_and_evaluate(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out, rows = (str(place / name) for name in ("run", "out", "rows.jsonl"))
    assert_same_weights(surefit.load(out), surefit.load(run))
    assert surefit.predict(out, ROWS) == surefit.predict(run, ROWS)
    assert surefit.evaluate(out, ROWS) == surefit.evaluate(run, ROWS)
    printed = []
    for folder in (run, out):
        assert command(["predict", folder, "--text", "a good cat"]) == 0
        assert command(["evaluate", folder, "--data", rows]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_an_export_has_no_validation_rows(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["evaluate", str(place / "out")]) == 2
    assert "--data" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["run", "run/model", "out"])
def test_runs_and_exports_are_models_to_train(place: Path, folder: str) -> None:
    plan = surefit.check(data=sentiment_rows(40, seed=1), model=str(place / folder))
    assert plan.ok
    assert_same_weights(plan.job.pipeline.module, surefit.load(place / "run"))
    assert plan.model.lr == 2e-5  # of a trained model
    assert surefit.predict(place / folder, ROWS) == surefit.predict(place / "run", ROWS)


def test_an_export_holds_neither_code_nor_paths(place: Path) -> None:
    held = [path for path in (place / "out").rglob("*") if path.is_file()]
    assert not [path for path in held if path.suffix in (".py", ".pkl", ".bin", ".pt")]
    small = [path for path in held if path.suffix == ".json"]
    assert not [path.name for path in small if str(place) in path.read_text(encoding="utf-8")]


def test_the_files_of_an_export_are_checked(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert command(["export", str(place / "run"), str(out)]) == 0
    assert command(["verify", str(out)]) == 0
    weights = out / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert command(["verify", str(out)]) == 1
    capsys.readouterr()
    (out / "surefit.json").write_text('{"format_version": 1, "plan": []}')
    assert command(["predict", str(out), "--text", "good"]) == 2
    assert "surefit.json" in capsys.readouterr().err


def test_commands_for_runs_refuse_an_export(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["train", "--resume", str(place / "out")]) == 2
    assert command(["report", str(place / "out")]) == 2
    assert "not the folder of a run" in capsys.readouterr().err


@pytest.mark.slow
def test_adapters_are_opened_and_merged(tmp_path: Path) -> None:
    rows = echo_rows(24)
    options = {"lora_r": 2, "max_steps": 3, "lr": 1e-2, "generate": {"max_new_tokens": 4}}
    run = surefit.train(data=rows, model="tiny:llama", output=str(tmp_path / "run"), **options)
    assert command(["export", str(run.path), str(tmp_path / "out")]) == 0
    assert command(["export", str(tmp_path / "out"), str(tmp_path / "merged"), "--merge"]) == 0
    expected = surefit.predict(tmp_path / "run", rows)
    assert surefit.predict(tmp_path / "out", rows) == expected
    assert surefit.predict(tmp_path / "merged", rows) == expected
    assert surefit.check(data=rows, model=str(tmp_path / "merged")).ok


def test_own_module_runs_only_if_this_command_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = save_ragged(tmp_path / "data.npz", feature_rows(24))
    name = write_module(tmp_path, "exportednet")
    surefit.train(data=str(data), model=name, max_steps=2, output="run")
    assert command(["export", "run", "out"]) == 0
    with pytest.raises(surefit.UsageError, match="exportednet:make, which this command does not"):
        surefit.load("out")
    assert_same_weights(surefit.load("out", trust_code=name), surefit.load("run"))
    rows = feature_rows(5)
    made = surefit.predict("out", rows, trust_code=name)
    assert_same_predictions(made, surefit.predict("run", rows))


def test_a_strangers_export_names_no_place_to_write_to(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command(["export", str(place / "run"), str(out)]) == 0
    about = json.loads((out / "surefit.json").read_text())
    about["config"] |= {"cache": str(tmp_path / "elsewhere"), "output": str(tmp_path / "there")}
    about["config"]["task"] = "os:system"
    (out / "surefit.json").write_text(json.dumps(about))
    with pytest.raises(surefit.UsageError, match="os:system"):
        surefit.predict(out, ROWS)
    assert not (tmp_path / "elsewhere").exists()


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, num_classes)

    def forward(self, x, epoch, step):
        return self.head(self.body(x).tanh()) * (1 + epoch) + step / 100

def make(num_classes):
    torch.manual_seed(0)
    return Net(num_classes)
"""


def arrays(num_classes: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    return {"x": x, "label": np.arange(40) % num_classes}


@pytest.mark.slow
def test_export_of_a_module_that_takes_epoch_and_step_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clocked_net.py").write_text(NET)
    rows, code = arrays(2), "clocked_net:make"
    run = surefit.train(data=rows, model=code, epochs=2, output="run")
    assert command(["export", "run", "out"]) == 0
    made = surefit.predict("out", rows, trust_code=code)
    assert_same_predictions(made, surefit.predict("run", rows))
    with pytest.raises(UsageError, match="names the code clocked_net:make"):
        surefit.check(data=rows, model="out")
    for folder, trusted in (("run", ()), ("run/model", ()), ("out", code)):
        plan = surefit.check(data=rows, model=folder, trust_code=trusted)
        assert plan.ok
        assert_same_weights(plan.job.pipeline.module, run.model)
    plan = surefit.check(data=arrays(3), model="run")
    assert "2 weights start untrained: head.bias, head.weight" in plan.notes
    again = surefit.train(data=rows, model="out", trust_code=code, max_steps=1, output="again")
    assert_same_weights(surefit.load("again"), again.model)  # its code was remembered


def test_a_folder_that_lacks_weights_is_refused(place: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    damaged = copytree(place / "out", tmp_path / "damaged")
    weights = load_file(damaged / "model.safetensors")
    del weights["classifier.bias"]
    save_file(weights, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lacks .*classifier\.bias"):
        surefit.load(str(damaged))
