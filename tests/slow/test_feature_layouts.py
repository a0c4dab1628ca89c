"""Real time series, saved in every way people save them: same rows, same accuracy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from surefit.cli import run as command
from surefit.data.open_data import open_table

pytestmark = pytest.mark.slow

Rows = list[np.ndarray]


def save_rows(path: Path, rows: Rows, labels: list[str]) -> str:
    """One array per row in one .npz."""
    np.savez(path, *rows, label=np.array(labels))
    return f"{path.name}"


def save_shards(path: Path, rows: Rows, labels: list[str]) -> str:
    """float64 shards, each with its labels beside it."""
    path.mkdir()
    for place, few in enumerate(np.array_split(np.arange(len(rows)), 3)):
        np.save(path / f"x_{place}.npy", np.stack([rows[at] for at in few]).astype(np.float64))
        np.save(path / f"y_{place}.npy", np.array([labels[at] for at in few]))
    return path.name


def save_ragged_shards(path: Path, rows: Rows, labels: list[str]) -> str:
    """float64 shards of ragged rows."""
    path.mkdir()
    for place, few in enumerate(np.array_split(np.arange(len(rows)), 3)):
        wide = [rows[at].astype(np.float64) for at in few]
        save_rows(path / f"{place}.npz", wide, [labels[at] for at in few])
    return path.name


Save = Callable[[Path, Rows, list[str]], str]


def flat(save: Save) -> Save:
    return lambda path, rows, labels: save(path, [row.reshape(-1) for row in rows], labels)


def transposed(save: Save) -> Save:
    return lambda path, rows, labels: save(path, [row.T for row in rows], labels)


def save_stacked(path: Path, rows: Rows, labels: list[str]) -> str:
    """One array of all rows, and one of their labels, in one .npz."""
    np.savez(path, features=np.stack(rows), label=np.array(labels))
    return path.name


def save_json(path: Path, rows: Rows, labels: list[str]) -> str:
    """One object per row, its features a flat list."""
    lines = [
        json.dumps({"features": row.tolist(), "label": label})
        for row, label in zip(rows, labels, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path.name


MOTIONS: dict[str, tuple[str, Save, tuple[str, ...]]] = {
    "flat": ("flat.npz", flat(save_stacked), ("--set", "features.steps=100")),
    "transposed": ("turned.npz", transposed(save_stacked), ("--set", "features.width=6")),
    "float64 shards": ("shards", save_shards, ()),
}
VOWELS: dict[str, tuple[str, Save, tuple[str, ...]]] = {
    "flat": ("flat.jsonl", flat(save_json), ("--set", "features.width=12")),
    "transposed": ("turned.npz", transposed(save_rows), ()),
    "float64 shards": ("shards", save_ragged_shards, ()),
}


@pytest.mark.parametrize(
    ("data", "forms", "options", "least"),
    [
        ("basic-motions/BasicMotions", MOTIONS, ("--epochs", "12", "--batch-size", "4"), 0.7),
        ("japanese-vowels/JapaneseVowels", VOWELS, ("--epochs", "6", "--batch-size", "16"), 0.7),
    ],
    ids=["basic-motions", "japanese-vowels"],
)
def test_every_way_of_saving_gives_the_same_accuracy(
    data: str,
    forms: dict[str, tuple[str, Save, tuple[str, ...]]],
    options: tuple[str, ...],
    least: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared: Path,
) -> None:
    train, test = (str(shared / "data" / f"{data}_{part}.ts") for part in ("TRAIN", "TEST"))
    common = ("--model", "tiny:bert", "--task", "feature-classification", *options)
    common += ("--set", "eval_share=0")

    monkeypatch.chdir(tmp_path)

    def accuracy(name: str, given: str, *more: str) -> Any:
        assert command(["train", "--data", given, *common, *more, "--output", name]) == 0
        # the test rows are always those of the .ts file, however the training rows lay
        return surefit.evaluate(name, test)["accuracy"]

    expected = accuracy("as-it-is", train)
    assert expected >= least
    opened = list(open_table(train).rows())
    rows, labels = [row["features"] for row in opened], [row["label"] for row in opened]
    for form, (name, save, more) in forms.items():
        given = save(tmp_path / name, rows, labels)
        assert accuracy(form.replace(" ", "-"), given, *more) == expected, form
