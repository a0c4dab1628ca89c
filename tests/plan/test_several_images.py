"""Several images or recordings per row: each is read as the first is, in every command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import surefit
from surefit.data.cell_files import is_class_map
from surefit.data.open_data import open_table
from surefit.errors import FindingError

RANDOM = np.random.default_rng(0)
LEFT = RANDOM.integers(0, 256, (48, 3, 8, 8)).astype("uint8")
RIGHT = RANDOM.integers(0, 120, (48, 3, 8, 8)).astype("uint8")
SAME = np.arange(48) % 2
RIGHT[SAME == 1] = LEFT[SAME == 1]
ROWS = [{"left": a, "right": b, "label": int(c)} for a, b, c in zip(LEFT, RIGHT, SAME, strict=True)]


class Siamese(nn.Module):
    """One tower for both images."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(256, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.head((self.tower(left) - self.tower(right)).abs())


class Free(Siamese):
    """Arguments that are named as no column."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return super().forward(a, b)


class Whatever(Siamese):
    """Whatever a batch has."""

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        return super().forward(batch["pixel_values"], batch["right"])


def codes(plan: Any) -> list[str]:
    return [found.code for found in plan.findings]


def stored(plan: Any, column: str) -> np.ndarray[Any, Any]:
    """The encoded images of the training rows, in the order of the data."""
    train = plan.job.train
    return np.stack([train.value(column, place) for place in range(len(train))])


def assert_alike(plan: Any, second: str = "right") -> None:
    """Rows that show one image twice have it twice, to the bit; all values are standardised."""
    assert plan.ok, [found.message for found in plan.findings if found.severity == "error"]
    one, other = stored(plan, "pixel_values"), stored(plan, second)
    same = SAME[plan.job.train.source_row] == 1
    assert np.array_equal(one[same], other[same])
    assert not np.array_equal(one[~same], other[~same])
    both = np.concatenate([one, other])
    assert abs(both.mean()) < 0.05
    assert abs(both.std() - 1) < 0.05


@pytest.mark.parametrize("kind", ["uint8", "float", "tuples", "files"])
def test_two_images_are_read_alike(kind: str, tmp_path: Path) -> None:
    data: Any = ROWS
    second = "right"
    if kind == "float":
        data = [{**r, "left": r["left"] / 255, "right": r["right"] / 255} for r in ROWS]
    if kind == "tuples":
        data, second = [(r["left"], r["right"], r["label"]) for r in ROWS], "column_1"
    if kind == "files":
        lines = ["left,right,same"]
        for number, row in enumerate(ROWS):
            for side in ("left", "right"):
                image = Image.fromarray(row[side].transpose(1, 2, 0))
                image.save(tmp_path / f"{side}{number}.png")
            lines.append(f"left{number}.png,right{number}.png,{'yes' if row['label'] else 'no'}")
        (tmp_path / "pairs.csv").write_text("\n".join(lines))
        data = str(tmp_path / "pairs.csv")
    plan = surefit.check(data=data, model=Siamese())
    assert plan.task.name == "image-classification"
    assert_alike(plan, second)
    roles = [role for role in plan.columns.values() if role == "image"]
    assert len(roles) == 2
    (how,) = (note for note in plan.notes if "are read as [" in note)
    assert "columns" in how


def test_a_run_is_evaluated_and_predicted_with_both_images(tmp_path: Path) -> None:
    run = surefit.train(
        data=ROWS, model=Siamese(), epochs=1, max_steps=2, output=tmp_path / "run", lr=0.01
    )
    figures = surefit.evaluate(run, ROWS)
    unlabelled = [{"right": row["right"], "left": row["left"]} for row in ROWS]
    made = [one["prediction"] for one in surefit.predict(run, unlabelled)]
    assert figures["accuracy"] == pytest.approx(np.mean(np.array(made) == SAME))
    with pytest.raises(FindingError, match=r"no column 'right' \(image\)"):
        surefit.predict(run, [{"left": LEFT[0]}])
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "[left, right]" in config


def test_columns_of_their_own_size_and_channels() -> None:
    class Depth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.colour, self.depth = nn.Conv2d(3, 2, 3), nn.Conv2d(1, 2, 3)

        def forward(self, rgb: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
            return self.colour(rgb).mean((2, 3)) + self.depth(depth).mean((2, 3))

    depth = RANDOM.uniform(3, 9, (48, 1, 6, 5)).astype("float32")
    rows = [
        {"rgb": a, "depth": d, "label": n % 2}
        for n, (a, d) in enumerate(zip(LEFT, depth, strict=True))
    ]
    plan = surefit.check(data=rows, model=Depth())
    assert stored(plan, "pixel_values").shape[1:] == (3, 8, 8)
    assert stored(plan, "depth").shape[1:] == (1, 6, 5)
    assert abs(stored(plan, "depth").mean()) < 0.05


def test_masks_stay_masks() -> None:
    class Change(nn.Module):
        """Concatenates two images: its first layer reads six channels."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(6, 2, 3, padding=1)

        def forward(self, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.cat([before, after], 1))

    masks = (LEFT[:, 0] > RIGHT[:, 0]).astype("uint8")
    rows = [
        {"before": a, "after": b, "mask": m} for a, b, m in zip(LEFT, RIGHT, masks, strict=True)
    ]
    plan = surefit.check(data=rows, model=Change())
    assert plan.task.name == "image-segmentation"
    assert plan.columns == {"before": "image", "after": "image", "mask": "label"}
    table = open_table(rows)
    assert is_class_map(table, "mask")
    assert not is_class_map(table, "after")


def test_an_image_is_never_passed_on_raw() -> None:
    named = {"task": "image-classification", "columns": {"image": "left", "label": "label"}}
    assert "SF127" in codes(surefit.check(data=ROWS, model=Whatever(), **named))
    plan = surefit.check(data=ROWS, model=Free(), **named)
    (found,) = (each for each in plan.findings if each.severity == "error")
    assert "left, right" in found.fix
    listed = {"columns": {"image": ["left", "right"]}}
    assert_alike(surefit.check(data=ROWS, model=Whatever(), **listed))
    assert_alike(surefit.check(data=ROWS, model=Free(), **listed))


def test_augmentation_changes_both_images_alike() -> None:
    changes = {"flip": 0.5, "crop": 0.5, "brightness": 0.3, "erase": 0.2}
    plan = surefit.check(data=ROWS, model=Siamese(), image={"augment": changes})
    rows = plan.job.augment.in_epoch(0).rows(range(12))
    for place, row in enumerate(rows):
        if SAME[plan.job.train.source_row[place]]:
            assert np.array_equal(row["pixel_values"], row["right"])
            assert not np.array_equal(row["right"], plan.job.train.value("right", place))
    mixed = surefit.check(
        data=ROWS, model=Siamese(), image={"augment": {"cutmix": 1.0}}
    ).job.augment
    partners = [(place, mixed.drawn(place, 0)["partner"]) for place in range(20)]
    same = SAME[plan.job.train.source_row] == 1
    both = next(place for place, partner in partners if same[place] and same[partner])
    row = mixed.row(both, 0)
    assert np.array_equal(row["pixel_values"], row["right"])


def test_two_recordings_are_read_alike() -> None:
    pytest.importorskip("soundfile")

    class Voices(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 2)

        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            made = [self.tower(each).mean((2, 3)) for each in (first, second)]
            return self.head((made[0] - made[1]).abs())

    sounds = RANDOM.normal(0, 0.1, (24, 1600)).astype("float32")
    rows = [
        {
            "first": {"array": sounds[n], "sampling_rate": 8000},
            "second": {"array": sounds[n if n % 2 else n - 1], "sampling_rate": 8000},
            "label": n % 2,
        }
        for n in range(24)
    ]
    plan = surefit.check(data=rows, model=Voices())
    assert plan.ok
    assert plan.columns == {"first": "audio", "second": "audio", "label": "label"}
    train = plan.job.train
    for place in range(len(train)):
        one, other = train.value("input_values", place), train.value("second", place)
        assert np.array_equal(one, other) == bool(train.source_row[place] % 2)
