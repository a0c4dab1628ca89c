"""Law 5: the order of everything is a pure function; resumed = uninterrupted, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import surefit
from builders import MeanPool, echo_rows, feature_rows
from surefit.batches.order import Batches
from surefit.run.checkpoints import latest_checkpoint

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=200)


def order(batches: Batches, epoch: int) -> list[list[int]]:
    steps = range(batches.num_steps(epoch))
    return [batches.step_rows(epoch, step).tolist() for step in steps]


@given(LENGTHS, st.integers(0, 5), st.integers(0, 3), st.integers(1, 9), st.integers(1, 4))
def test_every_row_once_per_epoch_and_the_same_each_time(
    lengths: list[int], seed: int, epoch: int, batch_size: int, accum: int
) -> None:
    array = np.array(lengths, np.int32)
    first = order(Batches(array, seed, batch_size, accum), epoch)
    assert first == order(Batches(array, seed, batch_size, accum), epoch)
    assert sorted(row for step in first for row in step) == list(range(len(lengths)))


@given(LENGTHS, st.integers(1, 5), st.sampled_from([(4, 1), (2, 2), (1, 4)]))
def test_processes_share_the_rows_of_the_same_steps(
    lengths: list[int], batch_size: int, shape: tuple[int, int]
) -> None:
    array = np.array(lengths, np.int32)
    accum, processes = shape
    alone = Batches(array, 1, batch_size, grad_accum=4)
    shared = Batches(array, 1, batch_size, accum, processes)
    assert order(alone, 0) == order(shared, 0)
    for step in range(shared.num_steps(0)):
        shares = [shared.share(0, step, process) for process in range(processes)]
        taken = [row for s in shares if s.weight for part in s.micro_batches for row in part]
        assert sorted(taken) == sorted(alone.step_rows(0, step).tolist())
        assert all(s.micro_batches for s in shares)


def test_epochs_and_seeds_differ() -> None:
    lengths = np.arange(1, 101, dtype=np.int32)
    orders = [order(Batches(lengths, seed, 4), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@given(LENGTHS, st.integers(60, 300))
def test_token_budget_is_kept(lengths: list[int], max_tokens: int) -> None:
    batches = Batches(np.array(lengths, np.int32), 0, 8, max_tokens=max_tokens)
    rows, longest = batches.longest(0)
    assert rows * longest <= max_tokens


def test_padding_is_under_three_percent_on_ragged_text() -> None:
    lengths = np.random.default_rng(0).lognormal(4.5, 0.6, 3000).clip(8, 512).astype(np.int32)
    for batch_size in (4, 8, 16, 32):
        assert Batches(lengths, 0, batch_size).padding_share(0) < 0.03


class CrashError(Exception):
    """Stands for a power cut."""


@pytest.mark.parametrize("crash_at", [1, 7, 12, 35])
def test_resumed_run_equals_the_uninterrupted_one(tmp_path: Path, crash_at: int) -> None:
    torch.manual_seed(1)
    state = MeanPool(dropout=0.3).state_dict()

    def start() -> MeanPool:
        module = MeanPool(dropout=0.3)
        module.load_state_dict(state)
        return module

    events = {}
    for name, crash in (("whole", None), ("cut", crash_at)):
        options: dict[str, Any] = {
            "data": feature_rows(50),
            "epochs": 3,
            "batch_size": 4,
            "save_every": 5,
        }
        if crash is not None:
            with pytest.raises(CrashError):
                surefit.train(
                    model=start(), output=str(tmp_path / name), callbacks=[_crash(crash)], **options
                )
            run = surefit.train(model=start(), resume=tmp_path / name, **options)
        else:
            run = surefit.train(model=start(), output=str(tmp_path / name), **options)
        events[name] = [{k: v for k, v in e.items() if k != "seconds"} for e in run.history]
    assert events["cut"] == events["whole"]
    assert len(events["whole"]) == 36 + 3
    for file in ("model.safetensors", "optimizer.safetensors"):
        whole, cut = (
            load_file(latest_checkpoint(tmp_path / name / "checkpoints") / file)  # type: ignore[operator]
            for name in ("whole", "cut")
        )
        assert all(torch.equal(whole[key], cut[key]) for key in whole)


def test_views_are_drawn_alike_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for name in ("one", "two"):
        monkeypatch.setenv("SUREFIT_CACHE", str(tmp_path / name))
        plan = surefit.check(data=echo_rows(30), model="tiny:llama", augmentation_factor=3)
        assert plan.job is not None
        drawn.append(plan.job.train.values("input_ids").tolist())
    assert drawn[0] == drawn[1]


def test_resumed_run_with_views_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": echo_rows(30), "model": "tiny:llama", "epochs": 2}
    options |= {"augmentation_factor": 3, "save_every": 4, "generate": {"max_new_tokens": 4}}
    whole = surefit.train(output=str(tmp_path / "whole"), **options)
    with pytest.raises(CrashError):
        surefit.train(output=str(tmp_path / "cut"), callbacks=[_crash(14)], **options)
    cut = surefit.train(resume=tmp_path / "cut", **options)
    histories = [
        [{k: v for k, v in event.items() if k != "seconds"} for event in run.history]
        for run in (whole, cut)
    ]
    assert histories[0] == histories[1]
    assert [event["event"] for event in histories[0]].count("step") == 2 * 11


def _crash(at: int) -> Any:
    def observe(event: Any) -> None:
        if event["event"] == "step" and event["step"] == at:
            raise CrashError

    return observe
