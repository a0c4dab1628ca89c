"""Images of any number of channels: the module and the shape decide which axis they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from surefit.cli import run as command
from surefit.encode.encoded_row import RowFaultError
from surefit.encode.images.channel_axis import FIRST, LAST, ChannelAxis
from surefit.encode.images.image_planes import AS_THEY_ARE, read_planes
from surefit.errors import UsageError


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
    mean = torch.tensor(plan.job.pipeline.encoder.fitted["pixels"]["mean"])[:, None, None]
    std = torch.tensor(plan.job.pipeline.encoder.fitted["pixels"]["std"])[:, None, None]
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


@pytest.mark.parametrize(
    ("data", "reads", "message"),
    [
        (5, 3, "the images have 5 channels, but the module's first layer reads 3."),
        (3, 5, "the images have 3 channels, but the module's first layer reads 5."),
        (2, 4, "the images have 2 channels, but the module's first layer reads 4."),
    ],
)
def test_other_channels_than_the_module_reads_are_refused(
    data: int, reads: int, message: str
) -> None:
    images, labels = scans(24, data)
    plan = surefit.check(data={"x": images, "y": labels}, model=net(reads))
    errors = [found for found in plan.findings if found.severity == "error"]
    assert [found.code for found in errors] == ["SF256"]
    assert message in errors[0].message


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
