"""Findings that only objects given from Python can bring about, and faults the suite once found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from builders import MeanPool, echo_rows, feature_rows, write_jsonl
from surefit.cli import run
from surefit.data.open_data import open_table
from surefit.data.row_parts import hash_columns
from surefit.tasks import TASKS


def codes(plan: surefit.Plan) -> list[str]:
    return [found.code for found in plan.findings]


def test_own_collate_fn_is_said_to_be_used() -> None:
    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        longest = max(len(row["inputs_embeds"]) for row in rows)
        steps = torch.zeros(len(rows), longest, 4)
        mask = torch.zeros(len(rows), longest)
        for place, row in enumerate(rows):
            steps[place, : len(row["inputs_embeds"])] = row["inputs_embeds"]
            mask[place, : len(row["inputs_embeds"])] = 1
        labels = torch.stack([row["labels"] for row in rows])
        return {"inputs_embeds": steps, "attention_mask": mask, "labels": labels}

    plan = surefit.check(data=feature_rows(30), model=MeanPool(), collate_fn=collate)
    assert any("makes the batches" in note for note in plan.notes)
    assert plan.ok


def test_loss_that_counts_other_targets_than_the_task_is_an_error() -> None:
    task = TASKS["feature-classification"]
    loss = task.loss
    twice = replace(
        task, loss=lambda outputs, batch: (loss(outputs, batch)[0], 2 * len(batch["labels"]))
    )
    plan = surefit.check(data=feature_rows(30), model=MeanPool(), task=twice)
    assert [f.code for f in plan.findings if f.severity == "error"] == ["SF312"]


def test_adapters_of_another_rank_are_an_error() -> None:
    peft = pytest.importorskip("peft")
    module = peft.get_peft_model(MeanPool(), peft.LoraConfig(r=2, target_modules=["body"]))
    plan = surefit.check(data=feature_rows(30), model=module, lora_r=8)
    assert [f.code for f in plan.findings if f.severity == "error"] == ["SF323"]


def test_an_option_of_zero_is_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(write_jsonl(tmp_path / "rows.jsonl", echo_rows(20)))
    (tmp_path / "run.yaml").write_text("epochs: 2\n")
    options = [str(tmp_path / "run.yaml"), "--data", data, "--model", "tiny:llama"]
    assert run(["check", *options, "--epochs", "0"]) == 2
    assert "found 0" in capsys.readouterr().err


def test_texts_of_marks_alone_are_not_all_alike() -> None:
    rows = [{"text": "?" * n} for n in range(1, 9)] + [{"text": "A!"}, {"text": "a"}]
    hashes = hash_columns(open_table(rows), ["text"], fold=True)
    assert len(set(hashes.tolist())) == 9
