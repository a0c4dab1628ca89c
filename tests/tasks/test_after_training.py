"""Every task: `evaluate`, `predict` and `export`; the export predicts the same without surefit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import SHAPES, draw, write_discs, write_png
from plain_transformers import (
    continued,
    filled_masks,
    load_plain,
    picture_classes,
    spoken_classes,
    text_classes,
    text_numbers,
    word_tags,
)
from safetensors.torch import load_file
from tones import write_tones

import surefit
from builders import WORDS, echo_rows, feature_rows, save_ragged, sentiment_rows, write_jsonl
from surefit.cli import run as command
from surefit.tasks import TASKS

Answers = list[Any]
NEW_TOKENS = 8
"""Few: two tokens that are equally likely but for rounding are chosen between by the CPU."""


def write_texts(folder: Path) -> None:
    write_jsonl(folder / "rows.jsonl", ({"text": row["prompt"]} for row in echo_rows(24)))


def write_masked(folder: Path) -> None:
    write_texts(folder)
    write_jsonl(folder / "asked.jsonl", [{"text": "red [MASK] cat"}, {"text": "[MASK] sun"}])


def write_answers(folder: Path) -> None:
    write_jsonl(folder / "rows.jsonl", echo_rows(24))


def write_pairs(folder: Path) -> None:
    pairs = [{"source": r["prompt"], "target": r["completion"]} for r in echo_rows(24)]
    write_jsonl(folder / "rows.jsonl", pairs)


def write_classes(folder: Path) -> None:
    write_jsonl(folder / "rows.jsonl", sentiment_rows(24))


def write_scores(folder: Path) -> None:
    rows = [{"text": row["prompt"], "label": len(row["prompt"]) / 3} for row in echo_rows(24)]
    write_jsonl(folder / "rows.jsonl", rows)


def write_tags(folder: Path) -> None:
    rows = [row["prompt"].split() for row in echo_rows(24)]
    tagged = ({"tokens": r, "tags": [f"B-{w[0]}" for w in r]} for r in rows)
    write_jsonl(folder / "rows.jsonl", tagged)


def write_table(folder: Path) -> None:
    rows = [{"a": n % 7, "b": WORDS[n % 3], "label": "xy"[n % 7 > 3]} for n in range(40)]
    write_jsonl(folder / "rows.jsonl", rows)


def write_pictures(folder: Path) -> None:
    for n in range(18):
        write_png(folder / "rows" / SHAPES[n % 3] / f"{n:02}.png", draw(SHAPES[n % 3], n))


def write_sounds(folder: Path) -> None:
    write_tones(folder / "rows", 18)


def write_masks(folder: Path) -> None:
    write_discs(folder / "rows", 18)


def write_features(folder: Path) -> None:
    save_ragged(folder / "rows.npz", feature_rows(24))


def rows_of(folder: Path, name: str = "rows.jsonl") -> list[Any]:
    return [json.loads(line) for line in (folder.parent / name).open()]


def pictures_of(folder: Path) -> list[Path]:
    files = (folder.parent / "rows").glob("*/*.png")
    return sorted(files, key=lambda path: (path.parent.name, path.name))


def sounds_of(folder: Path) -> list[Path]:
    files = (path for path in (folder.parent / "rows").glob("*/*") if path.is_file())
    return sorted(files, key=lambda path: (path.parent.name, path.name))


def same_model(folder: Path) -> None:
    """Plain transformers loads all trained weights."""
    trained = surefit.load(folder.parent / "run").state_dict()
    loaded = load_plain(folder, "AutoModelForSemanticSegmentation").state_dict()
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[name], value) for name, value in trained.items())


def same_body(folder: Path) -> None:
    """The body is a plain transformers folder with the trained weights."""
    trained = surefit.load(folder.parent / "run").body.state_dict()
    loaded = load_plain(folder, "AutoModel").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in trained.items())


def same_weights(folder: Path) -> None:
    """A module without a transformers class is plain safetensors."""
    trained, saved = (
        surefit.load(folder.parent / "run").state_dict(),
        load_file(folder / "model.safetensors"),
    )
    assert saved.keys() == trained.keys()
    assert all(torch.equal(saved[name], value) for name, value in trained.items())


@dataclass(frozen=True)
class Case:
    """A task, what it is trained on, and how the export is used without surefit."""

    task: str
    model: str
    write: Callable[[Path], None]
    plain: Callable[[Path], Answers | None]
    data: str = "rows.jsonl"
    asked: str | None = None


def generated(folder: Path) -> Answers:
    return continued(folder, rows_of(folder), NEW_TOKENS)


CASES = (
    Case("causal-lm", "tiny:llama", write_texts, generated),
    Case("sft", "tiny:llama", write_answers, generated),
    Case(
        *("masked-lm", "tiny:bert", write_masked),
        lambda folder: filled_masks(folder, rows_of(folder, "asked.jsonl")),
        asked="asked.jsonl",
    ),
    Case("seq2seq", "tiny:t5", write_pairs, generated),
    Case(
        *("text-classification", "tiny:bert", write_classes),
        lambda folder: text_classes(folder, rows_of(folder)),
    ),
    Case(
        *("token-classification", "tiny:bert", write_tags),
        lambda folder: word_tags(folder, rows_of(folder)),
    ),
    Case(
        *("regression", "tiny:bert", write_scores),
        lambda folder: text_numbers(folder, rows_of(folder)),
    ),
    Case("tabular-classification", "tiny:mlp", write_table, same_weights),
    Case(
        *("image-classification", "tiny:vit", write_pictures),
        lambda folder: picture_classes(folder, pictures_of(folder)),
        "rows",
    ),
    Case(
        *("audio-classification", "tiny:wav2vec2", write_sounds),
        lambda folder: [name for name, _ in spoken_classes(folder, sounds_of(folder))],
        "rows",
    ),
    Case("image-segmentation", "tiny:segformer", write_masks, same_model, "rows"),
    Case("feature-classification", "tiny:bert", write_features, same_body, "rows.npz"),
    Case("feature-pretraining", "tiny:bert", write_features, same_body, "rows.npz"),
)


def test_every_task_is_here() -> None:
    assert {case.task for case in CASES} == set(TASKS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.task)
def test_evaluate_predict_and_export(
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    case.write(tmp_path)
    arguments = ["--data", case.data, "--model", case.model, "--task", case.task]
    arguments += ["--max-steps", "3", "--set", f"generate.max_new_tokens={NEW_TOKENS}"]
    assert command(["train", *arguments, "--output", "run"]) == 0
    capsys.readouterr()
    assert command(["evaluate", "run", "--data", case.data, "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert np.isfinite(evaluated["metrics"]["loss"])
    if "confusion" in evaluated["metrics"]:
        assert len(evaluated["classes"]) == len(evaluated["metrics"]["confusion"])
    assert command(["predict", "run", "--data", case.asked or case.data]) == 0
    told = [json.loads(line)["prediction"] for line in capsys.readouterr().out.splitlines()]
    assert command(["export", "run", "out"]) == 0
    plain = case.plain(tmp_path / "out")
    if plain is None:
        assert len(told) == evaluated["rows"]
    elif isinstance(plain[0], float):
        assert told == pytest.approx(plain, abs=1e-4)
    else:
        assert told == plain
