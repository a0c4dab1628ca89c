"""The same rows and weights give the same losses in transformers' Trainer and TRL's SFTTrainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from audit.families import FAMILIES, Family, make_model, make_rows, make_tokenizer, save_model
from audit.reference import Settings, read_dialogue
from audit.steps import Case, options_of

pytestmark = pytest.mark.slow
BY_NAME = {family.name: family for family in FAMILIES}
SETTINGS = Settings()
WEIGHTS_CLOSE = 1e-5
"""What three steps of AdamW leave between two float32 computations, for most weights."""


def losses_of_surefit(
    family: Family, rows: Any, folder: Path, seed: int, accumulated: int
) -> tuple[list[float], Any]:
    """Each step's loss and the trained weights, of padding-free batches where there are any."""
    model = save_model(family, folder / "model", seed)
    case = Case(family, False, True, accumulated > 1, False)
    options = {**options_of(case, SETTINGS, model), "data": rows}
    run = surefit.train(**options, output=str(folder / "run"))
    losses = [event["loss"] for event in run.history if event["event"] == "step"]
    return losses, surefit.load(folder / "run").state_dict()


def arguments(folder: Path, num_rows: int, accumulated: int) -> dict[str, Any]:
    """The settings of a trainer of transformers that make the same steps."""
    return {
        "output_dir": str(folder / "peer"),
        "num_train_epochs": SETTINGS.steps,
        "per_device_train_batch_size": num_rows // accumulated,
        "gradient_accumulation_steps": accumulated,
        "learning_rate": SETTINGS.lr,
        "max_grad_norm": SETTINGS.clip,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
    }


def logged(trainer: Any) -> list[float]:
    """The loss of each step, as the trainer logs it."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def encode(family: Family, row: Any) -> dict[str, Any]:
    """The row's columns for transformers' collators."""
    tokenizer = make_tokenizer(family.rows)
    if family.rows == "ids":
        return dict(row)
    if family.rows == "classes":
        return {"input_ids": tokenizer(row["text"])["input_ids"], "labels": row["label"]}
    source, target = (tokenizer(row[name])["input_ids"] for name in ("source", "target"))
    return {"input_ids": source, "labels": target}


# The Trainer divides accumulated losses by their targets only if the model's own loss does so, as
# llama's; the losses of bert and t5 it adds up.
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "accumulated"), [("llama", 1), ("llama", 4), ("bert", 1), ("t5", 1)]
)
def test_losses_are_those_of_transformers_trainer(
    name: str, seed: int, accumulated: int, tmp_path: Path
) -> None:
    from datasets import Dataset
    from transformers import (
        DataCollatorForSeq2Seq,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    family = BY_NAME[name]
    rows, tokenizer = make_rows(family.rows), make_tokenizer(family.rows)
    model = make_model(family, seed)
    collators = {"classes": DataCollatorWithPadding(tokenizer)}
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**arguments(tmp_path, len(rows), accumulated)),
        train_dataset=Dataset.from_list([encode(family, row) for row in rows]),
        data_collator=collators.get(family.rows, DataCollatorForSeq2Seq(tokenizer, model)),
    )
    trainer.train()
    losses, weights = losses_of_surefit(family, rows, tmp_path, seed, accumulated)
    assert losses == pytest.approx(logged(trainer), abs=1e-4)
    assert_mostly_close(weights, trainer.model.state_dict())


def test_losses_are_those_of_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="TRL is a peer of the audit; it comes with dev")
    from datasets import Dataset

    family = BY_NAME["llama, messages"]
    rows = [{"messages": row["messages"][:2]} for row in make_rows(family.rows)]
    asked = [{"prompt": r["messages"][:1], "completion": r["messages"][1:]} for r in rows]
    tokenizer = make_tokenizer(family.rows)
    trainer = trl.SFTTrainer(
        model=make_model(family),
        args=trl.SFTConfig(**arguments(tmp_path, len(rows), 1), max_length=None),
        train_dataset=Dataset.from_list(asked),
        processing_class=tokenizer,
    )
    learned = trainer.train_dataset[0]
    assert learned["input_ids"] == read_dialogue(rows[0])[0]
    trainer.train()
    losses, weights = losses_of_surefit(family, rows, tmp_path, 0, 1)
    assert losses == pytest.approx(logged(trainer), abs=1e-3)
    assert_mostly_close(weights, trainer.model.state_dict())


def assert_mostly_close(weights: Any, expected: Any) -> None:
    """Equal within WEIGHTS_CLOSE, but for the few whose gradient is zero but for rounding."""
    gaps = torch.cat([(weights[name] - expected[name]).abs().flatten() for name in expected])
    assert float((gaps > WEIGHTS_CLOSE).double().mean()) < 0.01
    assert float(gaps.max()) < 2 * SETTINGS.lr * SETTINGS.steps
