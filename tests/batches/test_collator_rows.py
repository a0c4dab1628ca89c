"""The collator with rows of every make, and where the stock collators fail."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import (
    BatchEncoding,
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from builders import mostly_slow
from collating import PAD, TOKENIZER, as_lists
from surefit import Collator, Field

PLAIN_ROWS = [
    {"input_ids": [5, 6, 7], "scores": [[0.5, 1.0]] * 3, "label": 1, "note": "long"},
    {"input_ids": [8], "scores": [[2.0, 2.5]], "label": 0, "note": "short"},
]
PLAIN_BATCH = {
    "input_ids": [[5, 6, 7], [8, PAD, PAD]],
    "attention_mask": [[1, 1, 1], [1, 0, 0]],
    "scores": [[[0.5, 1.0]] * 3, [[2.0, 2.5], [0, 0], [0, 0]]],
    "labels": [1, 0],
    "note": ["long", "short"],
}
TABLE = pa.Table.from_pylist(PLAIN_ROWS)


def with_values(change: Callable[[Any], Any]) -> list[dict[str, Any]]:
    return [
        {name: v if isinstance(v, str) else change(v) for name, v in row.items()}
        for row in PLAIN_ROWS
    ]


@pytest.mark.parametrize(
    "features",
    [
        PLAIN_ROWS,
        tuple(PLAIN_ROWS),
        with_values(lambda v: tuple(v) if isinstance(v, list) else v),
        with_values(np.array),
        with_values(torch.tensor),
        [BatchEncoding(row) for row in PLAIN_ROWS],
        list(TABLE.to_struct_array()),
    ],
    ids=lambda features: f"{type(features).__name__} of {type(next(iter(features))).__name__}",
)
def test_rows_of_every_make_give_one_batch(features: Any) -> None:
    assert as_lists(Collator(TOKENIZER)(features)) == PLAIN_BATCH


# The drop-in. All ways in which seeds 001 and 002 make labels.

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": lambda ids: ids.copy(),
    "slice": lambda ids: ids[:],
    "deepcopy": copy.deepcopy,
    "list": list,
    "numpy": np.array,
    "json": lambda ids: json.loads(json.dumps(ids)),
}
TEXTS = ["one two three four", "one", "two one", "three two one"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<eos>": 0, "<unk>": 1, "one": 2, "two": 3, "three": 4, "four": 5}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<eos>", unk_token="<unk>"
    )


def labelled(tokenizer: Any, way: str) -> list[BatchEncoding]:
    rows = [tokenizer(f"{text} <eos>", return_token_type_ids=False) for text in TEXTS]
    for row in rows:
        row["labels"] = WAYS[way](row["input_ids"])
    return rows


CAUSAL_BATCH = {
    "input_ids": [[2, 3, 4, 5, 0], [2, 0, 0, 0, 0], [3, 2, 0, 0, 0], [4, 3, 2, 0, 0]],
    "attention_mask": [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]],
    "labels": [
        [2, 3, 4, 5, 0],
        [2, 0, -100, -100, -100],
        [3, 2, 0, -100, -100],
        [4, 3, 2, 0, -100],
    ],
}


def train_two_steps(tokenizer: Any, rows: Any, folder: Path) -> None:
    """With a rate of 0, the loss of both steps is that of the batch padded by hand."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=6,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    by_hand = {name: torch.tensor(column) for name, column in CAUSAL_BATCH.items()}
    expected = model(**by_hand).loss.item()
    arguments = TrainingArguments(
        str(folder),
        max_steps=2,
        per_device_train_batch_size=len(TEXTS),
        learning_rate=0.0,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, data_collator=Collator(tokenizer), train_dataset=rows)
    assert trainer.train().training_loss == pytest.approx(expected, rel=1e-5)
    assert trainer.state.global_step == 2


@pytest.mark.parametrize("way", mostly_slow(WAYS, every=3))
def test_labels_made_any_way_train_where_the_stock_collator_fails(
    way: str, tokenizer: Any, tmp_path: Path
) -> None:
    rows = labelled(tokenizer, way)
    plain = [dict(row) for row in rows]
    stock = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    for same in (rows, plain):
        with pytest.raises(ValueError, match=r"[Uu]nable to create tensor|expected sequence"):
            stock([copy.deepcopy(row) for row in same])
        [batch] = DataLoader(same, batch_size=4, collate_fn=Collator(tokenizer))
        assert as_lists(batch) == CAUSAL_BATCH
    train_two_steps(tokenizer, plain, tmp_path)


def test_a_collator_goes_to_worker_processes() -> None:
    collator = Collator(TOKENIZER, {"x": Field(("time",), "int64", 3)}, 2, "left")
    batch = pickle.loads(pickle.dumps(collator))([{"x": [1]}])
    assert batch["x"].tolist() == [[3, 1]]
