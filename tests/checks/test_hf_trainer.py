"""Someone else's Trainer, checked as it is: the same faults by the same codes, with row numbers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from checks.trainers import CLEAN, FAULTY, SIZES, Stream, plain, settings, token_rows
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    DataCollatorForLanguageModeling,
    LlamaConfig,
    Trainer,
    TrainingArguments,
)

import surefit
from builders import WORDS
from surefit.checks.hf_trainer import Checkup
from surefit.errors import UsageError
from surefit.inputs.text.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([" ".join(WORDS)] * 20, 300)


def _model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=len(tokenizer), **SIZES))


def _rows(tokenizer: Any, count: int = 12) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        ids = tokenizer(" ".join(WORDS[: 2 + number % 7]))["input_ids"] + [tokenizer.eos_token_id]
        rows.append({"input_ids": ids, "labels": list(ids)})
    return rows


def _check(
    tmp_path: Path, model: Any, rows: Any, collator: Any, tokenizer: Any, **settings: Any
) -> Checkup:
    arguments = TrainingArguments(
        output_dir=str(tmp_path), report_to=[], per_device_train_batch_size=4, **settings
    )
    return surefit.check(
        trainer=Trainer(
            model,
            arguments,
            data_collator=collator,
            train_dataset=rows,
            processing_class=tokenizer,
        )
    )


def _codes(checkup: Checkup) -> list[str]:
    return [found.code for found in checkup.findings]


def test_a_healthy_trainer_has_no_findings(tmp_path: Path, tokenizer: Any) -> None:
    rows = _rows(tokenizer)
    checkup = _check(tmp_path, _model(tokenizer), rows, surefit.Collator(tokenizer), tokenizer)
    assert checkup.ok
    assert _codes(checkup) == []
    assert checkup.ledger.rows == checkup.ledger.used_rows == 12
    assert checkup.ledger.tokens == sum(len(row["input_ids"]) for row in rows)
    assert checkup.ledger.trained_tokens == checkup.ledger.tokens
    assert checkup.ledger.rows_learning_eos == 12
    assert checkup.as_dict()["ok"] is True


def test_the_seeds_failure_is_named_with_its_rows(tmp_path: Path, tokenizer: Any) -> None:
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    checkup = _check(tmp_path, _model(tokenizer), _rows(tokenizer), collator, tokenizer)
    assert not checkup.ok
    (found,) = checkup.findings
    assert (found.code, found.where["row"]) == ("SF720", 0)
    assert "Cause:" in found.message
    assert checkup.ledger.dropped_rows == {"not_collated": 12}


@pytest.mark.parametrize("fault", ["vocabulary", "positions", "one empty", "all empty"])
def test_faults_of_rows(tmp_path: Path, tokenizer: Any, fault: str) -> None:
    rows = _rows(tokenizer)
    if fault == "vocabulary":
        rows[5]["input_ids"][1] = 9999
    elif fault == "positions":
        rows[5] = {name: values * 40 for name, values in rows[5].items()}
    for row in rows[5:6] if fault == "one empty" else rows if fault == "all empty" else ():
        row["labels"] = [-100] * len(row["labels"])
    checkup = _check(tmp_path, _model(tokenizer), rows, surefit.Collator(tokenizer), tokenizer)
    expected = {
        "vocabulary": ("SF302", 5),
        "positions": ("SF304", 5),
        "one empty": ("SF721", 5),
        "all empty": ("SF401", 0),
    }[fault]
    assert [(found.code, found.where["row"]) for found in checkup.findings] == [expected]
    assert checkup.ok == (fault == "one empty")


def test_labels_beyond_the_classes(tmp_path: Path, tokenizer: Any) -> None:
    config = BertConfig(vocab_size=len(tokenizer), num_labels=2, **SIZES)
    model = AutoModelForSequenceClassification.from_config(config)
    rows = [{"input_ids": row["input_ids"], "labels": 1} for row in _rows(tokenizer)]
    rows[7]["labels"] = 2
    fields = {
        "input_ids": surefit.Field(("time",), "int64", 0),
        "labels": surefit.Field((), "int64"),
    }
    collator = surefit.Collator(tokenizer, fields=fields)
    checkup = _check(tmp_path, model, rows, collator, tokenizer)
    assert [(found.code, found.where["row"]) for found in checkup.findings] == [("SF303", 7)]


class ShiftsTwice(nn.Module):
    """A user's wrapper that shifts labels which the model shifts again."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.config = inner.config

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
        return self.inner(input_ids, attention_mask, labels=shifted)


def test_a_wrapper_that_shifts_again_is_caught(tmp_path: Path, tokenizer: Any) -> None:
    inner = _model(tokenizer)
    inner.config.architectures = ["LlamaForCausalLM"]
    rows = _rows(tokenizer)
    checkup = _check(tmp_path, ShiftsTwice(inner), rows, surefit.Collator(tokenizer), tokenizer)
    assert "SF703" in _codes(checkup)
    assert not checkup.ok


def test_uneven_micro_batches(tmp_path: Path, tokenizer: Any) -> None:
    checkup = _check(
        tmp_path,
        ShiftsTwice(_model(tokenizer)),
        _rows(tokenizer),
        surefit.Collator(tokenizer),
        tokenizer,
        gradient_accumulation_steps=2,
    )
    assert "SF725" in _codes(checkup)


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_trainer_has_no_warning(tmp_path: Path, name: str) -> None:
    checkup = surefit.check(trainer=CLEAN[name](tmp_path))
    said = [f"{f.code} {f.message}" for f in checkup.findings if f.severity != "info"]
    assert said == []
    ledger = checkup.ledger
    assert ledger.rows == ledger.used_rows > 0
    assert ledger.dropped_rows == {}
    assert 0 < ledger.trained_tokens <= ledger.tokens


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_trainer_is_found(tmp_path: Path, name: str) -> None:
    code, make = FAULTY[name]
    checkup = surefit.check(trainer=make(tmp_path))
    found = [f for f in checkup.findings if f.severity != "info"]
    assert [f.code for f in found] == [code]
    assert found[0].fix


def test_every_fault_of_trainers_has_a_case() -> None:
    found = {code for code, _ in FAULTY.values()}
    assert {"SF150", "SF151", "SF152", "SF154", "SF155", "SF703", "SF723"} <= found
    assert {"SF726", "SF727", "SF314", "SF305"} <= found


def test_packed_rows_are_counted_as_they_are(tmp_path: Path) -> None:
    one_by_one = surefit.check(trainer=CLEAN["completion-only"](tmp_path)).ledger
    for name in ("packing", "padding-free"):
        packed = surefit.check(trainer=CLEAN[name](tmp_path)).ledger
        assert (packed.tokens, packed.trained_tokens, packed.train_blocks) == (
            one_by_one.tokens, one_by_one.trained_tokens, one_by_one.train_blocks,
        )  # fmt: skip


def test_what_was_not_checked_is_said(tmp_path: Path) -> None:
    rows = token_rows()
    trainer = plain(tmp_path, Stream(rows * 100), args=settings(tmp_path, max_steps=2))
    trainer.eval_dataset = rows
    checkup = surefit.check(trainer=trainer)
    assert checkup.findings == ()
    (said,) = checkup.notes
    assert "rows after the first 1,000 of the stream" in said
    assert "the rows of eval_dataset" in said
    assert checkup.ledger.rows == 1000
    assert "the loss of DPOTrainer" in surefit.check(trainer=CLEAN["preference"](tmp_path)).notes[0]


def test_what_is_no_trainer_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(UsageError, match="without model"):
        surefit.check(trainer=object())
    with pytest.raises(UsageError, match="together with data"):
        surefit.check(trainer=object(), data=[])


def test_rows_that_begin_with_bos_twice(tmp_path: Path, tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.bos_token = tokenizer.convert_ids_to_tokens(7)
    rows = [{**row, "input_ids": [7, 7, *row["input_ids"]]} for row in _rows(tokenizer)]
    rows = [{**row, "labels": list(row["input_ids"])} for row in rows]
    checkup = _check(tmp_path, _model(tokenizer), rows, surefit.Collator(tokenizer), tokenizer)
    assert _codes(checkup) == ["SF724"]
