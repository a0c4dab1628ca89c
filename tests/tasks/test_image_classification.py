"""image-classification: known pictures are learned, whatever form they come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import SHAPES, draw, shape_rows, write_cnn, write_png
from PIL import Image

import surefit
from builders import mostly_slow
from surefit.cli import run as command
from surefit.errors import FindingError


def write_rows(folder: Path, count: int, first: int = 0, name: str = "rows.csv") -> Path:
    """A CSV of paths beside PNG files of different sizes and kinds."""
    lines = ["path,label"]
    for n in range(count):
        shape = SHAPES[n % 3]
        height, width = ((32, 32), (40, 30), (26, 36), (32, 32))[n % 4]
        write_png(folder / "pics" / f"{first + n}.png", draw(shape, first + n, height, width))
        lines.append(f"pics/{first + n}.png,{shape}")
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def test_small_cnn_learns_files_of_different_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    write_rows(data, 360)
    write_rows(data, 60, first=9000, name="test.csv")
    arguments = ["train", "--data", "data/rows.csv", "--model", write_cnn(tmp_path)]
    arguments += ["--epochs", "10", "--batch-size", "16", "--lr", "4e-3", "--output", "run"]
    assert command(arguments) == 0
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["task"] == "image-classification"
    assert plan["roles"] == {"image": "path", "label": "label"}
    assert plan["ledger"]["tokens"] == plan["ledger"]["train_rows"]
    metrics = surefit.evaluate("run", "data/test.csv")
    assert metrics["accuracy"] > 0.95
    assert metrics["top1"] == metrics["accuracy"]
    assert metrics["top5"] == 1
    assert metrics["macro_f1"] > 0.95
    assert np.sum(metrics["confusion"]) == 60
    capsys.readouterr()
    (data / "new.csv").write_text('path\npics/9000.png\n""\npics/9002.png\n')
    assert command(["predict", "run", "--data", "data/new.csv"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["prediction"] for answer in answers] == ["disc", None, "stripes"]
    assert answers[1]["skipped"] == "empty"
    assert 0.3 < answers[0]["probability"] <= 1


def test_exported_folder_is_trained_on_with_its_own_size_and_scale(tmp_path: Path) -> None:
    first = surefit.train(
        data=shape_rows(30), model="tiny:vit", max_steps=1, output=str(tmp_path / "first")
    )
    bright = [{**row, "image": 255 - np.tile(row["image"], (2, 2, 1))} for row in shape_rows(30)]
    plan = surefit.check(data=bright, model=str(first.path / "model"))
    assert plan.ok, plan.findings
    assert plan.job is not None
    before = json.loads((first.path / "model" / "encoder.json").read_text())["fitted"]["pixels"]
    after = plan.job.pipeline.encoder.fitted["pixels"]
    assert [after["height"], after["width"]] == [32, 32]
    assert after["mean"] == pytest.approx(before["mean"])


@pytest.mark.parametrize(
    "arch", mostly_slow(["resnet", "convnext", "swin", "mobilevit", "clip"], every=5)
)
def test_other_architectures_step_on_the_sizes_of_the_data(arch: str, tmp_path: Path) -> None:
    rows = shape_rows(24, height=50, width=40)
    run = surefit.train(data=rows, model=f"tiny:{arch}", max_steps=1, output=str(tmp_path / "run"))
    assert run.plan["task"] == "image-classification"
    loaded = surefit.load(run)
    with torch.no_grad():
        assert loaded(pixel_values=torch.zeros(2, 3, 64, 64)).logits.shape == (2, 3)


def test_npz_of_bytes_is_pictures_and_of_floats_is_features(tmp_path: Path) -> None:
    pixels = np.stack([row["image"][:, :, 0] for row in shape_rows(24)])
    for name, x in (("bytes", pixels), ("floats", pixels / 255)):
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(24) % 3)
    plan = surefit.check(data=str(tmp_path / "bytes.npz"), model="tiny:vit")
    assert plan.ok, plan.findings
    assert plan.roles == {"image": "x", "label": "y"}
    options = {"columns.image": "x", "task": "image-classification", "model": "tiny:vit"}
    assert surefit.check(data=str(tmp_path / "floats.npz"), **options).ok
    other = surefit.check(data=str(tmp_path / "floats.npz"), model=torch.nn.Identity())
    assert other.task is not None
    assert other.task.name == "feature-classification"


def test_corrupt_file_is_an_error_with_row_and_file_or_a_counted_drop(tmp_path: Path) -> None:
    data = write_rows(tmp_path, 40)
    (tmp_path / "pics" / "7.png").write_bytes(b"")
    whole = (tmp_path / "pics" / "9.png").read_bytes()
    (tmp_path / "pics" / "9.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "pics" / "20.png").unlink()
    plan = surefit.check(data=str(data), model="tiny:vit", eval_share=0)
    assert not plan.ok
    (found,) = [f for f in plan.findings if f.severity == "error"]
    assert found.code == "SF250"
    assert found.where["row"] == 7
    assert found.where["column"] == "path"
    assert "7.png" in found.message
    assert "2 more rows" in found.message
    plan = surefit.check(data=str(data), model="tiny:vit", on_bad_file="skip")
    assert plan.ok, plan.findings
    assert plan.ledger is not None
    assert plan.ledger.dropped_rows == {"bad_file": 3}


def test_predicting_on_a_corrupt_file_names_it(tmp_path: Path) -> None:
    data = write_rows(tmp_path, 30)
    options: dict[str, Any] = {"data": str(data), "model": "tiny:vit", "max_steps": 1}
    run = surefit.train(**options, output=str(tmp_path / "run"))
    lenient = surefit.train(**options, on_bad_file="skip", output=str(tmp_path / "lenient"))
    (tmp_path / "pics" / "2.png").write_bytes(b"no picture")
    with pytest.raises(FindingError, match=r"row 2: .*2\.png"):
        surefit.predict(run, str(data))
    answers = surefit.predict(lenient, str(data))
    assert [a["row"] for a in answers if a.get("skipped") == "bad_file"] == [2]


def test_image_size_by_config(tmp_path: Path) -> None:
    rows = shape_rows(24)
    plan = surefit.check(data=rows, model="tiny:vit", **{"image.size": 48})
    assert plan.job is not None
    assert plan.job.pipeline.module.config.image_size == 48
    plan = surefit.check(data=rows, model="tiny:vit", **{"image.size": [48, 32]})
    assert [f.code for f in plan.findings if f.severity == "error"] == ["SF253"]
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 20 * 10, 3))
    plan = surefit.check(data=rows, model=model, **{"image.size": [20, 10]})
    assert plan.ok, plan.findings


def test_run_is_evaluated_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["file_name,label"]
    for n in range(30):
        folder = tmp_path / "pictures" / SHAPES[n % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw(SHAPES[n % 3], n, 32, 32)).save(folder / f"{n}.png")
        lines.append(f"{folder.name}/{n}.png,{folder.name}")
    (tmp_path / "pictures" / "all.csv").write_text("\n".join(lines))
    run = surefit.train(data="pictures/all.csv", model="tiny:vit", max_steps=1, output="run")
    loss = run.metrics["loss"]
    monkeypatch.chdir("/")
    assert surefit.evaluate(tmp_path / "run")["loss"] == pytest.approx(loss)


def test_paths_beside_two_possible_targets_are_images_in_the_advice(tmp_path: Path) -> None:
    lines = ["scan_location,diagnosis,exposure"]
    for n in range(20):
        Image.new("L", (8, 8), n).save(tmp_path / f"s{n}.png")
        lines.append(f"s{n}.png,{'good' if n % 2 else 'bad'},{n / 7:.3f}")
    (tmp_path / "scans.csv").write_text("\n".join(lines))
    plan = surefit.check(data=tmp_path / "scans.csv", model=torch.nn.Conv2d(1, 2, 3))
    (found,) = [each for each in plan.findings if each.code == "SF202"]
    named = "--set columns.image=scan_location --set columns.label="
    assert f"--task image-classification {named}diagnosis" in found.fix
    assert f"--task regression {named}exposure" in found.fix
    assert "tabular" not in found.fix
