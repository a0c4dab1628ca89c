"""The auxiliary loss of a mixture of experts is trained on, as the model defines it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

import surefit
from builders import events_of
from surefit.models.auxiliary_loss import find_auxiliary_loss
from surefit.models.call import match_arguments
from surefit.models.tiny import TinySizes, tiny_config

pytestmark = pytest.mark.slow

VOCABULARY = 64
ARCHITECTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "phimoe"]


def experts(arch: str = "mixtral", coefficient: float = 0.5, **sizes: Any) -> Any:
    """A small mixture of experts that adds its load balancing to its own loss."""
    torch.manual_seed(0)
    config = tiny_config(arch, TinySizes(VOCABULARY, hidden_size=32))
    config.output_router_logits = True
    name = "aux_loss_coef" if hasattr(config, "aux_loss_coef") else "router_aux_loss_coef"
    setattr(config, name, coefficient)
    return AutoModelForCausalLM.from_config(config)


def token_rows(count: int = 24) -> list[dict[str, list[int]]]:
    draw = np.random.default_rng(0)
    return [
        {"input_ids": draw.integers(3, VOCABULARY, int(length)).tolist()}
        for length in draw.integers(4, 14, count)
    ]


OPTIONS: dict[str, Any] = {
    "task": "causal-lm",
    "eval_share": 0,
    "max_steps": 1,
    "batch_size": 24,
    "clip": 0,
    "warmup": 0,
    "schedule": "constant",
}


def train(module: Any, folder: Path, **options: Any) -> Any:
    given = {"data": token_rows(), "output": folder, "optimizer": sgd, **OPTIONS, **options}
    return surefit.train(model=module, **given)


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


def steps(folder: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(folder) if event["event"] == "step"]


def model_losses(module: Any, rows: list[Any]) -> tuple[Any, Any]:
    """Token loss and auxiliary loss of one padded batch, in plain torch from the model's loss."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.as_tensor(np.asarray(row))
        mask[place, : len(row)] = 1
    labels = ids.masked_fill(mask == 0, -100)
    outputs = module(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False)
    token = cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    return token, outputs.loss - token


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_step_reports_token_loss_and_auxiliary_loss_of_the_model(
    arch: str, tmp_path: Path
) -> None:
    module = experts(arch)
    with torch.no_grad():
        token, added = model_losses(module.eval(), [row["input_ids"] for row in token_rows()])
    assert float(added) > 0.1
    train(module, tmp_path / "run")
    (step,) = steps(tmp_path / "run")
    assert step["loss"] == pytest.approx(float(token), rel=1e-4)
    assert step["aux_loss"] == pytest.approx(float(added), rel=1e-3)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["choices"]["auxiliary_loss"] is True
    assert any("Training adds it too" in note for note in plan["notes"])


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("padding_free", ["off", "auto"])
@pytest.mark.parametrize("lora", [0, 2], ids=["full", "lora"])
def test_weights_move_by_both_losses_over_micro_batches(
    lora: int, padding_free: str, checkpointing: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"batch_size": 6, "grad_accum": 2, "padding_free": padding_free}
    options |= {"checkpointing": checkpointing, "lora_r": lora}
    plan = surefit.check(
        model=experts(), data=token_rows(), optimizer=None, **{**OPTIONS, **options}
    )
    assert plan.job is not None
    job = plan.job
    assert job.pipeline.layout.padding_free == (padding_free == "auto")
    reference = copy.deepcopy(job.pipeline.module).train()
    micro_batches = [
        [job.train.value("input_ids", int(row)) for row in rows]
        for rows in job.batches.epoch(0).micro_batches(0)
    ]
    assert len(micro_batches) == 2
    tokens = [sum(map(len, rows)) for rows in micro_batches]
    targets = [sum(len(row) - 1 for row in rows) for rows in micro_batches]
    expected = 0.0
    for rows, size, count in zip(micro_batches, tokens, targets, strict=True):
        token, added = model_losses(reference, rows)
        share = size / sum(tokens)
        (token * count / sum(targets) + added * share).backward()
        expected += float(added.detach()) * share
    trained = {n: p for n, p in reference.named_parameters() if p.requires_grad}
    moved = {n: -0.1 * p.grad for n, p in trained.items() if p.grad is not None}
    before = {n: p.detach().clone() for n, p in trained.items()}
    run = train(experts(), tmp_path / "run", **options)
    (step,) = steps(tmp_path / "run")
    assert step["aux_loss"] == pytest.approx(expected, rel=1e-4)
    after = dict(run.model.named_parameters())
    largest = max(float(change.norm()) for change in moved.values())
    for name, change in moved.items():
        wrong = float((after[name].detach() - before[name] - change).norm())
        rounding = 1e-7 * float(before[name].norm())
        assert wrong <= rounding + 1e-4 * max(float(change.norm()), 0.01 * largest), name


def test_a_small_coefficient_is_not_lost_in_the_tolerance() -> None:
    plan = surefit.check(model=experts(coefficient=1e-4), data=token_rows(), **OPTIONS)
    assert any("Training adds it too" in note for note in plan.notes)


@pytest.mark.parametrize(("arch", "every"), [("nllb-moe", 1), ("switch_transformers", 2)])
def test_terms_of_models_that_compute_their_cross_entropy_inline(arch: str, every: int) -> None:
    torch.manual_seed(0)
    config = tiny_config(arch, TinySizes(VOCABULARY, hidden_size=32), family="seq2seq")
    config.encoder_sparse_step = config.decoder_sparse_step = every
    config.output_router_logits, config.router_aux_loss_coef = True, 0.5
    module: Any = AutoModelForSeq2SeqLM.from_config(config).eval()
    ids = torch.randint(3, VOCABULARY, (2, 9))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    batch["decoder_input_ids"] = ids.roll(1, 1)
    call, _ = match_arguments(module, list(batch))
    auxiliary = find_auxiliary_loss(module)
    assert auxiliary is not None
    outputs = replace(call, auxiliary=auxiliary)(module, batch)
    own = module(**batch, output_router_logits=True)
    token = cross_entropy(own.logits.flatten(0, 1), ids.flatten())
    assert float(outputs.auxiliary_loss.detach()) > 0.01
    assert float(outputs.auxiliary_loss.detach()) == pytest.approx(
        float((own.loss - token).detach()), rel=1e-4
    )
    assert outputs.loss is None
