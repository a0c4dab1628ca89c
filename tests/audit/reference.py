"""Training steps as a textbook writes them: one row at a time, no padding, one division.

Nothing here comes from surefit: torch computes, transformers has the models, peft the adapters.
The reference computes in float64, so that the differences measured are those of the side under
test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from audit.families import IGNORED, Family, make_model, make_tokenizer
from torch.nn.functional import cross_entropy

Row = Mapping[str, Any]
Loss = tuple[torch.Tensor, int]


@dataclass(frozen=True)
class Settings:
    """What both sides are told."""

    lr: float = 1e-3
    clip: float = 1.0
    steps: int = 3
    lora_r: int = 0


@dataclass(frozen=True)
class Trained:
    """Each step's loss, the trained weights at the end, and how exact float32 can be on each."""

    losses: list[float]
    weights: dict[str, torch.Tensor]
    rounding: dict[str, torch.Tensor]


ROUNDING = 2e-6
"""What float32 leaves of a gradient's exactness, as a share of the largest gradient."""


def row_loss(model: Any, task: str, row: Row) -> Loss:
    """Sum of cross-entropies of one row alone, and how many there are."""
    tokenizer = make_tokenizer(task)
    if task in ("causal-lm", "sft"):
        logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
        labels = torch.tensor(row["labels"][1:])
    elif task == "text-classification":
        logits = model(input_ids=torch.tensor([tokenizer(row["text"])["input_ids"]])).logits
        labels = torch.tensor([row["label"]])
    elif task == "token-classification":
        ids = tokenizer(row["tokens"], is_split_into_words=True)["input_ids"]
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        labels = torch.tensor([IGNORED, *row["tags"], IGNORED])
    else:
        source = torch.tensor([tokenizer(row["source"])["input_ids"]])
        target = tokenizer(row["target"])["input_ids"]
        start = [tokenizer.pad_token_id, *target[:-1]]
        logits = model(input_ids=source, decoder_input_ids=torch.tensor([start])).logits[0]
        labels = torch.tensor(target)
    total = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return total, int((labels != IGNORED).sum())


def sum_over_targets(losses: Sequence[Loss]) -> torch.Tensor:
    """The step's loss: every target counts the same."""
    return torch.stack([total for total, _ in losses]).sum() / sum(n for _, n in losses)


def mean_of_means(losses: Sequence[Loss]) -> torch.Tensor:
    """A fault that trainers had for years: a target of a short row counts more."""
    return torch.stack([total / n for total, n in losses]).mean()


def build(family: Family, settings: Settings, adapters: Mapping[str, Any]) -> Any:
    """The model to train, with the initial adapters given where LoRA is asked for."""
    model = make_model(family)
    if not settings.lora_r:
        return model.double()
    from peft import LoraConfig, inject_adapter_in_model

    chosen = LoraConfig(
        r=settings.lora_r,
        lora_alpha=2 * settings.lora_r,
        target_modules="all-linear",
        exclude_modules=[*family.not_adapted, *family.trained_in_full] or None,
        modules_to_save=list(family.trained_in_full) or None,
    )
    model = inject_adapter_in_model(chosen, model).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(adapters[name])
    return model


def train(
    model: Any,
    task: str,
    rows: Sequence[Row],
    settings: Settings,
    divide: Callable[[Sequence[Loss]], torch.Tensor] = sum_over_targets,
) -> Trained:
    """Every step trains on all rows."""
    model.train()
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(named.values(), lr=settings.lr, weight_decay=0.0)
    losses, rounding = [], {name: torch.zeros_like(p) for name, p in named.items()}
    for _ in range(settings.steps):
        optimizer.zero_grad()
        loss = divide([row_loss(model, task, row) for row in rows])
        loss.backward()
        losses.append(float(loss.detach()))
        reached = {name: p for name, p in named.items() if p.grad is not None}
        if settings.clip:
            torch.nn.utils.clip_grad_norm_(reached.values(), settings.clip)
        largest = max(float(p.grad.abs().max()) for p in reached.values())
        optimizer.step()
        for name, parameter in reached.items():
            state = optimizer.state[parameter]
            size = (state["exp_avg_sq"] / (1 - 0.999 ** state["step"])).sqrt() + 1e-8
            rounding[name] += settings.lr * (ROUNDING * largest / size).clamp(max=2.0)
    return Trained(losses, {name: p.detach().clone() for name, p in named.items()}, rounding)
