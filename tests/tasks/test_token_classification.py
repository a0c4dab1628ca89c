"""Tags per word: pieces aligned with words, entities counted exactly."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

import surefit
from builders import WORDS, encode_one, write_jsonl
from surefit.cli import run as command
from surefit.encode.encoded_row import SkipRowError
from surefit.encode.encoder import Encoder
from surefit.encode.text.tokenizer import train_tokenizer
from surefit.tasks import token_classification
from surefit.tasks.metrics.entities import entity_f1_of, find_entities, match_entities
from surefit.tasks.token_classification import encode

NAMES = ["Anna", "Boris", "Clara", "Deniz"]


def name_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Words among which a fixed set of names, alone or with a second one, is PER."""
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        tokens, tags = [], []
        for _ in range(choose.randint(2, 6)):
            if choose.random() < 0.3:
                names = choose.sample(NAMES, choose.randint(1, 2))
                tokens += [*names, choose.choice(WORDS)]
                tags += ["B-PER", *["I-PER"] * (len(names) - 1), "O"]
            else:
                tokens.append(choose.choice(WORDS))
                tags.append("O")
        rows.append({"tokens": tokens, "tags": tags})
    return rows


def test_names_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "rows.jsonl", name_rows(600))
    arguments = ["train", "--data", "rows.jsonl", "--model", "tiny:bert", "--output", "run"]
    assert command([*arguments, "--epochs", "6"]) == 0
    metrics = surefit.evaluate("run")
    assert metrics["entity_f1"] > 0.9
    assert set(metrics) == {"loss", "token_accuracy", "accuracy", "entity_f1"}
    words = ["red", "Anna", "Clara", "sun"]
    answer = surefit.predict("run", [{"tokens": words}])[0]
    assert answer["prediction"] == ["O", "B-PER", "I-PER", "O"]
    assert answer["entities"] == [{"type": "PER", "start": 1, "end": 3}]
    capsys.readouterr()
    assert command(["predict", "run", "--text", "red Anna Clara sun"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"] == answer["prediction"]
    plain = AutoModelForTokenClassification.from_pretrained("run/model")
    tokenizer = AutoTokenizer.from_pretrained("run/model")
    pieces = tokenizer([f" {w}" for w in words], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        best = plain(**pieces).logits[0].argmax(-1).tolist()
    firsts = [pieces.word_ids().index(word) for word in range(len(words))]
    assert [plain.config.id2label[best[place]] for place in firsts] == answer["prediction"]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(
        "token-classification",
        {"tokens": "tokens", "tags": "tags"},
        tokenizer=train_tokenizer(["red blue"], 260),
        fitted={"classes": ["O", "B-PER", "I-PER"]},
        settings={"overlong": "truncate"},
        max_length=8,
    )


def test_the_first_piece_of_a_word_carries_its_tag(encoder: Encoder) -> None:
    row = encode_one(encode, {"tokens": ["red", "Al"], "tags": ["O", "B-PER"]}, encoder)
    pieces = encoder.tokenizer.convert_ids_to_tokens(row.columns["input_ids"])
    assert "".join(pieces) == "ĠredĠAl"
    place = pieces.index("A") - 1 if "A" in pieces else pieces.index("ĠA")
    assert [i for i, label in enumerate(row.columns["labels"]) if label != -100] == [0, place]
    assert [label for label in row.columns["labels"] if label != -100] == [0, 1]
    assert [word for word in row.columns["words"] if word >= 0] == [0, 1]


def test_overlong_rows_follow_the_policy(encoder: Encoder) -> None:
    from dataclasses import replace

    row = {"tokens": ["red"] * 30, "tags": ["O"] * 30}
    cut = encode_one(encode, row, encoder)
    assert cut.truncated
    assert len(cut.columns["input_ids"]) == 8
    dropping = replace(encoder, settings={"overlong": "drop"})
    with pytest.raises(SkipRowError, match="overlong"):
        encode(row, dropping)


def test_faults_name_the_row(tmp_path: Path) -> None:
    rows = name_rows(20)
    rows[7]["tags"] = rows[7]["tags"][:-1]
    plan = surefit.check(data=rows, model="tiny:bert")
    (found,) = [f for f in plan.findings if f.severity == "error"]
    assert found.code == "SF201"
    assert found.where["row"] == 7
    assert "which it is aligned with" in found.message


def test_tags_seen_only_in_evaluation_are_counted() -> None:
    odd = [{"tokens": ["red", "Oslo"], "tags": ["O", "B-LOC"]}, *name_rows(3)]
    plan = surefit.check(data=name_rows(30), eval_data=odd, model="tiny:bert")
    assert plan.job is not None
    assert plan.job.pipeline.encoder.classes == ["O", "B-PER", "I-PER"]
    assert plan.ledger is not None
    assert plan.ledger.dropped_rows == {"unknown_label": 1}
    assert "SF206" in [found.code for found in plan.findings]


def test_tags_may_be_numbers() -> None:
    numbers = {"O": 0, "B-PER": 1, "I-PER": 2}
    rows = [
        {"words": row["tokens"], "ner_tags": [numbers[t] for t in row["tags"]]}
        for row in name_rows(30)
    ]
    plan = surefit.check(data=rows, model="tiny:bert")
    assert plan.ok, plan.findings
    assert plan.job is not None
    assert plan.job.pipeline.encoder.classes == [0, 1, 2]


ROWS: dict[str, tuple[str, list[tuple[str, int, int]]]] = {
    "plain": ("O B-PER I-PER O", [("PER", 1, 3)]),
    "two beside each other": ("B-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
    "inside without a beginning": ("O I-LOC I-LOC", [("LOC", 1, 3)]),
    "another type goes on": ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
    "at the end": ("O O B-X", [("X", 2, 3)]),
    "single and last marks": ("S-X B-Y E-Y I-Y", [("X", 0, 1), ("Y", 1, 3), ("Y", 3, 4)]),
    "type with a dash": ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
    "no marks at all": ("NOUN NOUN VERB O", [("NOUN", 0, 2), ("VERB", 2, 3)]),
    "nothing": ("O O", []),
}


@pytest.mark.parametrize("name", ROWS)
def test_entities_of_a_row(name: str) -> None:
    tags, entities = ROWS[name]
    assert find_entities(tags.split()) == entities


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["O", "B", "I"], [("entity", 0, 2), ("entity", 2, 3)]),
        (["O", "B_LOC", "I_LOC"], [("LOC", 0, 2), ("LOC", 2, 3)]),
        (["O", "B-LOC", "I-LOC"], [("LOC", 0, 2), ("LOC", 2, 3)]),
        (["O", "B", "I", "H"], [("B", 0, 1), ("I", 1, 2), ("B", 2, 3)]),  # letters as classes
        (["O", "Bird", "Insect"], [("Bird", 0, 1), ("Insect", 1, 2), ("Bird", 2, 3)]),
    ],
)
def test_predictions_and_metrics_read_tags_the_same_way(
    names: list[str], expected: list[tuple[str, int, int]]
) -> None:
    encoder, tags = (
        Encoder("token-classification", {}, fitted={"classes": names}),
        torch.tensor([[1, 2, 1, 0]]),
    )
    outputs = SimpleNamespace(logits=torch.eye(len(names))[tags])
    words = {"words": torch.arange(4)[None], "num_words": torch.tensor([4]), "labels": tags}
    (answer,) = token_classification.decode(outputs, words, encoder)
    assert [(e["type"], e["start"], e["end"]) for e in answer["entities"]] == expected
    assert answer["prediction"] == [names[tag] for tag in tags[0]]
    counts = token_classification.ENTITY_F1.sums(outputs, words, encoder=encoder)
    assert counts == {"found": len(expected), "false": 0, "missed": 0}


def test_entity_f1_by_hand() -> None:
    true = ["B-PER", "I-PER", "O", "B-LOC", "O", "B-PER"]
    made = ["B-PER", "O", "O", "B-LOC", "B-LOC", "B-LOC"]
    # LOC at 3 is found; PER 0-1 is cut short, 4 is false, 5 has the wrong type
    counts = match_entities(true, made)
    assert counts == {"found": 1, "false": 3, "missed": 2}
    assert entity_f1_of(counts) == pytest.approx(2 / 7)
    assert entity_f1_of({"found": 0, "false": 0, "missed": 0}) == 0.0
