"""Rows of token ids with a label are classified or regressed on; integers stay integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import surefit

RANDOM = np.random.default_rng(0)
IDS = [RANDOM.integers(0, 20, int(RANDOM.integers(3, 9))).tolist() for _ in range(80)]
ROWS = [{"input_ids": ids, "label": int(ids[0] > 9)} for ids in IDS]
ENCODED = [
    {
        "input_ids": [*ids, 0, 0],
        "token_type_ids": [0] * (len(ids) + 2),
        "attention_mask": [*[1] * len(ids), 0, 0],
        "labels": int(ids[0] > 9),
    }
    for ids in IDS
]
"""As a tokenizer of transformers writes rows, with padding."""


class Net(nn.Module):
    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, outputs)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        assert input_ids.dtype == torch.int64
        if attention_mask is None:
            return self.head(self.words(input_ids).mean(1))
        mask = attention_mask[..., None]
        return self.head((self.words(input_ids) * mask).sum(1) / mask.sum(1))


class Named(Net):
    def forward(self, dna: Any) -> Any:
        return super().forward(dna)


def checked(**options: Any) -> surefit.Plan:
    plan = surefit.check(**options)
    assert plan.ok, plan.findings
    return plan


LABELS: dict[str, list[dict[str, Any]]] = {
    "text": [{**row, "label": "ab"[row["label"]]} for row in ROWS],
    "bool": [{**row, "label": bool(row["label"])} for row in ROWS],
    "labels": [{"input_ids": row["input_ids"], "labels": row["label"]} for row in ROWS],
    "encoded": ENCODED,
    "several": [
        {"input_ids": row["input_ids"], "labels": ["a", "b"][: row["label"] + 1]} for row in ROWS
    ],
}


@pytest.mark.parametrize("name", LABELS)
def test_one_label_per_row_is_a_class(name: str) -> None:
    for model in (Net(), "tiny:bert"):
        plan = checked(data=LABELS[name], model=model)
        assert plan.as_dict()["task"] == "text-classification"


def test_a_mask_of_the_data_is_passed_on(tmp_path: Path) -> None:
    seen = []

    class Watched(Net):
        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            seen.append((input_ids, attention_mask))
            return super().forward(input_ids, attention_mask)

    options: dict[str, Any] = {"epochs": 3, "lr": 0.05, "output": tmp_path / "run"}
    run = surefit.train(data=ENCODED, model=Watched(), **options)
    for ids, mask in seen:
        assert ids.shape == mask.shape
        assert (mask.sum(1) <= ids.shape[1]).all()
    lengths = {len(ids) for ids in IDS}
    assert {int(count) for _, mask in seen for count in mask.sum(1)} <= lengths
    rows = [{k: v for k, v in row.items() if k != "labels"} for row in ENCODED]
    together = [row["probability"] for row in surefit.predict(run, rows)]
    alone = [surefit.predict(run, [row])[0]["probability"] for row in rows[:3]]
    assert together[:3] == pytest.approx(alone, rel=1e-4)
    bare = [{"input_ids": ids} for ids in IDS]  # the mask is then made from the lengths
    with_types = [{**row, "token_type_ids": [0] * len(row["input_ids"])} for row in bare]
    assert [row["probability"] for row in surefit.predict(run, with_types)] == pytest.approx(
        together, rel=1e-4
    )
    assert surefit.evaluate(run, ENCODED)["accuracy"] > 0.5


@pytest.mark.parametrize("model", ["tiny:llama", "tiny:roberta"])
def test_padding_is_no_token_of_the_data(model: str, tmp_path: Path) -> None:
    rows = [{**row, "input_ids": [*row["input_ids"], 0]} for row in ROWS]  # 0 is a real token
    run = surefit.train(data=rows, model=model, max_steps=2, output=tmp_path / "run")
    short = {"input_ids": [5, 3, 0]}
    together = surefit.predict(run, [short, {"input_ids": [7] * 8}])[0]
    alone = surefit.predict(run, [short])[0]
    assert together["probability"] == pytest.approx(alone["probability"], rel=1e-4)


def test_ids_of_a_large_vocabulary_fit_a_tiny_model() -> None:
    rows = [{"input_ids": [101, 30000 + n, 102], "label": n % 2} for n in range(40)]
    assert checked(data=rows, model="tiny:bert").as_dict()["task"] == "text-classification"


def test_an_id_per_row_is_held_against_its_embedding() -> None:
    class Ratings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(20, 4), nn.Embedding(30, 4)

        def forward(self, user: Any, item: Any) -> Any:
            return (self.users(user) * self.items(item)).sum(-1, keepdim=True)

    frame = pd.DataFrame(
        {"user": np.arange(60) % 20, "item": np.arange(60) % 30, "rating": RANDOM.random(60)}
    )
    assert checked(data=frame, model=Ratings()).as_dict()["task"] == "regression"
    frame.loc[5, "user"] = 55
    [found] = [f for f in surefit.check(data=frame, model=Ratings()).findings if f.code == "SF302"]
    assert "row 5: user is 55" in found.message


def test_integers_for_an_embedding_under_any_name() -> None:
    rows = [{"dna": row["input_ids"], "label": row["label"]} for row in ROWS]
    plan = checked(data=rows, model=Named())
    assert plan.as_dict()["columns"] == {"dna": "input_ids", "label": "label"}
    assert "SF701" in [found.code for found in plan.findings]  # it has no mask to leave padding out
    numbers = nn.Sequential(nn.Linear(4, 2))
    whole = [{"x": [n, n % 3, 5, 7], "label": n % 2} for n in range(40)]
    assert checked(data=whole, model=numbers).as_dict()["task"] == "feature-classification"


def test_labels_of_each_token_are_no_class() -> None:
    rows = [{"input_ids": ids, "labels": ids} for ids in IDS]
    assert checked(data=rows, model="tiny:llama").as_dict()["task"] == "sft"
    assert checked(data=[{"input_ids": ids} for ids in IDS], model="tiny:llama").ok


class Tagger(Net):
    def forward(self, input_ids: Any) -> Any:  # type: ignore[override]
        return self.head(self.words(input_ids))


TAGS: dict[str, list[dict[str, Any]]] = {
    "integers": [{"input_ids": ids, "ner_tags": [int(i > 9) for i in ids]} for ids in IDS],
    "texts": [{"input_ids": ids, "tags": ["O" if i > 9 else "B-X" for i in ids]} for ids in IDS],
    "unlabelled": [
        {"input_ids": [*ids, 0], "labels": [-100, *[int(i > 9) for i in ids[1:]], -100]}
        | {"attention_mask": [*[1] * len(ids), 0]}
        for ids in IDS
    ],
}


@pytest.mark.parametrize("name", TAGS)
def test_a_tag_for_each_id_is_a_token_classification(name: str, tmp_path: Path) -> None:
    task = "token-classification" if name == "unlabelled" else None  # else labels of an LM
    rows = [{"text": "a text beside them", **row} for row in TAGS[name]]
    run = surefit.train(
        data=rows, model=Tagger(), task=task, epochs=8, lr=0.1, output=tmp_path / "run"
    )
    assert run.plan["task"] == "token-classification"
    assert run.metrics["token_accuracy"] > 0.9
    made = surefit.predict(run, [{"input_ids": [1, 19, 3]}])[0]["prediction"]
    assert made == (["B-X", "O", "B-X"] if name == "texts" else [0, 1, 0])


def test_labels_that_are_no_tokens_are_asked_about() -> None:
    rows = [{"input_ids": row["input_ids"], "labels": row["ner_tags"]} for row in TAGS["integers"]]
    found = [each for each in surefit.check(data=rows, model=Tagger(20)).findings if each.code]
    assert [(each.code, "token-classification" in str(each.fix)) for each in found] == [
        ("SF156", True)
    ]


def test_ids_are_read_where_no_tokenizer_reads_the_texts() -> None:
    plan = checked(data=[{"text": "a text", **row} for row in ROWS], model=Net())
    assert plan.as_dict()["columns"] == {"text": None, "input_ids": "input_ids", "label": "label"}
