"""detection: squares and discs with known boxes; a plain loop and pycocotools are the truth."""

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
from PIL import Image

import surefit
from surefit.data.open_data import open_table, validation_of
from surefit.inputs.image.image_changes import move_boxes
from surefit.targets.boxes import BoxSample
from surefit.targets.detected_objects import average_precisions, count_matches

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import grid_detector

SIDE = 32
NAMES = ("disc", "square")


def shapes(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Images of 32 × 32 with up to two objects; every fifth has none."""
    rng, rows = np.random.default_rng(seed), []
    for number in range(count):
        pixels = rng.integers(0, 60, (SIDE, SIDE, 3)).astype(np.uint8)
        boxes, labels = [], []
        for place in rng.permutation(4)[: 0 if number % 5 == 4 else rng.integers(1, 3)]:
            width, height = rng.integers(7, 13, 2)
            x, y = place % 2 * 16 + rng.integers(1, 3), place // 2 * 16 + rng.integers(1, 3)
            down, right = (
                np.mgrid[:height, :width] - (np.array([height, width]) - 1)[:, None, None] / 2
            )
            kind = int(rng.integers(2))
            inside = (down / height) ** 2 + (right / width) ** 2 < (0.25, 9)[kind]
            pixels[y : y + height, x : x + width][inside] = ((40, 250, 40), (250, 40, 40))[kind]
            boxes.append([int(n) for n in (x, y, x + width, y + height)])
            labels.append(NAMES[kind])
        rows.append({"image": pixels, "boxes": boxes, "labels": labels})
    return rows


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    written = []
    for number, row in enumerate(rows):
        Image.fromarray(row["image"]).save(folder / f"{number}.png")
        written.append({**row, "image": f"{number}.png"})
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, written)))
    return path


def plain_batch(rows: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """What a plain loop gives a module of torchvision's convention."""
    images = [torch.from_numpy(row["image"]).permute(2, 0, 1).float() / 255 for row in rows]
    targets = [
        {
            "boxes": torch.tensor(row["boxes"], dtype=torch.float32).reshape(-1, 4),
            "labels": torch.tensor([NAMES.index(n) + 1 for n in row["labels"]], dtype=torch.long),
        }
        for row in rows
    ]
    return images, targets


def coco_figures(found: list[Any], targets: list[Any]) -> tuple[float, float]:
    """The mean average precision of pycocotools, over all thresholds and at 0.50."""
    coco = pytest.importorskip("pycocotools.coco")
    from pycocotools.cocoeval import COCOeval

    def corner_and_size(box: Any) -> list[float]:
        x, y, right, lower = map(float, box)
        return [x, y, right - x, lower - y]

    boxes = [
        {"image_id": n, "category_id": int(label), "bbox": corner_and_size(box), "iscrowd": 0}
        for n, each in enumerate(targets)
        for box, label in zip(each["boxes"], each["labels"], strict=True)
    ]
    boxes = [{**b, "id": n + 1, "area": b["bbox"][2] * b["bbox"][3]} for n, b in enumerate(boxes)]
    made = [
        {
            "image_id": n,
            "category_id": int(label),
            "bbox": corner_and_size(box),
            "score": float(score),
        }
        for n, each in enumerate(found)
        for box, label, score in zip(each["boxes"], each["labels"], each["scores"], strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        classes = {box["category_id"] for box in boxes}
        truth.dataset = {
            "images": [{"id": n} for n in range(len(targets))],
            "annotations": boxes,
            "categories": [{"id": n} for n in classes],
        }
        truth.createIndex()
        judged = COCOeval(truth, truth.loadRes(made), "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return float(judged.stats[0]), float(judged.stats[1])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_average_precision_is_that_of_pycocotools(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found, true = [], []
    for _ in range(40):
        count = int(rng.integers(0, 6))
        start = rng.uniform(0, 80, (count, 2))
        boxes = np.concatenate([start, start + rng.uniform(8, 20, (count, 2))], 1)
        labels = rng.integers(1, 4, count)
        guess = np.concatenate([boxes + rng.normal(0, 1.5, boxes.shape), boxes[:2] + 30])
        own = np.concatenate([labels, labels[:2]])
        true.append({"boxes": torch.tensor(boxes), "labels": torch.tensor(labels)})
        found.append(
            {
                "boxes": torch.tensor(guess),
                "labels": torch.tensor(own),
                "scores": torch.tensor(rng.uniform(size=len(own))),
            }
        )
    parts = [count_matches(found[n : n + 7], true[n : n + 7], 3) for n in range(0, 40, 7)]
    by_class, error = average_precisions({k: sum(p[k] for p in parts) for k in parts[0]})
    wanted = coco_figures(found, true)
    assert 0.1 < wanted[0] < 0.9
    assert abs(float(by_class.mean()) - wanted[0]) <= float(error.mean()) + 1e-9
    assert abs(float(by_class[:, 0].mean()) - wanted[1]) <= float(error[:, 0].mean()) + 1e-9
    assert float(error.mean()) < 2e-3


def test_losses_and_figures_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    rows, held = shapes(12), shapes(8, seed=1)
    run = surefit.train(
        data=str(write_rows(tmp_path / "train", rows)),
        eval_data=str(write_rows(tmp_path / "held", held)),
        model="grid_detector:make", epochs=40, batch_size=12, lr=0.01, optimizer="adamw",
        schedule="constant", warmup=0.0, weight_decay=0.0, clip=0,
        output=str(tmp_path / "run"), quiet=True,
    )  # fmt: skip
    assert run.plan["task"] == "detection"
    module = grid_detector.make(3)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.0)
    images, targets = plain_batch(rows)
    plain = []
    for _ in range(40):
        losses = module.train()(images, targets)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        plain.append({name: loss.item() for name, loss in losses.items()})
    steps = [each for each in run.history if each["event"] == "step"]
    assert [s["loss"] for s in steps] == pytest.approx([sum(p.values()) for p in plain], rel=1e-3)
    assert steps[0]["loss_boxes"] == pytest.approx(plain[0]["loss_boxes"], rel=1e-4)

    trained = surefit.load(run).eval()
    images, targets = plain_batch(held)
    with torch.no_grad():
        found = trained(images)
        loss = sum(trained.train()(images, targets).values()).item()
    figures = surefit.evaluate(run, str(tmp_path / "held" / "rows.jsonl"))
    assert figures["loss"] == pytest.approx(loss, rel=1e-5)
    wanted = coco_figures(found, targets)
    assert wanted[1] > 0.02
    assert figures["map"] == pytest.approx(wanted[0], abs=figures["map_bin_error"] + 1e-6)
    made = [*surefit.predict(run, [{"image": row["image"]} for row in held])]
    best = found[0]["scores"].argmax()
    assert made[0]["prediction"][0]["box"] == pytest.approx(found[0]["boxes"][best].tolist())
    assert made[0]["prediction"][0]["label"] == NAMES[int(found[0]["labels"][best]) - 1]
    assert "with a score from" in run.report_path.read_text("utf-8")


def check(rows: list[dict[str, Any]], **options: Any) -> Any:
    return surefit.check(data=rows, model=grid_detector.make(3), task="detection", **options)


@pytest.mark.parametrize(
    ("code", "row", "changes", "said"),
    [
        ("SF340", 3, {"boxes": [[20, 4, 9, 12]], "labels": ["disc"]}, "not right of"),
        ("SF341", 2, {"boxes": [[40, 4, 50, 12]], "labels": ["disc"]}, "32 × 32"),
        ("SF342", 2, {"boxes": [[20, 4, 40, 12]], "labels": ["disc"]}, "clipped"),
        ("SF343", 2, {"boxes": [[2, 4, 9, 12]] * 2, "labels": ["disc"] * 2}, "twice"),
        ("SF201", 2, {"boxes": [[2, 4, 9, 12]], "labels": ["disc"] * 2}, "1 boxes and 2 classes"),
    ],
)
def test_boxes_at_fault_are_named_with_their_row(
    code: str, row: int, changes: dict[str, Any], said: str
) -> None:
    rows = shapes(40)
    rows[row] |= changes
    plan = check(rows, eval_share=0.1)
    found = [each for each in plan.findings if each.code == code]
    assert found, [(each.code, each.message) for each in plan.findings]
    assert said in found[0].message
    assert found[0].where["row"] == row


def test_rows_without_any_box_are_refused() -> None:
    plan = check([{**row, "boxes": [], "labels": []} for row in shapes(8)])
    assert [each.code for each in plan.findings if each.severity == "error"] == ["SF344"]


def test_changes_that_boxes_cannot_follow_are_refused() -> None:
    with pytest.raises(surefit.UsageError, match="box around a turned box"):
        check(shapes(8), image={"augment": {"rotate": 10}})


def test_boxes_follow_flips_and_crops() -> None:
    boxes = np.array([[0.0, 0, 4, 8], [20, 20, 24, 28]], np.float32)
    assert move_boxes(boxes, (32, 32), {"flip_vertical": True})[0][0].tolist() == [0, 24, 4, 32]
    # The right lower quarter, which is half as wide and high: the first box is left out.
    moved, kept = move_boxes(boxes, (32, 32), {"crop": (0.5, 0.5, 0.25, 0.25)})
    assert (moved.tolist(), kept.tolist()) == ([[8, 8, 16, 24]], [False, True])


@pytest.mark.parametrize(
    ("column", "boxes", "form"),
    [
        ("boxes", [[1, 2, 9, 8], [3, 3, 8, 9]], ("xyxy", False)),
        ("boxes", [[20, 20, 9, 8], [3, 30, 8, 9]], ("xywh", False)),
        ("bbox", [[0.5, 0.5, 0.9, 0.8], [0.3, 0.9, 0.1, 0.1]], ("cxcywh", True)),
        ("boxes_xywh", [[1, 2, 9, 8]], ("xywh", False)),
    ],
)
def test_the_format_of_boxes_is_inferred(column: str, boxes: Any, form: tuple[str, bool]) -> None:
    sample = BoxSample(column)
    sample.add(np.array(boxes, np.float64))
    assert (sample.fitted().order, sample.fitted().relative) == form


def test_coco_and_yolo_folders_have_the_same_boxes(tmp_path: Path) -> None:
    rows = shapes(6)
    coco, yolo = tmp_path / "coco", tmp_path / "yolo"
    (coco / "annotations").mkdir(parents=True)
    for part, chosen in (("train", rows[:4]), ("val", rows[4:])):
        places = (coco / f"{part}2017", yolo / "images" / part, yolo / "labels" / part)
        for place in places:
            place.mkdir(parents=True)
        annotations = []
        for number, row in enumerate(chosen):
            lines = []
            for place in places[:2]:
                Image.fromarray(row["image"]).save(place / f"{number}.png")
            for (x, y, right, lower), name in zip(row["boxes"], row["labels"], strict=True):
                box, category = [x, y, right - x, lower - y], NAMES.index(name)
                held = {"image_id": number, "category_id": 7 + category, "bbox": box}
                annotations.append({"id": len(annotations), **held})
                middle = (x + right) / 2 / SIDE, (y + lower) / 2 / SIDE
                lines.append(f"{category} {middle[0]} {middle[1]} {box[2] / SIDE} {box[3] / SIDE}")
            if lines:
                (places[2] / f"{number}.txt").write_text("\n".join(lines))
        images = [{"id": n, "file_name": f"{n}.png"} for n in range(len(chosen))]
        classes = [{"id": 7 + n, "name": name} for n, name in enumerate(NAMES)]
        content = {"images": images, "annotations": annotations, "categories": classes}
        (coco / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(content))
    (yolo / "data.yaml").write_text("names: [disc, square]\n")
    for folder, column in ((coco, "boxes_xywh"), (yolo, "boxes_cxcywh")):
        table = open_table(folder)
        assert table.num_rows == 4
        assert len(validation_of([folder])) == 1
        for read, row in zip(table.rows(), rows, strict=False):
            boxes = np.array(read[column]).reshape(-1, 4)
            if column == "boxes_xywh":
                corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
            else:
                half = boxes[:, 2:] / 2
                corners = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1) * SIDE
            assert corners.tolist() == pytest.approx(np.array(row["boxes"]).reshape(-1, 4))
            assert list(read["labels"]) == row["labels"]
    (yolo / "labels" / "train" / "0.txt").write_text("5 0.5 0.5 0.1 0.1\n")
    with pytest.raises(surefit.FindingError, match=r"0.txt, line 1: the class 5 has no name"):
        open_table(yolo)


def test_boxes_of_another_format_are_not_read_as_those_of_the_run(tmp_path: Path) -> None:
    rows = [{"image": row["image"], "labels": ["disc"]} for row in shapes(6)]
    given, other = (
        [{**row, f"boxes_{end}": [[1, 1, 5, 6]]} for row in rows] for end in ("xywh", "cxcywh")
    )
    found = check(given, eval_data=other).findings
    (mixed,) = (each for each in found if each.severity == "error")
    assert mixed.code == "SF141"
    assert "has 'boxes_cxcywh', and boxes is 'boxes_xywh'" in mixed.message
