"""regression of tables, features, images and audio: one number or several, in their units."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from torch import nn

import surefit
from builders import WORDS, write_jsonl
from surefit.cli import run as command


def line_rows(count: int) -> list[dict[str, float]]:
    """y = 2a + 3b + 1000, with a little noise."""
    numbers = np.random.default_rng(0).normal(size=(count, 3))
    return [
        {"a": float(a), "b": float(b), "y": float(2 * a + 3 * b + 1000 + 0.1 * noise)}
        for a, b, noise in numbers
    ]


def test_own_module_may_give_one_number_per_row(tmp_path: Path) -> None:
    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.layer(features).squeeze(-1)

    run = surefit.train(
        data=line_rows(300), model=Line(), epochs=10, lr=0.05, output=str(tmp_path / "run")
    )
    assert run.metrics["r2"] > 0.99


def amounts(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Ragged rows whose target is 100 and 20 times the mean of their second channel."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        steps = random.normal(size=(int(random.integers(3, 9)), 3)) + random.normal(size=3)
        rows.append({"features": steps.astype(np.float32), "label": 100 + 20 * steps[:, 1].mean()})
    return rows


def test_amounts_are_learned_in_their_units(tmp_path: Path) -> None:
    run = surefit.train(
        data=amounts(400), model="tiny:bert", epochs=6, output=str(tmp_path / "run")
    )
    assert run.plan["task"] == "regression"
    assert run.plan["roles"] == {"features": "features", "label": "label"}
    metrics = surefit.evaluate(run, amounts(80, seed=1))
    assert metrics["r2"] > 0.8
    test = amounts(5, seed=2)
    predicted = [row["prediction"] for row in surefit.predict(tmp_path / "run", test)]
    assert np.abs(np.array(predicted) - [row["label"] for row in test]).max() < 25
    module: Any = run.model
    assert module.projection.width == 3  # of the features, not of the target


def test_a_pretrained_body_is_tuned_to_amounts(tmp_path: Path) -> None:
    surefit.train(
        data=[{"features": row["features"]} for row in amounts(40)],
        model="tiny:bert",
        max_steps=2,
        output=str(tmp_path / "pretrain"),
    )
    plan = surefit.check(data=amounts(40), model=str(tmp_path / "pretrain"))
    assert plan.ok
    assert any(n.endswith("body, mask vector, projection; new: head.") for n in plan.notes)


X = np.random.default_rng(0).normal(size=(300, 4)).astype("float32")
Y = np.stack([3 * X[:, 0] - X[:, 1], 1000 * X[:, 2] + 5], axis=1).astype("float32")


def mlp(num_outputs: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, num_outputs)
    )


def test_metrics_of_vectors_are_those_of_scikit_learn(tmp_path: Path) -> None:
    rows = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    run = surefit.train(data=rows, model=mlp(2), epochs=8, lr=0.01, output=str(tmp_path / "run"))
    assert run.plan["task"] == "regression"
    assert min(run.metrics["r2_per_target"]) > 0.9
    assert -0.3 < run.plan["baselines"]["mean"]["r2_per_target"][1] < 0.1
    found = surefit.evaluate(run, rows)
    made = np.array([row["prediction"] for row in surefit.predict(run, X)])
    expected = {
        "mae": mean_absolute_error,
        "rmse": root_mean_squared_error,
        "r2": r2_score,
    }
    for name, measure in expected.items():
        each = measure(Y, made, multioutput="raw_values")
        assert found[f"{name}_per_target"] == pytest.approx(each.tolist(), rel=1e-5)
        assert found[name] == pytest.approx(each.mean(), rel=1e-5)


def test_columns_of_a_table_are_predicted_by_name(tmp_path: Path) -> None:
    rows = [
        {"a": float(a), "b": float(b), "left": float(a + b), "right": 50 * a - b}
        for a, b in X[:, :2]
    ]
    rows[7]["right"] = None
    run = surefit.train(
        data=rows,
        columns={"label": ["left", "right"]},
        model="tiny:mlp",
        epochs=6,
        output=str(tmp_path / "run"),
    )
    assert run.metrics["r2"] > 0.8
    assert run.metrics["mae_per_target"].keys() == {"left", "right"}
    assert run.plan["ledger"]["dropped_rows"] == {"no_label": 1}
    assert run.plan["baselines"]["best single column"]["r2_per_target"]["right"] > 0.9
    (made,) = surefit.predict(run, [{"a": 1.0, "b": 0.0}])
    assert made["prediction"]["right"] == pytest.approx(50, abs=15)


def test_groups_of_noise_are_no_better_baseline_than_a_weak_line() -> None:
    drawn = random.Random(5)
    rows = [{name: drawn.gauss(0, 1) for name in ("near", *"bcef")} for _ in range(120)]
    for row in rows:
        row["y"] = 0.4 * row["near"] + drawn.gauss(0, 1)
    plan = surefit.check(data=rows, model="tiny:mlp", task="regression", columns={"label": "y"})
    assert plan.baselines["best single column"]["column"] == "near"


def test_texts_export_the_names_and_scales_of_the_targets() -> None:
    rows = [{"text": " ".join([w, "sun"]), "score": [n, 3.5 * n * n]} for n, w in enumerate(WORDS)]
    plan = surefit.check(data=rows * 3, model="tiny:bert", eval_share=0)
    assert plan.job is not None, plan.findings
    assert plan.task is not None
    assert plan.task.name == "regression"
    config = plan.job.pipeline.module.config
    assert (config.problem_type, config.num_labels) == ("regression", 2)
    assert config.target_mean == list(plan.job.pipeline.encoder.target.numbers.mean)


def errors(**asked: Any) -> list[tuple[str, str]]:
    plan = surefit.check(**asked)
    return [(f.code, f.message) for f in plan.findings if f.severity in ("error", "warning")]


def test_a_module_with_another_number_of_outputs_is_reported() -> None:
    data = {"x": X, "y": Y}
    few = ("SF303", "The model has 1 output, but the data has 2 numbers per row.")
    assert errors(data=data, model=mlp(1)) == [few]
    many = ("SF316", "The model has 3 outputs, the data 2 numbers per row.")
    assert errors(data=data, model=mlp(3)) == [many]
    assert errors(data=data, model=mlp(2)) == []


def test_faults_of_one_of_several_targets() -> None:
    tens = [{"a": float(n % 9), "b": float(n), "c": 7} for n in range(30)]
    label = {"columns": {"label": ["b", "c"]}, "model": "tiny:mlp", "task": "regression"}
    assert errors(data=tens, **label) == [("SF230", "column 'c' is 7 in all 27 training rows.")]
    marked = [{**row, "c": -999 if n % 10 == 3 else n / 7} for n, row in enumerate(tens)]
    ((code, message),) = [each for each in errors(data=marked, **label) if each[0] == "SF244"]
    assert message.startswith("column 'c': 3 of 30 values looked at are -999, far from all others")
    leaky = [{**row, "c": n % 7, "sum": n + n % 7} for n, row in enumerate(tens)]
    ((code, message),) = [each for each in errors(data=leaky, **label) if each[0] == "SF232"]
    assert message == "column 'sum' and the target 'b + c' have the correlation 1.0000."
    ragged = [{"x": row, "label": [1.5 * n, 2.0][: 1 + (n != 5)]} for n, row in enumerate(X[:40])]
    ((code, message),) = errors(data=ragged, model=mlp(2), task="regression")
    assert (code, "row 5: the target has 1 number" in message) == ("SF208", True)


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
