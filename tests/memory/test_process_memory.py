"""What of a process's memory counts: not what is mapped from files, nor garbage."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from surefit.memory import process_memory
from surefit.memory.process_memory import counted_bytes, free_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
COUNT = 1_000_000


def counted(*tensors: torch.Tensor) -> int:
    return counted_bytes((each.data_ptr(), each.nbytes) for each in tensors)


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


def test_shared_memory_counts() -> None:
    shared = torch.ones(COUNT).share_memory_()
    assert counted(shared) == shared.nbytes


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
