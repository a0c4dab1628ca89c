"""Law 2: padding goes by length, never by token id."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import surefit
from builders import echo_rows
from surefit.batches.collate import collate
from surefit.batches.field import Field

EOS = 2
PADS_WITH_EOS = SimpleNamespace(pad_token_id=None, eos_token_id=EOS)


def test_true_eos_keeps_mask_and_label() -> None:
    rows = [{"input_ids": [5, 6, EOS], "labels": [5, 6, EOS]}, {"input_ids": [5, EOS]}]
    rows[1]["labels"] = [5, EOS]
    batch = surefit.Collator(PADS_WITH_EOS)(rows)
    assert batch["input_ids"].tolist() == [[5, 6, EOS], [5, EOS, EOS]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[5, 6, EOS], [5, EOS, -100]]


def test_mask_of_encoded_rows_ignores_the_pad_id() -> None:
    fields = {"input_ids": Field(("time",), "int64", pad=EOS)}
    rows = [{"input_ids": np.array([EOS, 5, EOS])}, {"input_ids": np.array([EOS])}]
    assert collate(rows, fields)["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize("template", ["plain", "alpaca"])
def test_every_row_learns_its_eos_though_eos_pads(template: str) -> None:
    """`plain` is joined, the others are rendered."""
    plan = surefit.check(data=echo_rows(40), model="tiny:llama", template=template)
    assert plan.job is not None
    assert plan.ledger is not None
    tokenizer = plan.job.pipeline.encoder.tokenizer
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert plan.ledger.rows_learning_eos == 40
    for index in range(len(plan.job.train)):
        assert plan.job.train.row(index)["labels"][-1] == tokenizer.eos_token_id


def test_no_token_is_added_for_padding(shared) -> None:
    folder = str(shared / "weights" / "stories260K")
    plan = surefit.check(data=echo_rows(10), model=folder)
    assert plan.job is not None
    tokenizer = plan.job.pipeline.encoder.tokenizer
    assert tokenizer.pad_token == tokenizer.eos_token
    assert len(tokenizer) == plan.job.pipeline.module.get_input_embeddings().weight.shape[0] == 512
