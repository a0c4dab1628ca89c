"""image-classification: pictures of any form and any number of channels are learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import SHAPES, draw, shape_rows, write_cnn, write_png
from PIL import Image
from torch import nn

import surefit
from builders import mostly_slow
from surefit.cli import run as command
from surefit.errors import FindingError, UsageError
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder_state import as_fitted
from surefit.inputs.image.image_files import AS_THEY_ARE, FIRST, LAST, ChannelAxis, read_planes


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
    before = json.loads((first.path / "model" / "encoder.json").read_text())["input"]["pixels"]
    after = as_fitted(plan.job.pipeline.encoder.input.pixels)
    assert [after.height, after.width] == [32, 32]
    assert list(after.mean) == pytest.approx(before["mean"])


@pytest.mark.parametrize(
    "arch", mostly_slow(["resnet", "convnext", "swin", "regnet", "beit"], every=5)
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


def scans(count: int, channels: int = 5, side: int = 8) -> tuple[Any, Any]:
    """Images [C, H, W] whose class is the brighter of the last two channels."""
    random, labels = np.random.default_rng(count), np.arange(count) % 2
    images = random.uniform(0, 0.6, (count, channels, side, side)).astype("float32")
    images[np.arange(count), channels - 2 + labels] += 0.4
    return images, labels


def net(channels: int, outputs: int = 2) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, outputs),
    )


@pytest.mark.parametrize("channels", [2, 5, 12])
@pytest.mark.parametrize("axis", [FIRST, LAST])
def test_the_module_decides_which_axis_the_channels_are(channels: int, axis: int) -> None:
    images, labels = scans(24, channels)
    turned = images if axis == FIRST else images.transpose(0, 2, 3, 1)
    plan = surefit.check(data={"x": turned, "y": labels}, model=net(channels))
    assert plan.ok, plan.findings
    assert (plan.task.name, dict(plan.roles)) == (
        "image-classification",
        {"image": "x", "label": "y"},
    )
    side = "first" if axis == FIRST else "last"
    how = f"[{channels}, 8, 8] (the channels are the {side} axis of the arrays)"
    assert any(how in note for note in plan.notes)
    batch = plan.job.batch(np.arange(4))["pixel_values"]
    mean = torch.tensor(as_fitted(plan.job.pipeline.encoder.input.pixels).mean)[:, None, None]
    std = torch.tensor(as_fitted(plan.job.pipeline.encoder.input.pixels).std)[:, None, None]
    rows = [int(plan.job.train.source_row[place]) for place in range(4)]
    assert torch.allclose(batch * std + mean, torch.from_numpy(images[rows]), atol=1e-4)


def test_where_both_axes_work_the_shape_decides() -> None:
    images, labels = scans(24, 12)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(12 * 64, 2))
    for turned, side in ((images, "first"), (images.transpose(0, 2, 3, 1), "last")):
        plan = surefit.check(data={"x": turned, "y": labels}, model=flat)
        assert any(f"[12, 8, 8] (the channels are the {side} axis" in n for n in plan.notes)
    square = images[:, :8]  # [8, 8, 8]: any axis; torch's own order
    plan = surefit.check(data={"x": square, "y": labels}, model=net(8))
    assert any("[8, 8, 8] (the channels are the first axis" in note for note in plan.notes)


def test_forward_decides_where_the_first_convolution_is_another_one() -> None:
    class Reduced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.begin = nn.Conv2d(3, 2, 1), nn.Conv2d(5, 3, 1)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.last(self.begin(image)).mean((2, 3))

    images, labels = scans(24)
    plan = surefit.check(data={"x": images, "y": labels}, model=Reduced())
    assert plan.ok, plan.findings
    assert plan.job.batch(np.arange(2))["pixel_values"].shape == (2, 5, 8, 8)


def test_models_of_three_channels_and_the_users_own_number() -> None:
    images, labels = scans(24)
    data = {"image": (images * 255).astype("uint8"), "label": labels}
    plan = surefit.check(data=data, model="tiny:vit")
    errors = [found.message for found in plan.findings if found.severity == "error"]
    assert "the images have 5 channels, but the model reads 3." in errors[0]
    plan = surefit.check(data=data, model=net(5), image={"channels": 4})
    errors = [found.message for found in plan.findings if found.severity == "error"]
    assert "the images have 5 channels, but image.channels is 4." in errors[0]
    with pytest.raises(UsageError, match=r"image\.mean has 3 values; the images are read with 5"):
        surefit.check(data=data, model=net(5), image={"mean": [0.1, 0.2, 0.3]})


def test_one_row_of_other_channels_is_named() -> None:
    images, labels = scans(24)
    rows = [{"x": image, "y": int(label)} for image, label in zip(images, labels, strict=True)]
    rows[7]["x"] = images[7][:4]
    plan = surefit.check(data=rows, model=net(5))
    errors = [found for found in plan.findings if found.severity == "error"]
    assert [(found.code, found.where["row"]) for found in errors] == [("SF251", 7)]
    assert "shape [4, 8, 8]; expected 5 channels" in errors[0].message


def test_values_stay_as_they_are_whatever_their_range() -> None:
    deep = np.arange(2 * 3 * 4).reshape(2, 3, 4).astype("int16") * 100
    place = ChannelAxis(FIRST, 2)
    assert (read_planes(deep, 2, AS_THEY_ARE, place) == deep.transpose(1, 2, 0)).all()
    with pytest.raises(RowFaultError, match="3 channels; expected 2"):
        read_planes(np.zeros((4, 4, 3), "uint8"), 2, 0, ChannelAxis(LAST, 3))


def test_floats_a_little_over_one_are_no_images_to_255() -> None:
    images, labels = scans(40)
    images += np.random.default_rng(0).uniform(0, 0.1, (40, 1, 1, 1)).astype("float32")
    assert 0 < (images.max((1, 2, 3)) <= 1).sum() < 40
    plan = surefit.check(data={"x": images, "y": labels}, model=net(5))
    assert plan.ok, [found.message for found in plan.findings if found.severity == "error"]
    batch = plan.job.batch(np.arange(len(plan.job.train)))["pixel_values"]
    assert batch.mean().abs() < 0.1
    assert abs(float(batch.std()) - 1) < 0.1


def write_module(folder: Path) -> None:
    text = "from torch import nn\ndef make(n):\n    return nn.Sequential(nn.Conv2d(5, 8, 3), "
    text += "nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, n))\n"
    (folder / "scan_net.py").write_text(text)


@pytest.mark.slow
def test_files_of_every_layout_from_training_to_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_module(tmp_path)
    images, labels = scans(60)
    lines = ["scan,kind"]
    for place, (image, label) in enumerate(zip(images, labels, strict=True)):
        for file in (f"named/{label}_{place}.npy", f"classes/c{label}/{place}.npy"):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            np.save(file, image)
        lines.append(f"named/{label}_{place}.npy,c{label}")
    Path("rows.csv").write_text("\n".join(lines) + "\n")
    np.save("X.npy", images)
    np.save("y.npy", labels)
    model = ["--model", "scan_net:make"]
    for data in (["rows.csv"], ["X.npy"], ["named", "--set", "label_from=(\\d)_"]):
        assert command(["check", "--data", *data, *model]) == 0
        out = capsys.readouterr()
        assert "[5, 8, 8] (the channels are the first axis of the arrays)" in out.out + out.err
    train = ["train", "--data", "classes", *model, "--epochs", "12", "--lr", "0.03"]
    train += ["--set", "image.augment=[flip, brightness, contrast]", "--output", "run"]
    assert command(train) == 0
    assert json.loads(Path("run/events.jsonl").read_text().splitlines()[-1])["event"]
    assert "data:image" in Path("run/report.html").read_text()
    assert surefit.evaluate("run", "classes")["accuracy"] == 1
    capsys.readouterr()
    Path("few").mkdir()
    np.save("few/a.npy", images[0])
    np.save("few/b.npy", images[1].transpose(1, 2, 0))
    for data, expected in (
        ("named/1_1.npy", ["c1"]),
        ("few/a.npy", ["c0"]),
        ("few/b.npy", ["c1"]),
        ("named", ["c0"] * 30 + ["c1"] * 30),
    ):
        assert command(["predict", "run", "--data", data]) == 0
        answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [answer["prediction"] for answer in answers] == expected, data


def test_segmentation_of_images_of_many_channels(tmp_path: Path) -> None:
    images, _ = scans(40)
    masks = (images[:, 0] > 0.3).astype("uint8")
    module = nn.Sequential(nn.Conv2d(5, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    for turned in (images, images.transpose(0, 2, 3, 1)):
        plan = surefit.check(data={"x": turned, "y": masks}, model=module)
        assert plan.ok, plan.findings
        assert plan.task.name == "image-segmentation"
    plan = surefit.check(data={"x": images, "mask": masks.astype("int64")}, model=module)
    assert dict(plan.roles) == {"image": "x", "label": "mask"}
    options = {"image": {"augment": ["flip", "cutmix"]}, "output": str(tmp_path / "run")}
    run = surefit.train(data={"x": turned, "y": masks}, model=module, epochs=20, lr=0.03, **options)
    assert run.metrics["iou"] > 0.9
    made = surefit.predict(run, {"x": images[:1]})[0]["prediction"]
    assert (np.asarray(made) == masks[0]).mean() > 0.9


def test_colours_need_three_channels() -> None:
    images, labels = scans(24)
    with pytest.raises(UsageError, match="images of 5 channels have no colours"):
        surefit.check(
            data={"x": images, "y": labels}, model=net(5), image={"augment": ["saturation"]}
        )
