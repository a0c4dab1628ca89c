"""Law 3: a loss is a sum and a count; one divisor per optimizer step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import surefit

SHAPES = ((4, 1), (9, 7), (6, 0), (12, 3), (5, 3), (20, 2), (7, 5), (3, 1))
ROWS = [
    {
        "input_ids": list(range(3, 3 + length)),
        "labels": [-100] * skip + list(range(3 + skip, 3 + length)),
    }
    for length, skip in SHAPES
]


def make_model(dtype: torch.dtype) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).to(dtype)


def one_step(folder: Path, dtype: torch.dtype, **options: Any) -> dict[str, torch.Tensor]:
    """The gradient that the optimizer is given in the one step there is."""
    model = make_model(dtype)
    found: dict[str, torch.Tensor] = {}

    class Recorder(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            found.update({name: p.grad.clone() for name, p in model.named_parameters()})

    surefit.train(
        data=ROWS,
        model=model,
        task="sft",
        output=str(folder),
        optimizer=lambda parameters: Recorder(parameters, lr=1.0),
        epochs=1,
        eval_share=0.0,
        clip=0,
        **options,
    )
    return found


def reference(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The gradient of the mean over all targets, row by row, without padding."""
    model = make_model(dtype)
    total = torch.zeros((), dtype=dtype)
    count = 0
    for row in ROWS:
        logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
        labels = torch.tensor(row["labels"][1:])
        kept = labels != -100
        total = total + torch.nn.functional.cross_entropy(
            logits[kept], labels[kept], reduction="sum"
        )
        count += int(kept.sum())
    (total / count).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def relative_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).norm() / b[name].norm()) for name in b)


@pytest.mark.parametrize(
    ("batch_size", "grad_accum", "dtype", "tolerance"),
    [
        (8, 1, torch.float64, 1e-10),
        (4, 2, torch.float64, 1e-10),
        (1, 8, torch.float64, 1e-10),
        (8, 1, torch.float32, 1e-5),
        (4, 2, torch.float32, 1e-5),
    ],
)
def test_accumulated_gradient_is_that_of_one_batch(
    tmp_path: Path, batch_size: int, grad_accum: int, dtype: torch.dtype, tolerance: float
) -> None:
    found = one_step(tmp_path / "run", dtype, batch_size=batch_size, grad_accum=grad_accum)
    assert relative_difference(found, reference(dtype)) < tolerance


def test_evaluation_does_not_depend_on_the_batch_size(tmp_path: Path) -> None:
    losses = []
    for batch_size in (1, 3, 8):
        run = surefit.train(
            data=ROWS,
            eval_data=ROWS[:7],
            model=make_model(torch.float64),
            task="sft",
            output=str(tmp_path / str(batch_size)),
            batch_size=batch_size,
            max_steps=1,
            lr=1e-30,
        )
        losses.append(run.metrics["loss"])
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-9)


def test_own_scalar_loss_counts_as_mean_over_targets(tmp_path: Path) -> None:
    class OwnLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model(torch.float64)

        def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, Any]:
            loss = self.model(input_ids, attention_mask=attention_mask, labels=labels).loss
            return {"loss": loss}

    plan = surefit.check(data=ROWS, model=OwnLoss(), task="sft", eval_share=0.0)
    assert plan.ok
    assert any("counts as a mean over its labelled targets" in note for note in plan.notes)
