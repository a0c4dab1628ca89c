"""A run with `max_memory_gb` never exceeds it; what of a process's memory counts."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import surefit
from builders import MeanPool, feature_rows
from surefit.gigabytes import GB
from surefit.memory import process_memory
from surefit.memory.limit import Limit
from surefit.memory.process_memory import (
    MemoryGuard,
    anonymous_bytes,
    counted_bytes,
    free_memory,
    is_out_of_memory,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="bounds are enforced on Linux")
TESTS = str(Path(__file__).parents[1])

SCRIPT = """
import sys
sys.path[:0] = [{tests!r}, {here!r}]
import torch, surefit
from torch import nn
from builders import MeanPool, feature_rows
import surefit.memory.predict_peak as predict_peak
from surefit.errors import MemoryLimitError
from surefit.memory.process_memory import anonymous_bytes

class Grows(MeanPool):
    '''Its memory changes after the measured step: by an allocation at once, or step by step.'''

    def __init__(self, at_once, each):
        torch.manual_seed(0)
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.at_once, self.each, self.calls, self.held = at_once, each, 0, []

    def forward(self, inputs_embeds, attention_mask):
        states = self.norm(inputs_embeds.transpose(1, 2)).transpose(1, 2)
        if self.training and not inputs_embeds.is_meta and self.counts:
            self.calls += 1
            if self.calls > 3:
                self.held.append([torch.ones(250_000) for _ in range(self.each)])
            if self.calls > 6 and self.at_once:
                torch.ones(self.at_once * 250_000)
        return super().forward(states, attention_mask)

Grows.counts = False
def run(model, limit, **more):
    counting = lambda event: setattr(Grows, "counts", event["event"] == "step")
    return surefit.train(model=model, data=feature_rows(88), batch_size=8, epochs=2,
                         max_memory_gb=limit, callbacks=[counting], **more)
"""


def watched(script: str, folder: Path, *arguments: str) -> tuple[int, int, str]:
    """Exit code, peak of anonymous and shared memory in bytes, and output of a script."""
    file = folder / "script.py"
    file.write_text(SCRIPT.format(tests=TESTS, here=str(folder)) + script)
    with (folder / "out.txt").open("w+") as out:
        process = subprocess.Popen(
            [sys.executable, str(file), *arguments], stdout=out, stderr=subprocess.STDOUT
        )
        peak = 0
        while process.poll() is None:
            text = Path(f"/proc/{process.pid}/status").read_text()
            found = re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", text)
            peak = max(peak, sum(map(int, found)) * 1024)
            time.sleep(0.005)
        out.seek(0)
        return process.returncode, peak, out.read()


@linux
@pytest.mark.slow
@pytest.mark.parametrize(("at_once", "each"), [(1000, 0), (0, 30)])
def test_a_run_that_grows_is_stopped_below_its_limit(
    at_once: int, each: int, tmp_path: Path
) -> None:
    script = f"""
limit = 0.5
try:
    run(Grows({at_once}, {each}), limit, output={str(tmp_path / "run")!r})
except MemoryLimitError as error:
    print("STOPPED", error.message, error.fix)
"""
    code, peak, out = watched(script, tmp_path)
    assert code == 0, out
    assert peak <= 0.5 * GB
    assert "STOPPED" in out
    assert "0.50 GB (max_memory_gb)" in out
    saved = re.search(r"Step (\d+) is saved", out)
    assert saved is not None, out
    assert "--resume" in out


@linux
@pytest.mark.slow
def test_a_measured_step_beyond_the_limit_is_refused_without_exceeding_it(tmp_path: Path) -> None:
    script = f"""
predict_peak.PROCESS_BYTES = 0
class Heavy(MeanPool):
    '''1.2 GB that the trace does not see.'''
    def forward(self, inputs_embeds, attention_mask):
        if self.training and not inputs_embeds.is_meta and torch.is_grad_enabled() \\
                and len(inputs_embeds) == 8:
            blocks = [torch.ones(2_500_000) for _ in range(120)]
        return super().forward(inputs_embeds, attention_mask)
try:
    run(Heavy(), 0.6, output={str(tmp_path / "run")!r})
except surefit.FindingError as error:
    print("REFUSED", error.findings[0].code, error.message)
"""
    code, peak, out = watched(script, tmp_path)
    assert code == 0, out
    assert "REFUSED SF400 The largest micro-batch" in out
    assert peak <= 0.6 * GB
    assert not (tmp_path / "run").exists()


@linux
def test_a_run_with_room_is_not_disturbed(tmp_path: Path) -> None:
    room = (anonymous_bytes() + 400_000_000) / GB
    options: dict[str, Any] = {"data": feature_rows(44), "batch_size": 4, "epochs": 2}
    runs = []
    for limit in (None, room):
        torch.manual_seed(0)
        output = str(tmp_path / str(limit))
        runs.append(surefit.train(model=MeanPool(), max_memory_gb=limit, output=output, **options))
    losses = [[e["loss"] for e in run.history if e["event"] == "step"] for run in runs]
    assert losses[0] == losses[1]


@linux
def test_the_bound_is_lifted_afterwards() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    guard = MemoryGuard(Limit(anonymous_bytes() + 200_000_000, "max_memory_gb"))
    with guard.enforced():
        with pytest.raises(RuntimeError) as caught:
            torch.ones(100_000_000)
        assert guard.ran_out(caught.value)
        torch.ones(10_000_000)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    torch.ones(100_000_000)


def test_limits_of_the_machine_are_left_to_the_kernel() -> None:
    assert not MemoryGuard(Limit(10, "free on this machine")).is_active
    assert not MemoryGuard(Limit(10, "max_memory_gb", on_device=True)).is_active
    assert not is_out_of_memory(RuntimeError("could not create a primitive"))
    assert not is_out_of_memory(ValueError("not enough memory"))


COUNT = 1_000_000


def counted(*tensors: torch.Tensor) -> int:
    return counted_bytes((each.data_ptr(), each.nbytes) for each in tensors)


@linux
def test_weights_in_a_mapped_file_count_once_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.ones(COUNT), "b": torch.ones(COUNT)}, path)
    mapped = load_file(path)
    assert counted(*mapped.values()) == 0
    own = torch.ones(COUNT)
    assert counted(own, *mapped.values()) == own.nbytes
    mapped["a"] += 1
    pages = counted(*mapped.values())
    assert 4 * COUNT <= pages <= 4 * COUNT + 2 * 4096  # once, though two tensors are in the file
    shared = torch.ones(COUNT).share_memory_()
    assert counted(shared) == shared.nbytes


@linux
def test_garbage_in_cycles_is_returned_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = []
    held = torch.ones(COUNT)
    is_there = weakref.ref(held)
    cycle: list[object] = [held]
    cycle.append(cycle)
    monkeypatch.setattr(process_memory, "trim_heap", lambda: trimmed.append(is_there()))
    del held, cycle
    assert is_there() is not None
    free_memory()
    assert trimmed == [None]
