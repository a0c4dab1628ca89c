"""Measures what torch's own FSDP allocates, beside what the trace of the model predicts.

`python bench/count_sharded.py` prints a line for each case of FSDP: its name, the bytes
predicted and the bytes that torch's allocator counts. The group of processes is fake: collectives
return at once, and all else is real.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from builders import allocated_peak
from surefit.memory.trace_step import Sharing, trace_training
from surefit.models.call import Call
from surefit.models.sharding import meta_copy, shard_module
from surefit.models.transformers_models import enable_checkpointing

COUNT = 4
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, accumulating": {"accumulates": True},
    "llama, checkpointing": {"saves": True},
    "llama, tied": {"tied": True},
    "llama, frozen body": {"frozen": True},
    "llama, bf16": {"dtype": torch.bfloat16},
    "llama, bf16, accumulating": {"dtype": torch.bfloat16, "accumulates": True},
    "blocks": {"own": True},
}


class Blocks(nn.Module):
    """Blocks in a list, and a head."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(4)
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, input_ids: Any) -> Any:
        width = self.head.in_features
        states = nn.functional.one_hot(input_ids % width, width).float()
        for block in self.blocks:
            states = block(states) + states
        return self.head(states)


def build(case: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    if case.get("own"):
        return Blocks()
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1000,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=case.get("tied", False),
        )
    )
    if case.get("saves"):
        enable_checkpointing(model)
    if case.get("frozen"):
        for name, weight in model.named_parameters():
            weight.requires_grad_("down_proj" in name)
    return model


def loss(outputs: Any, batch: Any) -> Any:
    logits = getattr(outputs, "logits", outputs).float()
    targets = batch["input_ids"].flatten()
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum"), 1


def count(case: dict[str, Any], batch: Any) -> int:
    """Bytes of torch's allocator at the peak of a later step."""
    dtype = case.get("dtype")
    model: Any = build(case)
    model = shard_module(model, dist.init_device_mesh("cpu", (COUNT,)), dtype).train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)

    def micro_batch() -> None:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            total, _ = loss(model(**batch), batch)
        total.backward()

    def begin() -> None:
        if case.get("accumulates"):
            micro_batch()

    begin()
    micro_batch()
    optimizer.step()
    optimizer.zero_grad()
    begin()
    grads = [weight.grad for weight in trained if weight.grad is not None]
    return allocated_peak(micro_batch, model, optimizer, [*grads, *batch.values()])


def predict(case: dict[str, Any], batch: Any) -> int:
    """The peak of live tensors, as the plan of a device has it."""
    module, call = meta_copy(build(case), Call({"input_ids": "input_ids"}))
    return trace_training(
        module,
        call,
        loss,
        batch,
        accumulates=case.get("accumulates", False),
        dtype=case.get("dtype"),
        sharing=Sharing(COUNT, "fsdp"),
    ).peak


def main() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=COUNT)
    for name, case in CASES.items():
        for length in (96, 4):  # activations are most of the peak, or the weights are
            batch = {"input_ids": torch.arange(2 * length).reshape(2, length)}
            found = predict(case, batch), count(case, batch)
            print(f"{name}, length {length}", *found, sep="\t", flush=True)


if __name__ == "__main__":
    main()
