"""Several labels per text, and pairs of texts."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import surefit
from builders import WORDS
from surefit.tasks.classes import MACRO_F1, accuracy, class_list, class_loss

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
    run = surefit.train(
        data=topic_rows(500), model="tiny:bert", epochs=5, output=str(tmp_path / "run")
    )
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


def test_label_only_in_evaluation_rows_is_counted() -> None:
    unseen = [{"text": "a", "labels": ["cat", "violet"]}, {"text": "b", "labels": ["cat"]}]
    plan = surefit.check(data=topic_rows(50), eval_data=unseen, model="tiny:bert")
    assert plan.job is not None
    assert plan.job.pipeline.encoder.classes == TOPICS
    assert plan.ledger is not None
    assert plan.ledger.dropped_rows == {"unknown_label": 1}


def test_loss_and_metrics_by_hand() -> None:
    outputs = SimpleNamespace(logits=torch.tensor([[2.0, -1.0], [3.0, 4.0]]))
    batch = {"labels": torch.tensor([[1.0, 0.0], [0.0, 1.0]])}
    total, count = class_loss(outputs, batch)
    each = torch.nn.functional.binary_cross_entropy_with_logits(outputs.logits, batch["labels"])
    assert count == 2
    assert total.item() == pytest.approx(2 * each.item())
    assert [int(value) for value in accuracy(outputs, batch)] == [1, 2]
    # class 0: found 1, one too many: 2/3; class 1: found 1 of 1: 1
    assert MACRO_F1.figure(MACRO_F1.sums(outputs, batch)) == pytest.approx((2 / 3 + 1) / 2)


def test_pairs_of_texts(tmp_path: Path) -> None:
    run = surefit.train(
        data=pair_rows(600),
        model="tiny:bert",
        epochs=4,
        batch_size=16,
        output=str(tmp_path / "run"),
    )
    assert run.plan["roles"]["text_pair"] == "sentence2"
    assert run.metrics["accuracy"] > 0.95
    row = {"sentence1": "red dog good", "sentence2": "tree sun bad"}
    assert surefit.predict(run, [row])[0]["prediction"] == "bad"


def test_pairs_keep_their_texts_apart(tmp_path: Path) -> None:
    plan = surefit.check(data=pair_rows(30), model="tiny:bert")
    assert plan.job is not None
    encoder, row = plan.job.pipeline.encoder, plan.job.train.row(0)
    assert encoder.tokenizer.eos_token_id in row["input_ids"].tolist()[1:-1]


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
