"""Tags per word: pieces aligned with words, entities counted exactly."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import surefit
from builders import WORDS, encode_one, learn
from surefit.cli import run as command
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import ClassLabels, FittedTarget
from surefit.inputs.tokenizer import load_again, read_words_as_text, train_tokenizer
from surefit.targets.tags import ENTITY_F1, decode, encode

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


@pytest.mark.slow
def test_names_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = learn(tmp_path, name_rows(500), "tiny:bert", epochs=3, batch_size=8, lr=2e-3)
    assert run.metrics["entity_f1"] > 0.9
    assert set(run.metrics) == {"loss", "token_accuracy", "accuracy", "entity_f1"}
    answer = surefit.predict(run, [{"tokens": ["red", "Anna", "Clara", "sun"]}])[0]
    assert answer["prediction"] == ["O", "B-PER", "I-PER", "O"]
    assert answer["entities"] == [{"type": "PER", "start": 1, "end": 3}]
    assert command(["predict", str(run.path), "--text", "red Anna Clara sun"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"] == answer["prediction"]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(
        "token-classification",
        {"tokens": "tokens", "tags": "tags"},
        tokenizer=read_words_as_text(
            train_tokenizer(["red blue"], 260), partial(load_again, model_type=None)
        ),
        target=FittedTarget(ClassLabels(("O", "B-PER", "I-PER"))),
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
    row = {"tokens": ["red"] * 30, "tags": ["O"] * 30}
    cut = encode_one(encode, row, encoder)
    assert cut.truncated
    assert len(cut.columns["input_ids"]) == 8
    dropping = encoder.with_settings(overlong="drop")
    with pytest.raises(RowFaultError, match="overlong"):
        encode(row, dropping)


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
        Encoder("token-classification", {}, target=FittedTarget(ClassLabels((*names,)))),
        torch.tensor([[1, 2, 1, 0]]),
    )
    outputs = SimpleNamespace(logits=torch.eye(len(names))[tags])
    words = {"words": torch.arange(4)[None], "num_words": torch.tensor([4]), "labels": tags}
    (answer,) = decode(outputs, words, encoder)
    assert [(e["type"], e["start"], e["end"]) for e in answer["entities"]] == expected
    assert answer["prediction"] == [names[tag] for tag in tags[0]]
    counts = ENTITY_F1.sums(outputs, words, encoder=encoder)
    assert counts == {"found": len(expected), "false": 0, "missed": 0}
