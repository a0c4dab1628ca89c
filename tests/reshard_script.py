"""Saves and reads sharded checkpoints in 2, 4, 1 and 2 processes; prints what was compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401 - forked processes have it
import torch
from forked_processes import run, start_group
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from surefit.models.shard_module import shard_module
from surefit.models.sharded_tensors import gather_whole, unique_tensors
from surefit.processes import is_main, num_processes
from surefit.run.checkpoint_state import State
from surefit.run.checkpoints import load_checkpoint, save_checkpoint
from surefit.run.choose_checkpoint import checkpoint_path


class Odd(nn.Module):
    """Tied weights, sizes that no number of processes divides, one number, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
        self.norm = nn.BatchNorm1d(5)
        self.few = nn.Linear(5, 1)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.relu(layer(x))
        x = self.norm(x)
        return self.head(x).square().mean() + self.few(x).mean()


def make(mesh: Any) -> tuple[nn.Module, AdamW]:
    torch.manual_seed(0)
    module = Odd()
    if mesh is not None:
        shard_module(module, mesh)
    return module, AdamW(module.parameters(), lr=0.1)


def step(module: nn.Module, optimizer: AdamW, seed: int) -> None:
    torch.manual_seed(seed)
    module(torch.randint(7, (6,))).backward()  # alike in all processes, so their mean is it
    optimizer.step()
    optimizer.zero_grad()


def whole(module: nn.Module, optimizer: AdamW) -> dict[str, torch.Tensor]:
    """All weights, buffers and optimizer state, gathered."""
    held = unique_tensors(module)
    found = {name: gather_whole(t.detach()).clone() for name, (t, _) in held.items()}
    names = {id(p): name for name, p in module.named_parameters()}
    for parameter, slots in optimizer.state.items():
        for slot, value in slots.items():
            found[f"{slot} {names[id(parameter)]}"] = gather_whole(value).clone()
    return found


def train_and_save(folder: Path, number: int, before: int | None) -> None:
    """Resume from a step, compare, train one more, save it and what it is, whole."""
    mesh = start_group(num_processes())
    module, optimizer = make(mesh)
    if before is not None:
        step(module, optimizer, 99)  # what is loaded must replace all of it
        state, _ = load_checkpoint(checkpoint_path(folder, before), module, optimizer)
        assert state == State(step=before), state
        expected = torch.load(folder / f"whole-{before}.pt")
        found = whole(module, optimizer)
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), name
        for parameter in optimizer.state:  # as the optimizer makes them, so that it can go on
            moment = optimizer.state[parameter]["exp_avg"]
            assert isinstance(moment, DTensor) == isinstance(parameter, DTensor)
    step(module, optimizer, number)
    save_checkpoint(folder, module, optimizer, {}, State(step=number))
    now = whole(module, optimizer)
    if is_main():
        torch.save(now, folder / f"whole-{number}.pt")


def main(folder: Path) -> None:
    before = None
    for number, count in enumerate((2, 4, 1, 2, 3, 1), 1):
        codes = run(count, train_and_save, folder, number, before)
        assert codes == [0] * count, (number, codes)
        names = sorted(p.name for p in checkpoint_path(folder, number).rglob("*"))
        print(number, count, " ".join(names))
        before = number


if __name__ == "__main__":
    main(Path(sys.argv[1]))
