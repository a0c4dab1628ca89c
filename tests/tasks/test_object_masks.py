"""Masks of objects: polygons, run lengths and pixels of the data; losses, figures, predictions."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import nn

import surefit
from surefit.data.open_data import open_table
from surefit.inputs.image.image_changes import BoxChanges
from surefit.inputs.image.object_masks import as_coco, as_runs, fill, from_runs, read_masks
from surefit.targets import detected_objects
from surefit.targets.detected_objects import average_precisions, count_matches

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from grid_detector import GridDetector

SIDE = 32
NAMES = ("disc", "square")


class Segments(GridDetector):
    """Objects of the grid, with a mask: what of their box is in the foreground."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(3)
        self.front = nn.Conv2d(3, 1, 1)

    def forward(self, images: Any, targets: Any = None) -> Any:
        made = super().forward(images, targets)
        front = self.front(torch.stack(images))[:, 0]
        if self.training:
            assert targets[0]["masks"].dtype == torch.uint8
            true = torch.stack([each["masks"].amax(0) for each in targets]).float()
            loss = nn.functional.binary_cross_entropy_with_logits(front, true)
            return {**made, "loss_masks": loss}
        y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        for each, share in zip(made, front.sigmoid(), strict=True):
            left, upper, right, lower = each["boxes"][:, :, None, None].unbind(1)
            inside = (x >= left) & (x < right) & (y >= upper) & (y < lower)
            each["masks"] = (inside * share)[:, None]
        return made


def drawn(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Images of one or two triangles and squares, with a polygon for each."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(count):
        image = Image.fromarray(rng.integers(0, 60, (SIDE, SIDE, 3)).astype(np.uint8))
        boxes, labels, masks = [], [], []
        for place in rng.permutation(4)[: rng.integers(1, 3)]:
            size, kind = int(rng.integers(8, 13)), int(rng.integers(2))
            x, y = (int(n) for n in (place % 2 * 16 + 1, place // 2 * 16 + 1))
            corners = [x, y, x + size, y, x + size, y + size, x, y + size][: 8 - 2 * (1 - kind)]
            ImageDraw.Draw(image).polygon(corners, fill=((40, 250, 40), (250, 40, 40))[kind])
            boxes.append([x, y, x + size, y + size])
            labels.append(NAMES[kind])
            masks.append([[float(n) for n in corners]])
        rows.append({"image": np.asarray(image), "boxes": boxes, "labels": labels, "masks": masks})
    return rows


def pixels(row: dict[str, Any]) -> np.ndarray[Any, Any]:
    return read_masks(row["masks"], (SIDE, SIDE), (SIDE, SIDE), False)


def as_files(folder: Path, rows: list[dict[str, Any]], coded: bool) -> tuple[Path, Path]:
    """The rows as COCO (with run lengths instead of polygons, if `coded`) and as YOLO."""
    yolo = folder / "yolo"
    for place in (folder / "images", yolo / "images", yolo / "labels"):
        place.mkdir(parents=True, exist_ok=True)
    held = []
    for number, row in enumerate(rows):
        lines = []
        for place in (folder / "images", yolo / "images"):
            Image.fromarray(row["image"]).save(place / f"{number}.png")
        for box, name, polygons, mask in zip(
            row["boxes"], row["labels"], row["masks"], pixels(row), strict=True
        ):
            shape = {
                "image_id": number,
                "category_id": NAMES.index(name),
                "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                "segmentation": as_coco(mask) if coded else polygons,
            }
            held.append({"id": len(held), **shape})
            shares = " ".join(str(n / SIDE) for n in polygons[0])
            lines.append(f"{NAMES.index(name)} {shares}")
        (yolo / "labels" / f"{number}.txt").write_text("\n".join(lines))
    (yolo / "data.yaml").write_text("names: [disc, square]\n")
    content = {
        "images": [{"id": n, "file_name": f"{n}.png"} for n in range(len(rows))],
        "annotations": held,
        "categories": [{"id": n, "name": name} for n, name in enumerate(NAMES)],
    }
    (folder / "coco.json").write_text(json.dumps(content))
    return folder / "coco.json", yolo


@pytest.mark.parametrize("coded", [False, True])
def test_coco_and_yolo_have_the_masks_of_the_rows(tmp_path: Path, coded: bool) -> None:
    rows = drawn(5)
    for path in as_files(tmp_path, rows, coded):
        for read, row in zip(open_table(path).rows(), rows, strict=True):
            relative = path.name == "yolo"
            made = read_masks(read["masks"], (SIDE, SIDE), (SIDE, SIDE), relative)
            assert (made == pixels(row)).all()


def test_objects_without_a_mask_leave_the_boxes(tmp_path: Path) -> None:
    path, _ = as_files(tmp_path, drawn(3), False)
    content = json.loads(path.read_text())
    del content["annotations"][0]["segmentation"]
    path.write_text(json.dumps(content))
    table = open_table(path)
    assert [*table.columns] == ["image", "boxes_xywh", "labels"]
    assert any("1 of 4 objects have no mask" in found.message for found in table.findings)


def test_pixels_are_those_of_pycocotools() -> None:
    coco = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(0)
    for _ in range(20):
        angle = np.sort(rng.uniform(0, 2 * np.pi, 7))
        corners = np.stack([26 + 14 * np.cos(angle), 18 + 14 * np.sin(angle)], 1)
        mine = np.zeros((37, 53), bool)
        fill(mine, corners)
        coded = coco.merge(coco.frPyObjects([corners.ravel().tolist()], 37, 53))
        theirs = coco.decode(coded).astype(bool)
        assert (mine & theirs).sum() > 0.9 * (mine | theirs).sum()
        assert (coco.decode(coco.frPyObjects(as_coco(theirs), 37, 53)) == theirs).all()
        assert (from_runs(as_runs(theirs[None]), 1, (37, 53))[0] == theirs).all()


def test_average_precision_of_masks_is_that_of_pycocotools() -> None:
    coco = pytest.importorskip("pycocotools.coco")
    from pycocotools.cocoeval import COCOeval

    rng, found, true = np.random.default_rng(1), [], []
    for row in drawn(30, seed=2):
        masks = pixels(row)
        moved = np.stack([np.roll(m, rng.integers(-2, 3, 2), (0, 1)) for m in masks])
        labels = torch.tensor([NAMES.index(n) + 1 for n in row["labels"]])
        scores = torch.tensor(rng.uniform(size=len(labels)))
        true.append({"masks": torch.tensor(masks), "boxes": torch.zeros(0), "labels": labels})
        found.append({"masks": torch.tensor(moved), "labels": labels, "scores": scores})
    by_class, error = average_precisions(count_matches(found, true, 2, "masks"))

    def listed(images: list[Any]) -> list[dict[str, Any]]:
        objects = [
            {
                "image_id": n,
                "category_id": int(each["labels"][at]),
                "segmentation": as_coco(each["masks"][at].numpy()),
                "area": int(each["masks"][at].sum()),
                "bbox": [0, 0, 1, 1],
                "iscrowd": 0,
                "score": float(each["scores"][at]) if "scores" in each else 1.0,
            }
            for n, each in enumerate(images)
            for at in range(len(each["labels"]))
        ]
        for each in objects:
            size = each["segmentation"]["size"]
            each["segmentation"] = coco.maskUtils.frPyObjects(each["segmentation"], *size)
        return [{**each, "id": n + 1} for n, each in enumerate(objects)]

    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = {
            "images": [{"id": n, "height": SIDE, "width": SIDE} for n in range(30)],
            "annotations": listed(true),
            "categories": [{"id": 1}, {"id": 2}],
        }
        truth.createIndex()
        judged = COCOeval(truth, truth.loadRes(listed(found)), "segm")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    assert 0.1 < judged.stats[0] < 0.9
    assert abs(float(by_class.mean()) - judged.stats[0]) <= float(error.mean()) + 1e-9


@pytest.mark.slow
def test_a_module_that_segments_objects(tmp_path: Path) -> None:
    rows, held = drawn(16), drawn(6, seed=1)
    run = surefit.train(
        data=rows, eval_data=held, model=Segments(), epochs=4, batch_size=16, lr=0.03,
        schedule="constant", warmup=0.0, weight_decay=0.0, clip=0, quiet=True,
        image={"augment": {"flip": 0.5, "crop": 0.8}}, output=str(tmp_path / "run"),
    )  # fmt: skip
    assert run.plan["task"] == "detection"
    assert 0 <= run.metrics["map_masks"] <= run.metrics["map_masks_50"] <= 1
    steps = [event["loss_masks"] for event in run.history if event["event"] == "step"]
    assert steps[-1] < steps[0]
    (made,) = surefit.predict(run, [{"image": held[0]["image"]}])
    best = made["prediction"][0]
    assert best["mask"]["size"] == [SIDE, SIDE]
    assert sum(best["mask"]["counts"]) == SIDE * SIDE
    assert "with a score from" in run.report_path.read_text("utf-8")


def test_losses_are_those_of_a_plain_call() -> None:
    rows = drawn(4)
    plan = surefit.check(data=rows, eval_data=rows, model=Segments(), batch_size=4, quiet=True)
    pipeline, module = plan.job.pipeline, Segments()
    targets = [
        {
            "boxes": torch.tensor(row["boxes"]).float(),
            "labels": torch.tensor([NAMES.index(n) + 1 for n in row["labels"]]),
            "masks": torch.tensor(pixels(row)).byte(),
        }
        for row in rows
    ]
    images = [torch.tensor(row["image"]).permute(2, 0, 1).float() / 255 for row in rows]
    wanted = module.train()(images, targets)
    batch = pipeline.batch(plan.job.train, np.arange(4))
    made = pipeline.call(module, batch)
    assert made.raw.keys() == wanted.keys()
    assert all(torch.allclose(made.raw[name], wanted[name], rtol=1e-5) for name in wanted)
    with torch.no_grad():
        found = pipeline.predicted(batch)
        sums = detected_objects.MAP.sums(found, batch, pipeline.encoder)
    beside = detected_objects.MAP.beside
    assert beside is not None
    figures = beside(sums, pipeline.encoder)
    assert {"masks", "masks_50", "50"} <= figures.keys()
    (best, *_) = detected_objects.decode(found, batch, pipeline.encoder)[0]["prediction"]
    assert best["mask"]["size"] == [SIDE, SIDE]
    assert sum(best["mask"]["counts"]) == SIDE * SIDE


def test_masks_follow_flips_and_crops_and_are_drawn() -> None:
    masks = np.zeros((2, 32, 32), bool)
    masks[0, :8, :4] = masks[1, 20:28, 20:24] = True
    row = {
        "pixel_values": np.zeros((3, 32, 32), np.float32),
        "boxes": np.array([[0, 0, 4, 8], [20, 20, 24, 28]], np.float32),
        "box_classes": np.array([1, 2]),
        "mask_runs": as_runs(masks),
    }
    changes = BoxChanges({})
    flipped = changes.apply(row, {"flip_vertical": True})
    assert (from_runs(flipped["mask_runs"], 2, (32, 32)) == masks[:, ::-1]).all()
    cropped = changes.apply(row, {"crop": (0.5, 0.5, 0.25, 0.25)})  # the right lower quarter
    assert len(cropped["boxes"]) == 1
    (left,) = from_runs(cropped["mask_runs"], 1, (32, 32))
    assert left[8:24, 8:16].all()
    assert left.sum() == 16 * 8
    assert changes.picture(row) != changes.picture({**row, "mask_runs": as_runs(~masks)})


@pytest.mark.parametrize(
    ("masks", "code", "said"),
    [
        (lambda row: row["masks"][:-1], "SF201", "boxes and"),
        (lambda row: [[[1.0, 1, 2, 2]] for _ in row["masks"]], "SF208", "three corners"),
        (lambda row: [np.ones((9, 9), int).tolist() for _ in row["masks"]], "SF208", "[9, 9]"),
        (lambda row: [[[30.0, 30, 31, 30, 31, 31]] for _ in row["masks"]], "SF345", "no pixel"),
    ],
)
def test_masks_at_fault_are_named_with_their_row(masks: Any, code: str, said: str) -> None:
    rows = drawn(30)
    rows[3]["masks"] = masks(rows[3])
    plan = surefit.check(data=rows, model=Segments(), eval_share=0.1, quiet=True)
    (found,) = (each for each in plan.findings if each.code == code)
    assert said in found.message
    assert found.where["row"] == 3


def test_pixels_of_python_rows_are_masks() -> None:
    rows = drawn(6)
    plain = [{**row, "masks": pixels(row).astype(np.uint8)} for row in rows]
    plans = [surefit.check(data=each, model=Segments(), quiet=True) for each in (rows, plain)]
    runs = [plan.job.train.row(0)["mask_runs"].tolist() for plan in plans]
    assert runs[0] == runs[1]


def test_masks_of_another_shape_are_refused() -> None:
    class Small(Segments):
        def forward(self, images: Any, targets: Any = None) -> Any:
            made = super().forward(images, targets)
            if not self.training:
                for each in made:
                    each["masks"] = each["masks"][..., :8, :8]
            return made

    plan = surefit.check(data=drawn(12), model=Small(), quiet=True)
    assert any("returned masks of the shape" in found.message for found in plan.findings)
