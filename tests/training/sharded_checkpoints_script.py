"""Checkpoints of sharded models, in processes that are forked; run by test_sharded_checkpoints.py.

Saves and reads them in 2, 4, 1, 2, 3 and 1 processes, and compares all bits. Then kills processes,
damages files and fills the disk while step 2 is saved, or while the model is gathered. Prints what
is left of each.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401 - forked processes have it
import torch
from forked_processes import run, start_group
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from surefit.core import files
from surefit.errors import SurefitError
from surefit.models import sharding
from surefit.models.sharding import Skeleton, gather_whole, own_shard, shard_module, unique_tensors
from surefit.processes import is_main, num_processes, process_index
from surefit.run import checkpoints
from surefit.run.checkpoints import load_checkpoint, save_checkpoint
from surefit.run.choose_checkpoint import State, checkpoint_path, choose_checkpoint
from surefit.training.engine import take_from_first

DTYPES = (torch.bool, torch.int16, torch.float64, torch.float16, torch.uint8, torch.complex64)


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


def take_values() -> None:
    """All processes take the tensors of the first, whatever their dtypes and shapes."""
    start_group(num_processes())
    own = process_index()
    found = [torch.full((3,), 1 - own).to(dtype) for dtype in DTYPES]
    found += [torch.tensor(1.0 - own), torch.zeros(0), torch.full((3, 2), 1.0 - own).t()]
    take_from_first(found)
    assert all(bool((each == 1).all()) for each in found), found


def killed_in_save(folder: Path, victim: int) -> None:
    """One process dies when half of its file is written."""

    def write_half(path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    module, optimizer = _save_first(folder)
    if process_index() == victim:
        checkpoints._write_shard = write_half
    step(module, optimizer, 2)
    save_checkpoint(folder, module, optimizer, {}, State(step=2))


def killed_in_gather(folder: Path, victim: int) -> None:
    """One process dies when some tensors are gathered."""
    skeleton = Skeleton(make(None)[0])
    module, _ = _save_first(folder)
    seen = []

    def gather(tensor: Any) -> Any:
        seen.append(tensor)
        if process_index() == victim and len(seen) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return gather_whole(tensor)

    sharding.gather_whole = gather
    skeleton.gather(module, folder)


def not_finite(folder: Path, victim: int) -> None:
    """One share has a NaN."""
    module, optimizer = _save_first(folder)
    if process_index() == victim:
        with torch.no_grad():
            own_shard(module.embed.weight).fill_(float("nan"))
    _expect(lambda: save_checkpoint(folder, module, optimizer, {}, State(step=2)))


def full_disk(folder: Path, victim: int) -> None:
    """One process cannot write."""

    def no_space(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    module, optimizer = _save_first(folder)
    if process_index() == victim:
        checkpoints._write_shard = no_space
    _expect(lambda: save_checkpoint(folder, module, optimizer, {}, State(step=2)))


def damaged(folder: Path, victim: int) -> None:
    """A shard is changed after it was written; the checkpoint is refused by all processes."""
    module, optimizer = _save_first(folder)
    step(module, optimizer, 2)
    save_checkpoint(folder, module, optimizer, {}, State(step=2))
    torch.distributed.barrier()  # process 0 has given it its name
    if process_index() == victim:
        shard = checkpoint_path(folder, 2) / "model-00002-of-00002.safetensors"
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(bytes(content))
    torch.distributed.barrier()
    _expect(lambda: load_checkpoint(checkpoint_path(folder, 2), module, optimizer))


def left_alone(folder: Path, victim: int) -> None:
    """Process 0 reads the model from the shards while the others wait for something else."""
    gathered, read = Skeleton(make(None)[0]), Skeleton(make(None)[0])
    module, _ = _save_first(folder)
    expected = gathered.gather(module, folder)
    if process_index() == victim:
        return
    alone = read.allocate(module, folder)
    load_checkpoint(checkpoint_path(folder, 1), alone)
    assert alone.head.weight is alone.embed.weight
    for name, value in expected.state_dict().items():
        assert torch.equal(alone.state_dict()[name], value), name


def _expect(call: Any) -> None:
    try:
        call()
    except (SurefitError, OSError) as error:
        line = " ".join(["failed with", *str(error).split("\n")])
        print(f"{line}\n", end="")  # in one write, for both processes print it
    else:
        raise AssertionError("expected an error")


def _save_first(folder: Path) -> tuple[Any, Any]:
    module, optimizer = make(start_group(num_processes()))
    step(module, optimizer, 1)
    save_checkpoint(folder, module, optimizer, {}, State(step=1))
    return module, optimizer


SCENARIOS = {
    killed_in_save: (0, 1),
    killed_in_gather: (1,),
    not_finite: (1,),
    full_disk: (1,),
    damaged: (1,),
    left_alone: (1,),
}
"""Each with the processes that it happens to."""


def reshard(folder: Path) -> None:
    before = None
    for number, count in enumerate((2, 4, 1, 2, 3, 1), 1):
        codes = run(count, train_and_save, folder, number, before)
        assert codes == [0] * count, (number, codes)
        names = sorted(p.name for p in checkpoint_path(folder, number).rglob("*"))
        print("resharded", count, " ".join(names))
        before = number


def main(root: Path) -> None:
    assert run(2, take_values) == [0, 0]
    folder = root / "checkpoints"
    folder.mkdir()
    reshard(folder)
    for scenario, victims in SCENARIOS.items():
        for victim in victims:
            shutil.rmtree(folder)
            folder.mkdir()
            print(f"== {scenario.__name__} {victim}", flush=True)
            codes = run(2, scenario, folder, victim)
            files.sweep(folder)
            chosen = choose_checkpoint(folder)
            print("codes", *codes)
            print("left", *sorted(path.name for path in folder.iterdir()))
            print("resumes from", chosen.path.name if chosen.path else None, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
