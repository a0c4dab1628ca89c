"""Around the steps: settings of torch, workers, checkpoints being written, the run's folder."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from builders import MeanPool, assert_same_weights, events_of, feature_rows, same_pool
from surefit.batches.loading import from_workers
from surefit.core import files
from surefit.errors import FindingError, RunFailedError
from surefit.run.checkpoints import load_checkpoint, save_checkpoint
from surefit.run.choose_checkpoint import State, checkpoint_path, choose_checkpoint
from surefit.speed.numerics import deterministic_algorithms
from surefit.training import begin_run
from surefit.training.begin_run import check_common_folder
from surefit.training.engine import make_accelerator, make_engine
from surefit.training.saving import Saver


def test_deterministic_algorithms_are_for_the_run_that_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    seen, told = [], []

    class Noting(MeanPool):
        def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
            told.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
            return super().forward(inputs_embeds, attention_mask)

    def note(event: Any) -> None:
        seen.append(torch.are_deterministic_algorithms_enabled())

    options: dict[str, Any] = {"data": feature_rows(20), "max_steps": 1, "callbacks": [note]}
    for wanted in (True, False):
        run = str(tmp_path / str(wanted))
        surefit.train(model=Noting(), deterministic=wanted, output=run, **options)
        assert set(seen) == {wanted}
        assert set(told) == {":4096:8"}  # torch reads it at its first matrix product
        seen.clear()
        assert not torch.are_deterministic_algorithms_enabled()
    surefit.check(data=feature_rows(20), model=MeanPool(), deterministic=True, fit="measured")
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_the_user_has_set_is_put_back() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with deterministic_algorithms(False):
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        with deterministic_algorithms(True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_errors_in_workers_are_raised_here() -> None:
    def fail_at_five(number: int) -> dict[str, torch.Tensor]:
        if number == 5:
            raise ValueError("row 5 is bad")
        return {"n": torch.tensor(number)}

    with pytest.raises(ValueError, match="row 5 is bad"):
        list(from_workers(range(8), fail_at_five, 2))


def test_batches_are_made_here_where_a_worker_is_killed() -> None:
    parent, said = os.getpid(), list[str]()

    def dies_at_five(number: int) -> dict[str, torch.Tensor]:
        if number == 5 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"n": torch.tensor(number)}

    made = list(from_workers(range(8), dies_at_five, 2, notice=said.append))
    assert [int(batch["n"]) for batch in made] == [*range(8)]
    assert len(said) == 1
    assert "without workers" in said[0]


def test_a_run_with_workers_equals_one_without(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": feature_rows(50), "epochs": 2, "batch_size": 4}
    runs = [
        surefit.train(model=same_pool(0.1), workers=n, output=str(tmp_path / str(n)), **options)
        for n in (0, 1, 4)
    ]
    for run in runs[1:]:
        assert events_of(run) == events_of(runs[0])
        assert_same_weights(run.model, runs[0].model)


def _noisy(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    embeds = torch.nn.utils.rnn.pad_sequence([row["inputs_embeds"] for row in rows], True)
    mask = torch.ones(embeds.shape[:2], dtype=torch.int64)
    labels = torch.stack([row["labels"] for row in rows])
    noise = torch.rand(embeds.shape) + random.random() + np.random.rand()
    return {"inputs_embeds": embeds + noise, "attention_mask": mask, "labels": labels}


def test_what_a_collate_fn_draws_does_not_depend_on_workers(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": feature_rows(50), "epochs": 2, "batch_size": 4}
    with_dropout = [same_pool(0.1) for _ in range(2)]
    one, two = (
        surefit.train(
            model=model, workers=n, collate_fn=_noisy, output=str(tmp_path / str(n)), **options
        )
        for n, model in zip((0, 2), with_dropout, strict=True)
    )
    assert events_of(one) == events_of(two)
    losses = [event["loss"] for event in events_of(one) if event["event"] == "step"]
    assert len({*losses}) == len(losses)


def _parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    return module, torch.optim.AdamW(module.parameters())


def _saver(folder: Path, module: nn.Module) -> Saver:
    optimizer = torch.optim.AdamW(module.parameters())
    engine = make_engine(make_accelerator("fp32"), module, optimizer)
    return Saver(folder, 2, engine, SimpleNamespace(module=module, live=None))  # type: ignore[arg-type]


def test_a_slow_disk_does_not_stop_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _parts()[0]
    before = module.weight.detach().clone()
    may_go_on, sync = threading.Event(), files._sync

    def slow(path: Path) -> None:
        assert may_go_on.wait(240)
        sync(path)

    monkeypatch.setattr(files, "_sync", slow)
    with _saver(tmp_path, module) as saver:
        saver.save(State(step=1))
        assert not checkpoint_path(tmp_path, 1).exists()
        with torch.no_grad():
            module.weight.zero_()  # what training does meanwhile
        may_go_on.set()
        saver.save(State(step=2))
    other, _ = _parts()
    state, _ = load_checkpoint(checkpoint_path(tmp_path, 1), other)
    assert state.step == 1
    assert torch.equal(other.weight, before)
    load_checkpoint(checkpoint_path(tmp_path, 2), other)
    assert not other.weight.any()


def test_a_process_short_of_memory_saves_though_its_last_save_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(path: Path) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError

    monkeypatch.setattr(files, "_sync", short)
    with _saver(tmp_path, _parts()[0]) as saver:
        saver.save(State(step=1))
        saver.save_at_once(State(step=2))
        assert checkpoint_path(tmp_path, 2).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_a_checkpoint_of_an_earlier_version_is_refused_in_a_sentence(tmp_path: Path) -> None:
    module, optimizer = _parts()
    save_checkpoint(tmp_path, module, optimizer, {}, State(step=1))
    state = checkpoint_path(tmp_path, 1) / "state.json"
    state.write_text(state.read_text().replace('"format_version": 4', '"format_version": 2'))
    with pytest.raises(RunFailedError, match=r"has checkpoint format 2.* reads format 4 only"):
        choose_checkpoint(tmp_path)


def test_tied_weights_and_weights_that_share_memory_are_restored(tmp_path: Path) -> None:
    def make(value: float) -> nn.Module:
        module = nn.Module()
        module.one = nn.Linear(3, 3, bias=False)
        module.tied = nn.Linear(3, 3, bias=False)
        module.tied.weight = module.one.weight
        module.view = nn.Parameter(module.one.weight.detach()[:2])
        nn.init.constant_(module.one.weight, value)
        return module

    saved, other = make(2.0), make(3.0)
    optimizer = torch.optim.AdamW(saved.parameters())
    save_checkpoint(tmp_path, saved, optimizer, {}, State(step=1))
    load_checkpoint(checkpoint_path(tmp_path, 1), other)
    assert other.tied.weight is other.one.weight
    assert all(bool((each == 2.0).all()) for each in other.state_dict().values())


def test_epochs_have_losses_and_time(tmp_path: Path) -> None:
    options = {"data": feature_rows(60), "epochs": 3, "eval_at_start": True}
    run = surefit.train(model=MeanPool(), output=str(tmp_path / "run"), **options)
    assert [epoch["epoch"] for epoch in run.epochs] == [1, 2, 3]
    steps = [event for event in run.history if event["event"] == "step" and event["epoch"] == 2]
    evals = [event for event in run.history if event["event"] == "eval" and event["epoch"] == 2]
    second = run.epochs[1]
    assert second["train_loss"] == pytest.approx(sum(e["loss"] for e in steps) / len(steps))
    assert second["seconds"] == pytest.approx(sum(e["seconds"] for e in steps))
    assert second["eval_loss"] == evals[-1]["metrics"]["loss"]


def test_a_folder_that_another_host_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(value: Any) -> list[Any]:
        return [value, (False, "node-2")] if isinstance(value, tuple) else [value, value]

    monkeypatch.setattr(begin_run, "gather", gather)
    with pytest.raises(FindingError) as caught:
        check_common_folder(tmp_path / "runs" / "new")
    assert [found.code for found in caught.value.findings] == ["SF873"]
    assert "Process 1 of host node-2 cannot see it" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
