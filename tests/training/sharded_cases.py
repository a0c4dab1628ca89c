"""Modules and options that are hard to divide over processes; run by test_sharded_training.py.

python tests/training/sharded_cases.py FOLDER PROCESSES PARALLEL CASE ...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import surefit
from builders import MeanPool, feature_rows
from surefit.models.sharding import shard_module
from surefit.plan import build_model
from surefit.processes import gather, process_index

ROWS = 37
"""Of which 33 are trained on: the last step is smaller, and processes have unequal shares of it."""

ODD = 7.25


def pool(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weight = mask.unsqueeze(-1).float()
    return (hidden * weight).sum(1) / weight.sum(1)


class Chosen(nn.Module):
    """Which of its experts a batch uses depends on the rows; one is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        hidden = self.first(inputs_embeds)
        number = int(attention_mask.sum()) % 2
        return self.head(pool(self.experts[number](hidden), attention_mask))


class Shared(nn.Module):
    """Blocks with a common weight, one called by another method, and a weight read outside."""

    class Block(nn.Module):
        def __init__(self, common: nn.Parameter) -> None:
            super().__init__()
            self.common, self.own = common, nn.Linear(8, 8)

        def encode(self, hidden: Any) -> Any:
            return torch.tanh(self.own(hidden @ self.common))

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        common = nn.Parameter(torch.eye(8))
        self.blocks = nn.ModuleList(Shared.Block(common) for _ in range(2))
        self.outer = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        hidden = self.first(inputs_embeds)
        for block in self.blocks:
            hidden = block.encode(hidden)
        for layer in self.outer:
            hidden = torch.relu_(nn.functional.linear(hidden, layer[0].weight)) + layer(hidden)
        return self.head(pool(hidden, attention_mask))


class Counting(nn.Module):
    """A batch norm, whose buffers each process changes, in blocks of a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(inplace=True), nn.Linear(16, 16))
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 3)

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        return self.head(self.norm(pool(self.body(inputs_embeds), attention_mask)))


class Live(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows that are read anew in every epoch."""

    def __init__(self) -> None:
        self.rows = feature_rows(ROWS)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Any:
        row = self.rows[place]
        return {"features": np.asarray(row["features"], "float32"), "label": row["label"]}


def summed_loss(outputs: Any, batch: Mapping[str, Any]) -> tuple[Any, int]:
    loss = nn.functional.cross_entropy(outputs, batch["labels"], reduction="sum")
    return loss, len(batch["labels"])


def chosen() -> dict[str, Any]:
    return {"model": Chosen(), "lr_by": {"first*": 1e-3}, "clip": 0.05}


def shared() -> dict[str, Any]:
    module = Shared()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    return {"model": module, "optimizer": optimizer, "loss_fn": summed_loss}


def counting() -> dict[str, Any]:
    torch.seed()  # other weights in each process
    return {"data": feature_rows(40), "model": Counting(), "freeze": ["body.0*"]}


def weighted_loss(outputs: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """Counts otherwise than by targets."""
    weight = torch.tensor([1.0, 5.0, 0.5])[batch["labels"]]
    losses = nn.functional.cross_entropy(outputs, batch["labels"], reduction="none")
    return (weight * losses).sum(), weight.sum()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """AdamW that does not turn rounding into steps (see bench/same_curves.py)."""
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-3)


def weighted() -> dict[str, Any]:
    return {"model": MeanPool(), "loss_fn": weighted_loss, "optimizer": adamw}


def live() -> dict[str, Any]:
    return {"model": Chosen(), "data": Live(), "optimizer": adamw}


def skipping() -> dict[str, Any]:
    """The loss of one row is not a number, whichever process has it."""
    rows = feature_rows(ROWS)

    def loss(outputs: Any, batch: Mapping[str, Any]) -> tuple[Any, int]:
        total, count = summed_loss(outputs, batch)
        is_odd = bool((batch["inputs_embeds"] == ODD).any())
        return total * (float("nan") if is_odd else 1.0), count

    by_length = sorted(rows, key=lambda row: len(row["features"]))
    by_length[ROWS // 4]["features"][0] = ODD  # planning tries the longest, shortest and median
    return {"data": rows, "model": Chosen(), "loss_fn": loss, "on_nonfinite": "skip"} | {
        "optimizer": adamw
    }


def by_shares() -> dict[str, Any]:
    """A model that counts as too large for one process; the last cases, as this stays so."""
    build_model.WHOLE_SHARE = 0.0
    return {"data": "texts.jsonl", "model": "llama", "task": "causal-lm", "optimizer": adamw}


def drawn() -> dict[str, Any]:
    return {**by_shares(), "from_scratch": True}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    each.__name__: each
    for each in (chosen, shared, counting, weighted, live, skipping, by_shares, drawn)
}


def overflow() -> list[tuple[float, bool]]:
    """Two steps with loss scaling (fp16); in the first, one shard of one process overflows."""
    from torch.distributed.device_mesh import init_device_mesh

    module = nn.Sequential(nn.Linear(4, 4))
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    shard_module(module, mesh)
    weight: Any = module[0].weight
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
    scaler, found = torch.amp.GradScaler("cpu", init_scale=8.0), []
    for step in range(2):
        before = weight.to_local().clone()
        scaler.scale(module(torch.ones(2, 4)).sum()).backward()
        if step == 0 and process_index() == 1:
            weight.grad.to_local().fill_(torch.inf)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append((scaler.get_scale(), bool((weight.to_local() != before).any())))
    return found


def train_case(folder: Path, name: str, processes: int, parallel: str) -> dict[str, Any]:
    """Train a case; its losses, choices and the buffers of all processes."""
    torch.manual_seed(1)
    asked = {"data": feature_rows(ROWS), "batch_size": 2, "max_steps": 6, "lr": 1e-2, "seed": 3}
    asked |= {"grad_accum": 4 // processes, "eval_every": 3, **CASES[name]()}
    run = surefit.train(**asked, parallel=parallel, output=str(folder / name))
    events = [e for e in run.history if e["event"] in ("step", "eval")]
    kept = asked["model"].buffers() if isinstance(asked["model"], nn.Module) else ()
    buffers = [buffer.double().sum().item() for buffer in kept]
    known = [e["metrics"] if e["event"] == "eval" else e for e in events if not e.get("skipped")]
    return {
        "losses": [each["loss"] for each in known],
        "skipped": sum(bool(e.get("skipped")) for e in events),
        "choice": run.plan["choices"].get("parallel"),
        "notes": " ".join(run.plan["notes"]),
        "buffers": gather(buffers),
    }


def main() -> None:
    folder, processes, parallel = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    found: dict[str, Any] = {}
    for name in sys.argv[4:]:
        found[name] = train_case(folder, name, processes, parallel)
    if processes > 1:
        found["overflow"] = gather(overflow())
    if process_index() == 0:
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
