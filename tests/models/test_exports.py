"""Every task with every kind of tokenizer: plain transformers gives surefit's predictions."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from plain_transformers import (
    continued,
    filled_masks,
    logits_of_texts,
    text_classes,
    text_label_sets,
    text_numbers,
    word_tags,
)
from tokenizer_kinds import KINDS, WORDS

import surefit
from surefit.cli import run as command

pytestmark = pytest.mark.slow
NEW_TOKENS = 8
TAGS = {word: ["O", "B-A", "I-A", "B-B"][n % 4] for n, word in enumerate(WORDS)}


def texts(count: int = 40) -> list[list[str]]:
    choose = random.Random(0)
    return [choose.choices(WORDS, k=choose.randint(2, 10)) for _ in range(count)]


ROWS: dict[str, list[dict[str, Any]]] = {
    "text-classification": [{"text": " ".join(words), "label": words[-1]} for words in texts()],
    "pairs": [
        {"text": " ".join(a), "text_pair": " ".join(b), "label": "xy"[a[0] == b[0]]}
        for a, b in zip(texts(), texts()[::-1], strict=True)
    ],
    "labels": [{"text": " ".join(words), "label": sorted({*words[:2]})} for words in texts()],
    "token-classification": [
        {"tokens": words, "tags": [TAGS[word] for word in words]} for words in texts()
    ],
    "regression": [{"text": " ".join(words), "label": len(words) / 3} for words in texts()],
    "masked-lm": [{"text": " ".join(["[MASK]", *words[1:]])} for words in texts()],
    "causal-lm": [{"text": " ".join(words)} for words in texts()],
    "sft": [{"prompt": " ".join(words), "completion": words[-1]} for words in texts()],
    "seq2seq": [{"source": " ".join(words), "target": words[-1]} for words in texts()],
}
PLAIN: dict[str, Callable[..., list[Any]]] = {
    "text-classification": text_classes,
    "pairs": text_classes,
    "labels": text_label_sets,
    "token-classification": word_tags,
    "regression": text_numbers,
    "masked-lm": filled_masks,
    **dict.fromkeys(("causal-lm", "sft", "seq2seq"), partial(continued, new_tokens=NEW_TOKENS)),
}
MODELS = {
    "masked-lm": ("tiny:bert", "tiny:modernbert"),
    "seq2seq": ("tiny:t5", "tiny:bart"),
    **dict.fromkeys(("causal-lm", "sft"), ("tiny:llama", "tiny:qwen2")),
}
WITHOUT_MASK = ("gpt2", "byte-level after split", "t5", "llama")
TASK_OF = {"pairs": "text-classification", "labels": "text-classification"}


def cells() -> list[tuple[str, str, str]]:
    return [
        (form, kind, model)
        for form in ROWS
        for kind in KINDS
        for model in MODELS.get(form, ("tiny:bert", "tiny:qwen2"))
        if not (form == "masked-lm" and kind in WITHOUT_MASK)
        and not (form in ("sft", "seq2seq") and kind == "word-piece")  # it has no end token
    ]


@pytest.mark.parametrize(("form", "kind", "model"), cells())
def test_plain_transformers_gives_the_predictions(
    form: str, kind: str, model: str, tmp_path: Path
) -> None:
    rows, options = ROWS[form], {}
    if kind != "made here":
        KINDS[kind]().save_pretrained(tmp_path / "tokenizer")
        options["tokenizer"] = str(tmp_path / "tokenizer")
    run = surefit.train(
        data=rows,
        model=model,
        task=TASK_OF.get(form, form),
        max_steps=20,
        lr=1e-2,
        max_seq_length=None if form in ("causal-lm", "sft", "seq2seq") else 16,
        output=str(tmp_path / "run"),
        generate={"max_new_tokens": NEW_TOKENS},
        **options,
    )
    answers = surefit.predict(run, rows)
    predicted = [row["prediction"] for row in answers]
    assert command(["export", str(run.path), str(tmp_path / "out")]) == 0
    made = PLAIN[form](tmp_path / "out", rows)
    if form == "regression":
        assert predicted == pytest.approx(made, abs=1e-4)
    else:
        assert [str(each) for each in predicted] == [str(each) for each in made]
    if form in ("text-classification", "pairs"):  # which may be one class for all rows
        chances = [
            row.softmax(-1).max().item() for row in logits_of_texts(tmp_path / "out", rows)[1]
        ]
        assert [row["probability"] for row in answers] == pytest.approx(chances, abs=1e-5)
    again = surefit.predict(tmp_path / "out", rows)
    assert [row["prediction"] for row in again] == predicted
