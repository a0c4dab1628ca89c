"""Several labels per text, and pairs of texts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification

import surefit
from builders import WORDS, learn
from surefit.tasks.classes import class_list

TOPICS = ["cat", "moon", "red"]


def topic_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The labels of a text are those of three words that it says."""
    choose = random.Random(seed)
    texts = [choose.choices(WORDS, k=choose.randint(2, 6)) for _ in range(count)]
    return [{"text": " ".join(t), "labels": [w for w in TOPICS if w in t]} for t in texts]


def pair_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Both texts say good or bad; what the second one says is the label."""
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        said = choose.choices(["good", "bad"], k=2)
        texts = [" ".join([*choose.choices(WORDS, k=2), word]) for word in said]
        rows.append({"sentence1": texts[0], "sentence2": texts[1], "label": said[1]})
    return rows


def test_every_topic_of_a_text(tmp_path: Path) -> None:
    run = learn(tmp_path, topic_rows(300), "tiny:bert", epochs=3, batch_size=8, lr=2e-3)
    assert run.plan["task"] == "text-classification"
    assert set(run.metrics) == {"loss", "accuracy", "macro_f1"}
    assert run.metrics["accuracy"] > 0.9
    assert run.metrics["macro_f1"] > 0.9
    both, none = surefit.predict(run, [{"text": "moon tree red"}, {"text": "dog tree"}])
    assert both["prediction"] == ["moon", "red"]
    assert all(chance > 0.5 for chance in both["probabilities"])
    assert none["prediction"] == []
    plain = AutoModelForSequenceClassification.from_pretrained(run.path / "model")
    assert plain.config.problem_type == "multi_label_classification"
    assert plain.config.id2label == dict(enumerate(TOPICS))


def test_numbers_and_texts_of_lists_are_several_labels_too() -> None:
    for value in ([0, 2], "[0, 2]"):
        rows = [{"text": f"word {n}", "label": value} for n in range(20)]
        rows += [{"text": f"other {n}", "label": [1] if value == [0, 2] else "[1]"} for n in (1, 2)]
        plan = surefit.check(data=rows, model="tiny:bert", eval_share=0)
        assert plan.job is not None, plan.findings
        assert plan.job.pipeline.encoder.classes == [0, 1, 2]
        assert plan.job.train.row(0)["labels"].tolist() == [1, 0, 1]
    assert class_list("[not a list") is None
    assert class_list("[red]") is None


def test_pairs_of_texts(tmp_path: Path) -> None:
    run = learn(tmp_path, pair_rows(300), "tiny:bert", epochs=3, batch_size=8, lr=2e-3)
    assert run.plan["roles"]["text_pair"] == "sentence2"
    assert run.metrics["accuracy"] > 0.95
    row = {"sentence1": "red dog good", "sentence2": "tree sun bad"}
    assert surefit.predict(run, [row])[0]["prediction"] == "bad"


@pytest.fixture
def wordpiece(tmp_path: Path) -> str:
    """A BERT tokenizer of a few words, which marks the two texts of a pair."""
    from transformers import BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer = BertTokenizerFast(vocab={word: place for place, word in enumerate(words)})
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def test_segments_reach_models_that_know_them(wordpiece: str, tmp_path: Path) -> None:
    run = surefit.train(
        data=pair_rows(40),
        model="tiny:bert",
        tokenizer=wordpiece,
        max_steps=2,
        output=str(tmp_path / "run"),
    )
    assert run.plan["model"]["columns"]["token_type_ids"] == "token_type_ids"
    assert len(surefit.predict(run, pair_rows(3))) == 3
