"""Images and audio in tar shards are trained on, and predicted for, like files in folders."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import surefit
from tar_files import tar_of

pytestmark = pytest.mark.slow
CHOOSE = np.random.default_rng(0)


def picture(color: int) -> bytes:
    """Noise in which one color is strong."""
    pixels = CHOOSE.integers(0, 60, (16, 16, 3)).astype(np.uint8)
    pixels[..., color] += 150
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_of_a_shard_are_learned(tmp_path: Path) -> None:
    for shard in range(2):
        members = []
        for number in range(30):
            members += [
                (f"{number:03}.png", picture(number % 3)),
                (f"{number:03}.cls", b"012"[number % 3 : number % 3 + 1]),
            ]
        (tmp_path / f"train-{shard}.tar").write_bytes(tar_of(members))
    data = str(tmp_path / "train-{0..1}.tar")
    run = surefit.train(data=data, model="tiny:vit", epochs=2, output=str(tmp_path / "run"))
    assert run.config.task == "image-classification"
    assert run.metrics["accuracy"] > 0.8
    predicted = list(surefit.predict(run, str(tmp_path / "train-0.tar")))
    assert len(predicted) == 30
