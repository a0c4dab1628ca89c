"""Checkpoints are on their way to the disk while training goes on, and whole or not there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from surefit import atomic
from surefit.run.checkpoints import Saver, State, checkpoint_path, load_checkpoint


def _parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    return module, torch.optim.AdamW(module.parameters())


def test_a_slow_disk_does_not_stop_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, optimizer = _parts()
    before = module.weight.detach().clone()
    may_go_on, sync = threading.Event(), atomic._sync

    def slow(path: Path) -> None:
        assert may_go_on.wait(30)
        sync(path)

    monkeypatch.setattr(atomic, "_sync", slow)
    with Saver(tmp_path, keep=2) as saver:
        saver.save(module, optimizer, {}, State(step=1))
        assert not checkpoint_path(tmp_path, 1).exists()
        with torch.no_grad():
            module.weight.zero_()  # what training does meanwhile
        may_go_on.set()
        saver.save(module, optimizer, {}, State(step=2))
    other, _ = _parts()
    state, _ = load_checkpoint(checkpoint_path(tmp_path, 1), other)
    assert state.step == 1
    assert torch.equal(other.weight, before)
    load_checkpoint(checkpoint_path(tmp_path, 2), other)
    assert not other.weight.any()


def test_old_ones_are_deleted_once_the_new_one_is_there(tmp_path: Path) -> None:
    module, optimizer = _parts()
    with Saver(tmp_path, keep=1) as saver:
        for step in (1, 2, 3):
            saver.save(module, optimizer, {}, State(step=step, best_step=1))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000001", "step-00000003"]


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    module, optimizer = _parts()
    monkeypatch.setattr(atomic, "_sync", full)
    with pytest.raises(OSError, match="No space left"), Saver(tmp_path, keep=1) as saver:
        saver.save(module, optimizer, {}, State(step=1))
    assert list(tmp_path.iterdir()) == []


def test_a_process_short_of_memory_saves_though_its_last_save_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(path: Path) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError

    module, optimizer = _parts()
    monkeypatch.setattr(atomic, "_sync", short)
    with Saver(tmp_path, keep=1) as saver:
        saver.save(module, optimizer, {}, State(step=1))
        saver.save_at_once()
        saver.save(module, optimizer, {}, State(step=2))
        assert checkpoint_path(tmp_path, 2).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
