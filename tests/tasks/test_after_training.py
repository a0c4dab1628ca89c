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
import transformers
from pictures import SHAPES, draw, write_png
from safetensors.torch import load_file
from transformers import AutoTokenizer

import surefit
from builders import WORDS, echo_rows, feature_rows, save_ragged, sentiment_rows, write_jsonl
from surefit.cli import run as command
from surefit.tasks import TASKS

Answers = list[Any]
NEW_TOKENS = 8
"""Few: two tokens that are equally likely but for rounding are chosen between by the CPU."""


def load_plain(folder: Path, auto: str) -> Any:
    """The exported model through plain transformers."""
    return getattr(transformers, auto).from_pretrained(folder).eval()


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
    tagged = ({"tokens": r, "tags": ["B-A" if w == "cat" else "O" for w in r]} for r in rows)
    write_jsonl(folder / "rows.jsonl", tagged)


def write_table(folder: Path) -> None:
    rows = [{"a": n % 7, "b": WORDS[n % 3], "label": "xy"[n % 7 > 3]} for n in range(40)]
    write_jsonl(folder / "rows.jsonl", rows)


def write_pictures(folder: Path) -> None:
    for n in range(18):
        write_png(folder / "rows" / SHAPES[n % 3] / f"{n:02}.png", draw(SHAPES[n % 3], n))


def write_features(folder: Path) -> None:
    save_ragged(folder / "rows.npz", feature_rows(24))


def continued(folder: Path, auto: str) -> Answers:
    """What plain `generate` makes of each row's text."""
    model, tokenizer = load_plain(folder, auto), AutoTokenizer.from_pretrained(folder)
    answers = []
    for row in map(json.loads, (folder.parent / "rows.jsonl").open()):
        text = row.get("source") or row.get("text") or f"{row['prompt']}\n"
        asked = tokenizer(text, return_tensors="pt")
        made = model.generate(**asked, max_new_tokens=NEW_TOKENS, do_sample=False)[0]
        made = made[1:] if model.config.is_encoder_decoder else made[asked["input_ids"].shape[1] :]
        answers.append(tokenizer.decode(made, skip_special_tokens=True).strip())
    return answers


def logits_of_texts(folder: Path, auto: str) -> tuple[Any, list[Any]]:
    model, tokenizer = load_plain(folder, auto), AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line) for line in (folder.parent / "rows.jsonl").open()]
    with torch.no_grad():
        return model, [
            model(**tokenizer(row["text"], return_tensors="pt")).logits[0] for row in rows
        ]


def text_classes(folder: Path, auto: str) -> Answers:
    model, logits = logits_of_texts(folder, auto)
    return [model.config.id2label[int(row.argmax())] for row in logits]


def text_numbers(folder: Path, auto: str) -> Answers:
    model, logits = logits_of_texts(folder, auto)
    return [float(row) * model.config.target_scale + model.config.target_mean for row in logits]


def word_tags(folder: Path, auto: str) -> Answers:
    model, tokenizer = load_plain(folder, auto), AutoTokenizer.from_pretrained(folder)
    answers = []
    for row in map(json.loads, (folder.parent / "rows.jsonl").open()):
        asked = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            best = model(**asked).logits[0].argmax(-1).tolist()
        words = asked.word_ids()
        firsts = [words.index(place) for place in range(len(row["tokens"]))]
        answers.append([model.config.id2label[best[place]] for place in firsts])
    return answers


def filled_masks(folder: Path, auto: str) -> Answers:
    """Each text with its mask token filled in."""
    model, tokenizer = load_plain(folder, auto), AutoTokenizer.from_pretrained(folder)
    answers = []
    for row in map(json.loads, (folder.parent / "asked.jsonl").open()):
        asked = tokenizer(row["text"], return_tensors="pt")
        with torch.no_grad():
            best = model(**asked).logits[0].argmax(-1)
        ids = asked["input_ids"][0]
        filled = torch.where(ids == tokenizer.mask_token_id, best, ids)
        answers.append(tokenizer.decode(filled, skip_special_tokens=True).strip())
    return answers


def picture_classes(folder: Path, auto: str) -> Answers:
    from PIL import Image

    model = load_plain(folder, auto)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    files = sorted((folder.parent / "rows").glob("*/*.png"), key=lambda p: (p.parent.name, p.name))
    images = [Image.open(file).convert("RGB") for file in files]
    with torch.no_grad():
        best = model(**processor(images, return_tensors="pt")).logits.argmax(-1)
    return [model.config.id2label[place] for place in best.tolist()]


def same_body(folder: Path, auto: str) -> None:
    """The body is a plain transformers folder with the trained weights."""
    trained = surefit.load(folder.parent / "run").body.state_dict()
    loaded = load_plain(folder, auto).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in trained.items())


def same_weights(folder: Path, auto: str) -> None:
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
    auto: str
    plain: Callable[[Path, str], Answers | None]
    data: str = "rows.jsonl"
    asked: str | None = None


CASES = (
    Case("causal-lm", "tiny:llama", write_texts, "AutoModelForCausalLM", continued),
    Case("sft", "tiny:llama", write_answers, "AutoModelForCausalLM", continued),
    Case(
        *("masked-lm", "tiny:bert", write_masked, "AutoModelForMaskedLM", filled_masks),
        asked="asked.jsonl",
    ),
    Case("seq2seq", "tiny:t5", write_pairs, "AutoModelForSeq2SeqLM", continued),
    Case(
        *("text-classification", "tiny:bert", write_classes),
        *("AutoModelForSequenceClassification", text_classes),
    ),
    Case(
        *("token-classification", "tiny:bert", write_tags),
        *("AutoModelForTokenClassification", word_tags),
    ),
    Case(
        *("regression", "tiny:bert", write_scores),
        *("AutoModelForSequenceClassification", text_numbers),
    ),
    Case("tabular-classification", "tiny:mlp", write_table, "", same_weights),
    Case(
        *("image-classification", "tiny:vit", write_pictures),
        *("AutoModelForImageClassification", picture_classes, "rows"),
    ),
    Case("feature-classification", "tiny:bert", write_features, "AutoModel", same_body, "rows.npz"),
    Case("feature-pretraining", "tiny:bert", write_features, "AutoModel", same_body, "rows.npz"),
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
    plain = case.plain(tmp_path / "out", case.auto)
    if plain is None:
        assert len(told) == evaluated["rows"]
    elif isinstance(plain[0], float):
        assert told == pytest.approx(plain, abs=1e-4)
    else:
        assert told == plain
