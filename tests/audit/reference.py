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
from torch.nn.functional import cross_entropy

from audit.families import IGNORED, Family, make_model, make_tokenizer

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
    """Each step's loss, the trained weights at the end, and how AdamW amplifies errors in them.

    AdamW divides a gradient by its own size. `amplified` is how far an error as large as the
    model's largest gradient, in every step, would move each weight.
    """

    losses: list[float]
    weights: dict[str, torch.Tensor]
    amplified: dict[str, torch.Tensor]


def row_loss(model: Any, kind: str, row: Row) -> Loss:
    """Sum of cross-entropies of one row alone, and how many there are."""
    tokenizer = make_tokenizer(kind)
    if kind in ("ids", "messages"):
        ids, labels = (row["input_ids"], row["labels"]) if kind == "ids" else read_dialogue(row)
        logits, labels = model(input_ids=torch.tensor([ids])).logits[0, :-1], labels[1:]
    elif kind == "classes":
        logits = model(input_ids=torch.tensor([tokenizer(row["text"])["input_ids"]])).logits
        labels = [row["label"]]
    elif kind == "tags":
        ids = tokenizer(row["tokens"], is_split_into_words=True)["input_ids"]
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        labels = [IGNORED, *row["tags"], IGNORED]
    else:
        source, labels = (tokenizer(row[name])["input_ids"] for name in ("source", "target"))
        start = [tokenizer.pad_token_id, *labels[:-1]]
        given = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([start])}
        logits = model(**given).logits[0]
    targets = torch.tensor(labels)
    total = cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    return total, int((targets != IGNORED).sum())


def read_dialogue(row: Row) -> tuple[list[int], list[int]]:
    """Ids and labels of a dialogue: an answer's words and the end token after them are learned."""
    tokenizer = make_tokenizer("messages")
    ids: list[int] = []
    labels: list[int] = []
    for message in row["messages"]:
        said = tokenizer(message["content"])["input_ids"]
        if message["role"] == "user":
            ids += [tokenizer.cls_token_id, *said]
            labels += [IGNORED] * (1 + len(said))
        else:
            ids += [tokenizer.sep_token_id, *said, tokenizer.eos_token_id]
            labels += [IGNORED, *said, tokenizer.eos_token_id]
    return ids, labels


def sum_over_targets(losses: Sequence[Loss]) -> torch.Tensor:
    """The step's loss: every target counts the same."""
    return torch.stack([total for total, _ in losses]).sum() / sum(n for _, n in losses)


def mean_of_means(losses: Sequence[Loss]) -> torch.Tensor:
    """A fault that trainers had for years: a target of a short row counts more."""
    return torch.stack([total / n for total, n in losses]).mean()


def _targets(family: Family, adapters: Mapping[str, Any]) -> str | list[str]:
    """All linear layers; where some are left alone, those that the adapters name."""
    if not family.not_adapted:
        return "all-linear"
    named = sorted(name.split(".lora_A")[0] for name in adapters if ".lora_A" in name)
    assert not any(name.endswith(family.not_adapted) for name in named)
    return named


def build(family: Family, settings: Settings, adapters: Mapping[str, Any]) -> Any:
    """The model to train, with the initial adapters given where LoRA is asked for."""
    model = make_model(family)
    if not settings.lora_r:
        return model.double()
    from peft import LoraConfig, inject_adapter_in_model

    chosen = LoraConfig(
        r=settings.lora_r,
        lora_alpha=2 * settings.lora_r,
        target_modules=_targets(family, adapters),
        exclude_modules=list(family.trained_in_full) or None,
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
    kind: str,
    rows: Sequence[Row],
    settings: Settings,
    divide: Callable[[Sequence[Loss]], torch.Tensor] = sum_over_targets,
) -> Trained:
    """Every step trains on all rows."""
    model.train()
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(named.values(), lr=settings.lr, weight_decay=0.0)
    losses, amplified = [], {name: torch.zeros_like(p) for name, p in named.items()}
    for _ in range(settings.steps):
        optimizer.zero_grad()
        loss = divide([row_loss(model, kind, row) for row in rows])
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
            amplified[name] += settings.lr * largest / size
    return Trained(losses, {name: p.detach().clone() for name, p in named.items()}, amplified)
