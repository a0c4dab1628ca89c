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


def grouped(name: str, code: str, files: Any, options: str = "") -> Case:
    """Texts that are split by patient."""
    return for_bert(name, code, files, f"{options}--set split.by=patient", column="patient")


CASES = [
    for_bert(
        "only validation and test files",
        "SF170",
        {"d/val.jsonl": sentiment_rows(20), "d/test.jsonl": sentiment_rows(20, 1)},
        data="d",
    ),
    for_bert(
        "test file among the training files",
        "SF171",
        {"train.jsonl": sentiment_rows(20), "test.jsonl": sentiment_rows(20, 1)},
        data="train.jsonl test.jsonl",
    ),
    evaluated(
        "class without validation rows",
        "SF185",
        sentiment_rows(60),
        [row for row in prose(80, 3) if row["label"] == "bad"],
    ),
    evaluated(
        "classes with other shares in validation",
        "SF185",
        prose(80),
        [r for n, r in enumerate(prose(160, 3)) if r["label"] == "bad" or n < 12],
    ),
    grouped(
        "groups in both sets",
        "SF188",
        {
            "a.jsonl": [{**row, "patient": n % 9} for n, row in enumerate(prose(40))],
            "e.jsonl": [{**row, "patient": 5 + n % 9} for n, row in enumerate(prose(30, 1))],
        },
        "--eval-data e.jsonl ",
    ),
    grouped("one group only", "SF186", [{**row, "patient": 1} for row in prose(30)]),
    grouped("groups by a column that is not there", "SF202", prose(30)),
    for_vit(
        "class folders of validation and test images",
        "SF170",
        {**drawn("d/val"), **drawn("d/test", 50)},
        data="d",
    ),
    for_vit(
        "test images among the training images",
        "SF171",
        {**drawn("d/train"), **drawn("d/test", 50)},
        data="d/train d/test",
    ),
    for_vit(
        "validation images that are training images in another format",
        "SF210",
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
    grouped("groups that no row has", "SF186", [{**row, "patient": None} for row in prose(30)]),
    for_mlp(
        "groups written as numbers and as text",
        "SF188",
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
        None,
        {f"d/{part}.jsonl": prose(40, n) for n, part in enumerate(("train", "val", "test"))},
        data="d",
        also=("has official splits",),
    ),
    for_bert(
        "class folders of texts with official splits",
        None,
        {
            f"d/{part}/{row['label']}/{n}.txt": row["text"]
            for part, seed in (("train", 0), ("test", 1))
            for n, row in enumerate(prose(30, seed))
        },
        data="d",
        also=("has official splits",),
    ),
    evaluated("few validation rows of few classes", None, prose(60), prose(12, 5)),
    for_bert(
        "rows split by group",
        None,
        [{**row, "patient": n % 9} for n, row in enumerate(prose(60))],
        "--set split.by=patient",
        also=("(split.by)",),
    ),
    for_vit("test images alone", None, drawn("d/test"), data="d"),
    for_vit(
        "images split by group",
        None,
        {"a.npz": {**images(60, lambda n: n % 3), "site": np.arange(60) % 8}},
        "--set split.by=site",
        also=("(split.by)",),
    ),
    Case(
        "groups of one set alone",
        None,
        {
            "a.jsonl": said_by(40, 6),
            "e.jsonl": [{**row, "speaker": "new"} for row in said_by(20, 4, 1)],
        },
        options="--eval-data e.jsonl --set split.by=speaker",
    ),
    for_bert(
        "files about tests",
        None,
        {"tests.jsonl": prose(40), "contest.jsonl": prose(40, 1)},
        data="tests.jsonl contest.jsonl",
    ),
]
