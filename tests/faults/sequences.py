"""Faults of features and pictures: shapes, widths, values, files."""

from __future__ import annotations

from typing import Any

import numpy as np
from pictures import draw

from builders import feature_rows
from faults.case import Case, for_bert, for_vit
from faults.models import NET

CLASSES = np.arange(30) % 3
MLP = """
from torch import nn


def make(num_classes):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, num_classes))
"""
"""A module that reads vectors of 8 numbers."""


def convolution(channels: int) -> str:
    """A module that reads images of so many channels."""
    return f"""
from torch import nn


def make(num_classes):
    pooled = nn.AdaptiveMaxPool2d(2), nn.Flatten()
    return nn.Sequential(nn.Conv2d({channels}, 6, 3), *pooled, nn.Linear(24, num_classes))
"""


def values(*shape: int) -> Any:
    """Numbers in a shape."""
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def steps(place: int | None = None, **odd: Any) -> list[dict[str, Any]]:
    """Feature rows of width 4, one of them odd."""
    rows = [{**row, "features": row["features"].tolist()} for row in feature_rows(30)]
    if place is not None:
        rows[place] = {**rows[place], **odd}
    return rows


def arrays(*shape: int) -> dict[str, Any]:
    """Features of a shape, with classes."""
    return {"features": values(*shape), "label": CLASSES}


def with_value(value: float) -> dict[str, Any]:
    """Features with one value exchanged, in row 21."""
    made = arrays(30, 5, 4)
    made["features"][21, 3, 2] = value
    return made


def pictures(**more: Any) -> dict[str, Any]:
    """Folders of two classes of pictures, and what else is in them."""
    shapes = {f"d/{s}/{n}.png": draw(s, n) for s in ("disc", "frame") for n in range(10)}
    return {**shapes, **{f"d/{name.replace('__', '/')}.png": raw for name, raw in more.items()}}


ALL = "--set eval_share=0"
NOISE = np.random.default_rng(1).uniform(0, 1, (8, 8)).astype(np.float32)
IDS = np.random.default_rng(0).integers(0, 90_000, (30, 12))


def odd_row(title: str, features: Any) -> Case:
    """Feature rows, row 21 of which is odd."""
    rows = steps(21, features=features)
    return Case(title, rows, module=NET, row=21, column="features")


FEATURES = [
    odd_row("SF208 row of another width", [[1.0, 2.0, 3.0]]),
    odd_row("SF208 step that is missing", [[1.0, 2.0, 3.0, 4.0], None]),
    odd_row("SF207 value missing in a step", [[1.0, 2.0, None, 4.0]]),
    Case(
        "SF207 features that are not a number",
        {"a.npz": with_value(np.nan)},
        module=NET,
        row=21,
        column="features",
    ),
    Case(
        "row without steps",
        steps(21, features=[]),
        module=NET,
        options=ALL,
        row=21,
        note="dropped: ",
    ),
    Case(
        "SF201 mask of another length",
        [{**r, "mask": [1] * (len(r["features"]) + (n == 5))} for n, r in enumerate(steps())],
        module=NET,
        row=5,
        column="mask",
    ),
    Case(
        "mask of zeros",
        [{**r, "mask": [int(n != 5)] * len(r["features"])} for n, r in enumerate(steps())],
        module=NET,
        options=ALL,
        row=5,
        note="dropped: ",
    ),
    Case("SF420 flat features that can be read in one way", {"a.npz": arrays(30, 20)}, module=NET),
    for_bert(
        "SF421 flat features that can be read in many ways",
        {"a.npz": arrays(30, 24)},
        "--task feature-classification",
    ),
    Case(
        "SF208 flat features cut unevenly",
        {"a.npz": arrays(30, 20)},
        module=NET,
        options="--set features.steps=7",
    ),
    Case("SF420 axes exchanged", {"a.npz": arrays(30, 4, 7)}, module=NET),
    Case("SF420 stray axis", {"a.npz": arrays(30, 1, 7, 4)}, module=NET),
    Case("SF202 axis too many", {"a.npz": arrays(30, 2, 3, 4)}, module=NET),
    Case("SF433 features of another width than the model", {"a.npz": arrays(30, 5, 6)}, module=NET),
    Case(
        "SF209 whole numbers as features",
        {"a.npz": {"features": (values(30, 5, 4) * 9).astype(np.int64), "label": CLASSES}},
        module=NET,
    ),
    for_bert(
        "SF436 ids as features",
        {"a.npz": {"features": IDS, "label": CLASSES}},
        "--task feature-classification",
    ),
    Case(
        "SF106 shards of two widths",
        {"d/a.npz": arrays(30, 5, 4), "d/b.npz": arrays(30, 5, 6)},
        module=NET,
        data="d",
    ),
    Case(
        "SF106 shard with its axes exchanged",
        {"d/a.npz": arrays(30, 7, 4), "d/b.npz": arrays(30, 4, 7)},
        module=NET,
        data="d",
    ),
    Case("SF401 features without width", {"a.npz": arrays(30, 5, 0)}, module=NET),
    Case(
        "SF208 evaluation features of another width",
        {"a.npz": arrays(30, 5, 4), "e.npz": arrays(30, 5, 6)},
        module=NET,
        options="--eval-data e.npz",
        data="a.npz",
        row=0,
    ),
    Case(
        "SF205 classes as lists with a class twice",
        {"a.npz": {"features": values(30, 5, 4), "label": 2 * np.eye(3)[CLASSES]}},
        module=NET,
    ),
    Case(
        "SF208 vectors of another size than the module",
        {"a.npz": arrays(30, 12)},
        module=MLP,
        row=0,
        column="features",
    ),
    Case(
        "SF303 module with fewer outputs than targets",
        {"a.npz": {"features": values(30, 8), "label": values(30, 2)}},
        module=MLP.replace("16, num_classes", "16, 1"),
        options="--task regression",
    ),
    Case(
        "SF208 one vector of another size",
        [{"x": [0.5 + n] * (8 if n != 12 else 7), "y": n % 3} for n in range(30)],
        module=MLP,
        row=12,
        column="x",
    ),
    for_bert("SF762 features without a label", {"a.npy": values(30, 5, 8)}),
]
PICTURES = [
    for_vit("SF250 image of no bytes", pictures(disc__x=b""), ALL, data="d"),
    for_vit(
        "SF250 image that is not there",
        [{"image": f"d/{n}.png", "label": n % 2} for n in range(9)],
        ALL,
    ),
    Case(
        "SF256 module of two channels",
        {"a.npz": {"image": (values(30, 8, 8, 3) * 30 + 128).astype("uint8"), "label": CLASSES}},
        module=convolution(2),
        row=0,
        column="image",
    ),
    Case(
        "images of 12 bits as floats",
        {"a.npz": {"image": values(30, 8, 8) ** 2 * 900, "label": CLASSES}},
        module=convolution(1),
        note="have values from",
    ),
    Case(
        "normalised images",
        {"a.npz": {"image": values(30, 3, 8, 8), "label": CLASSES}},
        module=convolution(3),
        note="have values from",
    ),
    Case(
        "SF251 one image with negative values",
        {"a.npz": {"image": np.stack([NOISE - (n == 4) for n in range(30)]), "label": CLASSES}},
        module=convolution(1),
        options=ALL,
        row=4,
    ),
    for_vit(
        "SF256 array of two channels",
        {"a.npz": {"image": values(30, 8, 8, 2), "label": CLASSES}},
        f"--task image-classification {ALL}",
    ),
    for_vit(
        "SF251 pixels beyond 255",
        {"a.npz": {"image": (abs(values(30, 8, 8, 3)) * 900), "label": CLASSES}},
        f"--task image-classification {ALL}",
    ),
    for_bert("SF301 text model for images", pictures(), data="d"),
]
