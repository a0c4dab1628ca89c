"""Runs of two processes against one: the same losses, whatever the speed or memory of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surefit.memory.limit import free_on_cuda
from surefit.run.sharded_files import SHARDS
from surefit.selftest.outcome import CheckFailedError, Figures, NotApplicableError, require
from surefit.selftest.small_data import write_vectors
from surefit.selftest.small_runs import settings_for

TOLERANCE = 1e-4
"""Relative difference of losses between one and two processes, in float32."""
STEPS = 12
UNEQUAL = '''"""A classifier whose second process is slow."""
import os
import time

import torch
from torch import nn

IS_SECOND = os.environ.get("LOCAL_RANK") == "1"


class Unequal(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, features):
        if IS_SECOND and features.device.type != "meta":
            time.sleep(0.05)
        return self.layers(features)


def make():
    torch.manual_seed(0)
    return Unequal()
'''
HOLD = """import sys, torch
held = torch.empty(int(sys.argv[2]), dtype=torch.uint8, device=sys.argv[1])
print("held", flush=True)
sys.stdin.read()  # until the check closes it, or ends
"""


def same_losses(device: str, folder: Path) -> Figures:
    """Two processes have the losses of one: data parallel (DDP) and sharded (FSDP2)."""
    _need_two(device)
    options = ["--data", settings_for(folder)["data"], "--model", "tiny:llama", "--task", "sft"]
    options += ["--max-steps", str(STEPS), "--set", "precision=fp32", "--batch-size", "8"]
    one = _train(folder, "one", [*options, "--grad-accum", "2"])
    figures: Figures = {}
    for parallel in ("ddp", "fsdp"):
        spread = ["--processes", "2", "--set", f"parallel={parallel}"]
        figures |= _compare(one, _train(folder, parallel, [*options, *spread]), f"{parallel}_")
        shards = len([*(folder / parallel / "checkpoints").glob(f"*/{SHARDS}/*.safetensors")])
        figures[f"{parallel}_shards"] = shards
        require(bool(shards) == (parallel == "fsdp"), f"{parallel} was not what ran", figures)
    return figures


def unequal_processes(device: str, folder: Path) -> Figures:
    """One process is delayed in every step, and on CUDA has half the memory of the other."""
    _need_two(device)
    (folder / "unequal.py").write_text(UNEQUAL, encoding="utf-8")
    options = ["--data", str(write_vectors(folder)), "--model", "unequal:make"]
    options += ["--task", "tabular-classification", "--set", "precision=fp32"]
    options += ["--max-steps", str(STEPS), "--batch-size", "8"]
    one = _train(folder, "one", [*options, "--grad-accum", "2"])
    if device != "cuda":
        return _compare(one, _train(folder, "two", [*options, "--processes", "2"]))
    with held_elsewhere("cuda:1", free_on_cuda(1) // 2):
        left = free_on_cuda(1)
        figures = _compare(one, _train(folder, "two", [*options, "--processes", "2"]))
        _train(folder, "auto", [*options[:-1], "auto", "--processes", "2"])
    plan = json.loads((folder / "auto" / "plan.json").read_text(encoding="utf-8"))
    figures |= {"free_bytes": left, "limit_bytes": plan["memory"]["limit_bytes"]}
    within = figures["limit_bytes"] <= left
    require(within, "the limit is not that of the process with half the memory", figures)
    return figures


@contextmanager
def held_elsewhere(device: str, num_bytes: int) -> Iterator[None]:
    """While the block runs, another process holds so much memory of a device.

    Memory of the process that trains would not do: what torch has reserved in it counts as free.
    """
    command = [sys.executable, "-c", HOLD, device, str(num_bytes)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline().strip() != "held":
            raise CheckFailedError(f"{num_bytes} bytes of {device} could not be taken")
        yield


def _need_two(device: str) -> None:
    import torch

    if device != "cpu" and torch.accelerator.device_count() < 2:
        raise NotApplicableError(f"there is one {device} device; this check needs two")


def _train(folder: Path, name: str, options: list[str]) -> list[float]:
    """The losses of a run of the command line."""
    command = [sys.executable, "-m", "surefit", "train", *options, "--output", name]
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = " ".join(done.stderr.split()[-60:])
        raise CheckFailedError(f"{' '.join(command[1:])} ended with {done.returncode}: {last}")
    events = (folder / name / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [e["loss"] for e in map(json.loads, events) if e["event"] == "step"]


def _compare(one: list[float], two: list[float], prefix: str = "") -> Figures:
    worst = max((abs(a - b) / max(abs(a), 1e-9) for a, b in zip(one, two, strict=False)), default=1)
    figures: Figures = {f"{prefix}steps": len(two), f"{prefix}largest_relative_difference": worst}
    require(len(one) == len(two) == STEPS, "the runs have other numbers of steps", figures)
    require(worst <= TOLERANCE, "the losses differ", figures)
    return figures
