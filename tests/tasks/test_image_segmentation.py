"""image-segmentation: discs on noise with a known answer; masks of every kind; IoU and Dice."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import disc_rows, write_discs
from PIL import Image
from sklearn.metrics import f1_score, jaccard_score
from torch import nn

import surefit
from surefit.batches.field import NUM_TARGETS
from surefit.cli.run_commands import plain_value
from surefit.inputs.encoded_row import RowFaultError
from surefit.plan.plan import Plan
from surefit.targets.masks import DICE, IGNORED, IOU, pixel_class_scores, pixel_loss, read_mask


def net(stride: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=stride, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1)
    )


def batch_of(plan: Plan) -> dict[str, Any]:
    assert plan.job is not None, plan.findings
    return plan.job.pipeline.batch(plan.job.train, [0, 1])


def test_discs_are_found_and_predicted_masks_are_files(tmp_path: Path) -> None:
    changes = {"image": {"augment": ["flip", "rotate", "cutmix"]}}
    run = surefit.train(
        data=disc_rows(40), model=net(), epochs=4, batch_size=4, lr=0.02,
        output=str(tmp_path / "run"), **changes,
    )  # fmt: skip
    assert run.plan["task"] == "image-segmentation"
    assert run.metrics["iou"] > 0.9 > 0.5 > run.plan["baselines"]["majority class"]["iou"]
    new = disc_rows(6, first=900)
    made = [*surefit.predict(run, [{"image": row["image"]} for row in new])]
    masks = [each["prediction"] for each in made]
    truth = np.concatenate([row["mask"].ravel() for row in new])
    guess = np.concatenate([mask.ravel() for mask in masks])
    scores = surefit.evaluate(run, new)
    assert scores["iou_per_class"] == pytest.approx(jaccard_score(truth, guess, average=None))
    assert scores["dice"] == pytest.approx(f1_score(truth, guess, average="macro"), abs=1e-6)
    assert made[0]["shares"]["1"] == pytest.approx(masks[0].mean())
    page = run.report_path.read_text("utf-8")
    assert page.count("% right</small>") == 4
    assert "Augmented training rows" in page
    write_discs(tmp_path / "new", 3, first=900)
    for each, mask in zip(surefit.predict(run, tmp_path / "new" / "images"), masks, strict=False):
        inside = plain_value(None, each, each["prediction"])
        path = plain_value(str(tmp_path / "masks"), each, each["prediction"])
        content = base64.b64decode(inside["png"])
        assert Path(path).read_bytes() == content
        assert (np.asarray(Image.open(io.BytesIO(content))) == mask).all()


def test_masks_of_every_kind_are_read_alike(tmp_path: Path) -> None:
    mask = np.array([[0, 1], [2, IGNORED]], np.uint8)
    gray, palette = Image.fromarray(mask), Image.fromarray(mask, "L").convert("P")
    palette.putdata(mask.ravel().tolist())
    palette.putpalette([c for n in range(256) for c in (n, 255 - n, 7)])
    for number, image in enumerate((gray, palette, gray.convert("RGB"))):
        path = tmp_path / f"{number}.png"
        image.save(path)
        assert (read_mask(str(path)) == mask).all()
        assert (read_mask(path.read_bytes()) == mask).all()
    assert (read_mask(mask[None].astype(float)) == mask).all()
    assert (read_mask(mask[..., None].astype(np.int64)) == mask).all()
    gray.convert("RGB").save(tmp_path / "a.jpg")
    coloured = np.zeros((2, 2, 3), np.uint8) + np.array([1, 2, 3], np.uint8)
    for wrong in (str(tmp_path / "a.jpg"), np.ones((2, 2)) / 2, -np.ones((2, 2)), [[1], [1, 2]]):
        with pytest.raises(RowFaultError, match="the mask is"):
            read_mask(wrong)
    Image.fromarray(coloured).save(tmp_path / "c.png")
    with pytest.raises(RowFaultError, match="in colour"):
        read_mask(str(tmp_path / "c.png"))


def test_ignored_pixels_count_nowhere_and_classes_keep_their_numbers() -> None:
    rows = disc_rows(20)
    for row in rows:
        row["mask"] = row["mask"] * 3  # classes 0 and 3
        row["mask"][:4] = IGNORED
    plan = surefit.check(data=rows, model=net())
    batch = batch_of(plan)
    assert plan.job is not None
    assert plan.job.pipeline.encoder.classes == [0, 3]
    assert (batch["labels"][:, :4] == -100).all()
    assert batch[NUM_TARGETS] == 2 * 20 * 24
    logits = torch.randn(2, 2, 24, 24)
    outputs = type("Outputs", (), {"logits": logits, "loss": None})
    total, count = pixel_loss(outputs, batch)
    assert count == batch[NUM_TARGETS]
    flat, classes = pixel_class_scores(outputs, batch)
    assert torch.allclose(nn.functional.cross_entropy(flat, classes, reduction="sum"), total)
    guess = logits.argmax(1)[batch["labels"] >= 0]
    for metric, truth in ((IOU, jaccard_score), (DICE, f1_score)):
        figure = metric.figure(metric.sums(outputs, batch))
        assert figure == pytest.approx(truth(classes, guess, average="macro"), abs=1e-9)


def test_fewer_pixels_are_upsampled_and_images_resized_with_their_masks() -> None:
    plan = surefit.check(data=disc_rows(20, size=30), model=net(stride=2), image={"size": 16})
    assert plan.ok, plan.findings
    batch = batch_of(plan)
    assert batch["pixel_values"].shape == (2, 3, 16, 16)
    assert batch["labels"].shape == (2, 16, 16)
    assert batch["image_size"].tolist() == [[30, 30]] * 2
    moved = plan.job.batch([0, 1]) if plan.job is not None else {}
    assert torch.equal(moved["labels"], batch["labels"])


def test_tuples_of_tensors_and_folders_are_read(tmp_path: Path) -> None:
    rows = disc_rows(20)
    pairs = [
        (torch.from_numpy(row["image"]).permute(2, 0, 1) / 255, torch.from_numpy(row["mask"]))
        for row in rows
    ]
    given = surefit.check(data=torch.utils.data.Subset(pairs, range(20)), model=net())  # type: ignore[arg-type]
    write_discs(tmp_path / "discs", 20)
    folder = surefit.check(data=tmp_path / "discs", model=net())
    for plan in (given, folder):
        assert plan.task is not None
        assert plan.task.name == "image-segmentation"
        assert plan.ok, plan.findings
    lines = [
        json.dumps({"file": f"discs/images/{n}.png", "mask": f"discs/masks/{n}.png"})
        for n in range(20)
    ]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    manifest = surefit.check(data=tmp_path / "all.jsonl", model=net())
    assert manifest.roles == {"image": "file", "label": "mask"}
    assert manifest.ok, manifest.findings
