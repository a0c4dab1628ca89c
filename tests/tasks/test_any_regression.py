"""regression on images and audio: float labels beside them are numbers that are learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from torch import nn

import surefit
from builders import write_jsonl
from surefit.cli import run as command

COUNT = 120


def spots(count: int = COUNT, seed: int = 0) -> tuple[Any, Any]:
    """Images [N, 16, 16] with one bright spot, and its place: across and down, in millimetres."""
    numbers = np.random.default_rng(seed)
    places = numbers.uniform(3, 13, (count, 2))
    down, across = np.mgrid[:16, :16]
    apart = (across - places[:, :1, None]) ** 2 + (down - places[:, 1:, None]) ** 2
    images = 30 + 200 * np.exp(-apart / 8) + numbers.normal(0, 5, (count, 16, 16))
    return images.clip(0, 255).astype(np.uint8), 100 + 10 * places


def cnn(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, outputs),
    )  # fmt: skip


CNN = """
from torch import nn


def make(outputs):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, outputs),
    )
"""


def test_places_of_spots_are_learned_from_files_beside_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spotnet.py").write_text(CNN)
    images, places = spots()
    (tmp_path / "images").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    lines = ["image,label", *(f"images/{n}.png,{place[0]:.3f}" for n, place in enumerate(places))]
    (tmp_path / "spots.csv").write_text("\n".join(lines))
    arguments = ["--data", "spots.csv", "--model", "spotnet:make", "--epochs", "15", "--lr", "0.02"]
    arguments += ["--set", "image.augment.brightness=0.05"]
    assert command(["train", *arguments, "--output", "run"]) == 0
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["task"] == "regression"
    assert plan["columns"] == {"image": "image", "label": "label"}
    run = surefit.load("run") and surefit.evaluate("run", "spots.csv")
    assert run["r2"] > 0.9
    assert {"mae", "rmse", "r2", "loss"} <= {*run}
    assert command(["export", "run", "out"]) == 0
    capsys.readouterr()
    for source in (["run"], ["out", "--trust-code", "spotnet:make"]):
        assert command(["predict", *source, "--data", "images/7.png"]) == 0
        made = json.loads(capsys.readouterr().out)["prediction"]
        assert made == pytest.approx(places[7, 0], abs=15)  # of 100 mm


def test_several_numbers_of_arrays_and_datasets(tmp_path: Path) -> None:
    images, places = spots()
    run = surefit.train(
        data={"image": images, "label": places.astype(np.float32)},
        model=cnn(2),
        epochs=15,
        lr=0.02,
        output=tmp_path / "run",
    )
    assert run.plan["task"] == "regression"
    assert len(run.metrics["r2_per_target"]) == 2
    assert run.metrics["r2"] > 0.9
    made = np.array([each["prediction"] for each in surefit.predict(run, {"image": images[:9]})])
    assert np.abs(made - places[:9]).mean() < 8
    rows = [
        (torch.from_numpy(image)[None].float() / 255, torch.tensor(place[0], dtype=torch.float32))
        for image, place in zip(images, places, strict=True)
    ]
    plan = surefit.check(data=rows, model=cnn())
    assert plan.ok
    assert plan.task.name == "regression"


def test_what_is_inferred_beside_images() -> None:
    images, places = spots(60)
    numbers = np.arange(60)
    labels = {
        "integers": (numbers // 2, "image-classification"),
        "whole floats of few values": ((numbers % 3).astype(float), "image-classification"),
        "halves": ((numbers % 5) / 2, "regression"),
        "lengths": (places[:, 0], "regression"),
        "several of 0 and 1": (np.stack([numbers % 2, numbers % 3 > 0], 1) * 1.0,
                               "image-classification"),
    }  # fmt: skip
    for values, task in labels.values():
        outputs = 30 if values is labels["integers"][0] else 3
        plan = surefit.check(data={"image": images, "label": values}, model=cnn(outputs))
        assert plan.task is not None
        assert plan.task.name == task
    plan = surefit.check(data={"image": images, "label": numbers}, model=cnn(), task="regression")
    assert plan.ok


def test_a_table_with_paths_stays_a_table() -> None:
    rows = [
        {"path": f"house-{n}", "rooms": n % 5, "area": 40.0 + n, "label": 1000.5 + 3 * n}
        for n in range(40)
    ]
    plan = surefit.check(data=rows, model="tiny:mlp")
    assert plan.task is not None
    assert plan.task.name == "regression"
    assert "image" not in plan.roles
    pictured = [{**row, "path": f"{row['path']}.png"} for row in rows]
    plan = surefit.check(data=pictured, model="tiny:mlp", task="regression")
    assert "image" not in plan.roles


def loudness_rows(count: int = 90) -> list[dict[str, Any]]:
    """Noise of some loudness, in decibels."""
    numbers = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        level = float(numbers.uniform(-40, -6))
        sound = numbers.normal(0, 10 ** (level / 20), 2400)
        rows.append(
            {"audio": {"array": sound.astype(np.float32), "sampling_rate": 8000}, "label": level}
        )
    return rows


class Levels(nn.Module):
    """The mean of a log-mel spectrogram, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1)

    def forward(self, input_values: torch.Tensor) -> torch.Tensor:
        return self.head(input_values.mean((1, 2, 3))[:, None])


def test_loudness_of_audio_is_learned(tmp_path: Path) -> None:
    rows = loudness_rows()
    run = surefit.train(
        data=rows,
        model=Levels(),
        epochs=30,
        lr=0.1,
        batch_size=16,
        audio={"form": "log-mel", "augment": {"time_mask": 0.1}},
        output=tmp_path / "run",
    )
    assert run.plan["task"] == "regression"
    assert run.metrics["r2"] > 0.8
    for number, row in enumerate(rows[:3]):
        soundfile.write(tmp_path / f"{number}.wav", row["audio"]["array"], 8000)
    files = [{"audio": str(tmp_path / f"{n}.wav"), "label": rows[n]["label"]} for n in range(3)]
    data = write_jsonl(tmp_path / "files.jsonl", files)
    made = [each["prediction"] for each in surefit.predict(run, str(data))]
    assert made == pytest.approx([row["label"] for row in files], abs=8)


@pytest.mark.parametrize("arch", ["vit", pytest.param("wav2vec2", marks=pytest.mark.slow)])
def test_transformers_models_of_the_modality_regress(arch: str, tmp_path: Path) -> None:
    images, places = spots(60)
    data: Any = {"image": images, "label": places[:, 0]}
    data = data if arch == "vit" else loudness_rows(30)
    run = surefit.train(
        data=data, model=f"tiny:{arch}", max_steps=3, batch_size=8, output=tmp_path / "run"
    )
    assert run.plan["task"] == "regression"
    rows = {"image": images[:4]} if arch == "vit" else [{"audio": r["audio"]} for r in data[:4]]
    made = surefit.predict(run, rows)
    assert all(isinstance(each["prediction"], float) for each in made)
    out = tmp_path / "out"
    assert command(["export", str(run.path), str(out)]) == 0
    again = surefit.predict(str(out), rows)
    assert [each["prediction"] for each in again] == [each["prediction"] for each in made]
    config = json.loads((out / "config.json").read_text())
    assert config["problem_type"] == "regression"
    assert config["target_scale"] > 0
