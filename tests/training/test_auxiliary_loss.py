"""The auxiliary loss of a mixture of experts is trained on, as the model defines it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

import surefit
from builders import echo_rows
from surefit.models.tiny_config import TinySizes, tiny_config

VOCABULARY = 64
FAMILIES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "phimoe", "jamba", "jetmoe"]


def experts(arch: str = "mixtral", coefficient: float = 0.5) -> Any:
    """A small mixture of experts that adds its load balancing to its own loss."""
    torch.manual_seed(0)
    config = tiny_config(arch, TinySizes(VOCABULARY, hidden_size=32))
    config.output_router_logits = True
    name = "aux_loss_coef" if hasattr(config, "aux_loss_coef") else "router_aux_loss_coef"
    setattr(config, name, coefficient)
    return AutoModelForCausalLM.from_config(config)


def token_rows(count: int = 24, seed: int = 0) -> list[dict[str, list[int]]]:
    draw = np.random.default_rng(seed)
    return [
        {"input_ids": draw.integers(3, VOCABULARY, int(length)).tolist()}
        for length in draw.integers(4, 14, count)
    ]


def train(module: Any, folder: Path, rows: Any = None, **options: Any) -> Any:
    settings = {"max_steps": 3, "eval_share": 0, "lr": 1e-3, "batch_size": 4, "warmup": 0}
    return surefit.train(
        data=rows or token_rows(), model=module, task="causal-lm", output=folder / "run",
        **{**settings, **options},
    )


def steps_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "run" / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "step"]


def plan_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run" / "plan.json").read_text())


def own_losses(module: Any, rows: list[list[int]]) -> tuple[float, float]:
    """Token loss and auxiliary loss of one padded batch, as the model itself computes them."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    labels = ids.masked_fill(mask == 0, -100)
    module.eval()
    with torch.no_grad():
        whole = module(input_ids=ids, attention_mask=mask, labels=labels).loss
        module.config.output_router_logits = False
        token = module(input_ids=ids, attention_mask=mask, labels=labels).loss
        module.config.output_router_logits = True
    module.train()
    return float(token), float(whole - token)
