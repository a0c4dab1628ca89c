"""Training, validation and test rows: official splits, groups, and classes that differ."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from pictures import draw
from PIL import Image

from builders import sentiment_rows
from faults.case import Case, evaluated, for_bert, for_mlp, for_vit
from faults.misread import measured, prose

FORECAST = "--task forecasting --set forecast.time=day --set forecast.history=8"
FORECAST += " --set forecast.horizon=2"
FLAT = (
    "from torch import nn\n\n\ndef make(n):\n"
    "    return nn.Sequential(nn.Flatten(), nn.Linear(8, n))\n"
)
TO_KIND = "--task tabular-classification --set columns.label=kind"


def images(count: int, label: Any, seed: int = 0) -> dict[str, Any]:
    """Arrays of images with a label by row number."""
    pixels = np.random.default_rng(seed).integers(0, 255, (count, 8, 8), dtype=np.uint8)
    return {"image": pixels, "label": np.array([label(n) for n in range(count)])}


def drawn(folder: str, first: int = 0) -> dict[str, Any]:
    """A folder of class folders with images."""
    return {
        f"{folder}/{shape}/{n}.png": draw(shape, first + n, 16, 16)
        for shape in ("disc", "frame")
        for n in range(8)
    }


def saved(pixels: Any, kind: str, **options: Any) -> bytes:
    """The file of an image."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def csv(rows: list[dict[str, Any]]) -> str:
    """A table with a header."""
    lines = [rows[0].keys(), *(row.values() for row in rows)]
    return "".join(",".join(str(cell) for cell in line) + "\n" for line in lines)


def said_by(count: int, speakers: int, seed: int = 0) -> list[dict[str, Any]]:
    """Prompts and answers with their speaker."""
    return [
        {"prompt": row["text"], "completion": row["label"], "speaker": f"s{n % speakers}"}
        for n, row in enumerate(prose(count, seed))
    ]


def grouped(title: str, files: Any, options: str = "") -> Case:
    """Texts that are split by patient."""
    return for_bert(title, files, f"{options}--set split.by=patient", column="patient")


CASES = [
    for_bert(
        "SF170 only validation and test files",
        {"d/val.jsonl": sentiment_rows(20), "d/test.jsonl": sentiment_rows(20, 1)},
        data="d",
    ),
    for_bert(
        "SF171 test file among the training files",
        {"train.jsonl": sentiment_rows(20), "test.jsonl": sentiment_rows(20, 1)},
        data="train.jsonl test.jsonl",
    ),
    evaluated(
        "SF185 class without validation rows",
        sentiment_rows(60),
        [row for row in prose(80, 3) if row["label"] == "bad"],
    ),
    evaluated(
        "SF185 classes with other shares in validation",
        prose(80),
        [r for n, r in enumerate(prose(160, 3)) if r["label"] == "bad" or n < 12],
    ),
    grouped(
        "SF188 groups in both sets",
        {
            "a.jsonl": [{**row, "patient": n % 9} for n, row in enumerate(prose(40))],
            "e.jsonl": [{**row, "patient": 5 + n % 9} for n, row in enumerate(prose(30, 1))],
        },
        "--eval-data e.jsonl ",
    ),
    grouped("SF186 one group only", [{**row, "patient": 1} for row in prose(30)]),
    grouped("SF202 groups by a column that is not there", prose(30)),
    for_vit(
        "SF170 class folders of validation and test images",
        {**drawn("d/val"), **drawn("d/test", 50)},
        data="d",
    ),
    for_vit(
        "SF171 test images among the training images",
        {**drawn("d/train"), **drawn("d/test", 50)},
        data="d/train d/test",
    ),
    for_vit(
        "SF210 validation images that are training images in another format",
        {
            **drawn("d"),
            **{
                path.replace("d/", "e/", 1).replace(".png", ".bmp"): saved(pixels, "BMP")
                for path, pixels in drawn("d").items()
            },
        },
        "--eval-data e",
        data="d",
    ),
    grouped("SF186 groups that no row has", [{**row, "patient": None} for row in prose(30)]),
    for_bert(
        "SF189 patients with one class each",
        [
            {**row, "patient": n // 6}
            for n, row in enumerate(sorted(prose(60), key=lambda row: row["label"]))
        ],
        column="patient",
    ),
    for_mlp(
        "SF190 demand that follows the day before",
        {
            "a.csv": csv(
                [
                    {
                        "day": f"2024-{1 + n // 28:02d}-{1 + n % 28:02d}",
                        "wind": n * 13 % 29,
                        "label": n * 7 % 3 + n / 4,
                    }
                    for n in range(90)
                ]
            )
        },
        "--task regression",
        column="day",
    ),
    Case(
        "SF192 series that nothing tells apart",
        {"a.csv": csv([{"day": n // 2, "sales": n * 7 % 11} for n in range(80)])},
        options=FORECAST,
        module=FLAT,
        row=1,
        column="day",
    ),
    Case(
        "SF193 a series with days missing",
        {"a.csv": csv([{"day": n, "sales": n * 7 % 11} for n in range(120) if n % 40 != 7])},
        options=FORECAST,
        module=FLAT,
        column="day",
    ),
    Case(
        "SF196 windows that share steps",
        [{"x": [(n + k) ** 2 % 37 for k in range(8)], "label": n * 7 % 2} for n in range(60)],
        module=FLAT,
        column="x",
    ),
    for_mlp(
        "SF198 two columns that may be the target",
        {"a.csv": csv(measured(target=lambda n, kind: n * 7 % 3, rating=lambda n, kind: n % 2))},
        column="target",
    ),
    for_mlp(
        "SF188 groups written as numbers and as text",
        {
            "a.csv": csv(measured(site=lambda n, kind: n % 9)),
            "e.jsonl": [
                {**row, "size": row["size"] + 30}
                for row in measured(site=lambda n, kind: str(n % 5))
            ],
        },
        f"{TO_KIND} --eval-data e.jsonl --set split.by=site",
        column="site",
    ),
]

HEALTHY = [
    for_bert(
        "training, validation and test files in a folder",
        {f"d/{part}.jsonl": prose(40, n) for n, part in enumerate(("train", "val", "test"))},
        data="d",
        also=("has official splits",),
    ),
    for_bert(
        "class folders of texts with official splits",
        {
            f"d/{part}/{row['label']}/{n}.txt": row["text"]
            for part, seed in (("train", 0), ("test", 1))
            for n, row in enumerate(prose(30, seed))
        },
        data="d",
        also=("has official splits",),
    ),
    evaluated("not SF185: few validation rows of few classes", prose(60), prose(12, 5)),
    for_bert(
        "not SF186: rows split by group",
        [{**row, "patient": n % 9} for n, row in enumerate(prose(60))],
        "--set split.by=patient",
        also=("(split.by)",),
    ),
    for_bert(
        "not SF138: rows split by a column of parts",
        [
            {**row, "split": ("train", "train", "dev", "test")[n % 4]}
            for n, row in enumerate(prose(60))
        ],
        also=("Column 'split' divides the rows",),
    ),
    for_bert(
        "the latest rows in validation, after a gap",
        [{**row, "day": f"2024-03-{1 + n % 28:02d}"} for n, row in enumerate(prose(60))],
        "--set split.time=day --set split.gap=2d",
        also=("(split.time), from 2024-03-",),
    ),
    for_mlp(
        "not SF189: customers with rows of both classes",
        {
            "a.csv": csv(
                [
                    {"size": n * 13 % 29, "customer": n // 6, "kind": "ab"[n * 7 % 3 == 0]}
                    for n in range(90)
                ]
            )
        },
        TO_KIND,
    ),
    for_vit("not SF170: test images alone", drawn("d/test"), data="d"),
    for_vit(
        "images split by group",
        {"a.npz": {**images(60, lambda n: n % 3), "site": np.arange(60) % 8}},
        "--set split.by=site",
        also=("(split.by)",),
    ),
    Case(
        "not SF188: groups of one set alone",
        {
            "a.jsonl": said_by(40, 6),
            "e.jsonl": [{**row, "speaker": "new"} for row in said_by(20, 4, 1)],
        },
        options="--eval-data e.jsonl --set split.by=speaker",
    ),
    for_bert(
        "not SF171: files about tests",
        {"tests.jsonl": prose(40), "contest.jsonl": prose(40, 1)},
        data="tests.jsonl contest.jsonl",
    ),
]
