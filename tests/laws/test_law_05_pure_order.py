"""Law 5: the order of everything is a pure function; resumed = uninterrupted, bit for bit.

Every kind of order, blocks and budgets of tokens: tests/batches/test_order.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pictures import shape_rows
from safetensors.torch import load_file
from torch import nn

import surefit
from builders import MeanPool, echo_rows, feature_rows, mostly_slow
from surefit.batches import cut_steps
from surefit.batches.order import Batches
from surefit.run.choose_checkpoint import latest_checkpoint

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=200)


def order(batches: Batches, epoch: int) -> list[list[int]]:
    steps = range(batches.steps_per_epoch)
    return [batches.step_rows(epoch, step).tolist() for step in steps]


@given(LENGTHS, st.integers(0, 5), st.integers(0, 3), st.integers(1, 9), st.integers(1, 4))
def test_every_row_once_per_epoch_and_the_same_each_time(
    lengths: list[int], seed: int, epoch: int, batch_size: int, accum: int
) -> None:
    array = np.array(lengths, np.int32)
    first = order(Batches(array, seed, batch_size, accum), epoch)
    assert first == order(Batches(array, seed, batch_size, accum), epoch)
    assert sorted(row for step in first for row in step) == list(range(len(lengths)))


SHAPES = [(16, 1, 1), (8, 2, 1), (8, 1, 2), (4, 4, 1), (4, 2, 2), (4, 1, 4), (1, 16, 1)]
"""Rows, gradient accumulation and processes of one effective batch size."""


@given(
    LENGTHS,
    st.sampled_from(SHAPES),
    st.sampled_from(["shuffle", "windowed", "grouped"]),
    st.booleans(),
)
def test_steps_depend_on_the_effective_batch_size_alone(
    lengths: list[int], shape: tuple[int, int, int], name: Any, padding_free: bool
) -> None:
    array = np.array(lengths, np.int32)
    options: dict[str, Any] = {"padding_free": padding_free, "order": name}
    alone, shared = Batches(array, 1, 16, **options), Batches(array, 1, *shape, **options)
    assert [sorted(s) for s in order(alone, 0)] == [sorted(s) for s in order(shared, 0)]
    for step in range(shared.steps_per_epoch):
        shares = [shared.share(0, step, process) for process in range(shape[2])]
        taken = [row for s in shares if s.weight for part in s.micro_batches for row in part]
        assert sorted(taken) == sorted(alone.step_rows(0, step).tolist())
        assert all(s.micro_batches for s in shares)
        assert all(len(part) <= shape[0] for s in shares for part in s.micro_batches)


@given(
    LENGTHS,
    st.sampled_from([(480, 1, 1), (240, 2, 1), (120, 1, 4)]),
    st.sampled_from(["shuffle", "windowed", "grouped"]),
    st.booleans(),
)
def test_steps_depend_on_the_tokens_of_a_step_alone(
    lengths: list[int], shape: tuple[int, int, int], name: Any, padding_free: bool
) -> None:
    array = np.array(lengths, np.int32)
    max_tokens, accum, processes = shape
    options: dict[str, Any] = {"padding_free": padding_free, "order": name}
    alone = Batches(array, 1, 8, max_tokens=480, **options)
    shared = Batches(array, 1, 8, accum, processes, max_tokens, **options)
    assert [sorted(s) for s in order(alone, 0)] == [sorted(s) for s in order(shared, 0)]
    assert shared.positions(0).max() <= max_tokens


RAGGED = np.random.default_rng(0).lognormal(4.6, 0.8, 4096).clip(8, 512).astype(np.int32)


@pytest.mark.parametrize("lengths", [RAGGED, np.arange(1, 1001, dtype=np.int32)])
@pytest.mark.parametrize(
    ("shape", "padding_free"),
    [((16, 1, 1), True), ((16, 1, 1), False), ((8, 2, 1), True), ((8, 2, 1), False),
     ((8, 4, 1), False), ((16, 1, 2), False), ((2, 16, 1), False)],
)  # fmt: skip
def test_a_step_is_a_random_draw_of_lengths(
    lengths: np.ndarray, shape: tuple[int, int, int], padding_free: bool
) -> None:
    """The mean length of steps spreads no more than 1.3 times as far as in random steps."""
    batches = Batches(lengths, 0, *shape, padding_free=padding_free)
    steps = [
        batches.step_rows(epoch, s) for epoch in (0, 1) for s in range(batches.steps_per_epoch)
    ]
    size = batches.batch_size * batches.micro_per_step
    means = [lengths[rows].mean() for rows in steps if len(rows) == size]
    assert 0.7 < np.std(means) / (lengths.std() / size**0.5) < 1.3


@pytest.mark.parametrize("shape", [(8, 1, 1), (8, 4, 1), (8, 1, 16)])
def test_a_step_of_blocks_is_a_random_draw_even_of_sorted_rows(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows sorted by length are the worst case: those of a block are alike."""
    monkeypatch.setattr(cut_steps, "WINDOW_BLOCKS", 16)
    lengths = np.sort(np.tile(RAGGED, 8))
    batches = Batches(lengths, 0, *shape, block_rows=256)
    steps = [
        batches.step_rows(epoch, s) for epoch in (0, 1) for s in range(batches.steps_per_epoch)
    ]
    size = batches.effective_rows
    means = [lengths[rows].mean() for rows in steps if len(rows) == size]
    assert 0.7 < np.std(means) / (lengths.std() / size**0.5) < 1.3


def test_padded_rows_of_distinct_lengths_meet_others_in_each_epoch() -> None:
    lengths = np.arange(1, 65, dtype=np.int32)  # a single window
    batches = Batches(lengths, 0, 8)
    epochs = [{frozenset(rows) for rows in order(batches, epoch)} for epoch in range(4)]
    assert all(not (a & b) for i, a in enumerate(epochs) for b in epochs[:i])


def test_epochs_and_seeds_differ() -> None:
    lengths = np.arange(1, 101, dtype=np.int32)
    orders = [order(Batches(lengths, seed, 4), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_rows_of_similar_length_have_little_padding() -> None:
    lengths = np.random.default_rng(0).lognormal(4.5, 0.6, 3000).clip(8, 512).astype(np.int32)
    for batch_size in (4, 8, 16, 32):
        grouped = Batches(lengths, 0, batch_size, order="grouped")
        windowed = Batches(lengths, 0, batch_size, grad_accum=4)
        assert grouped.padding_share(0) < 0.03
        assert windowed.padding_share(0) < 0.6 * windowed.random_padding_share()


class CrashError(Exception):
    """Stands for a power cut."""


@pytest.mark.parametrize("crash_at", mostly_slow([7, 1, 12, 35], every=4))
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
    for file in ("model-00001-of-00001.safetensors", "optimizer-00001-of-00001.safetensors"):
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


def test_resumed_run_with_augmented_images_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": shape_rows(24), "epochs": 2, "batch_size": 4}
    changes = ["flip", "rotate", "crop", "contrast", "erase", "mixup", "cutmix"]
    options |= {"image": {"augment": changes}, "save_every": 3}

    def start() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))

    whole = surefit.train(model=start(), output=str(tmp_path / "whole"), **options)
    with pytest.raises(CrashError):
        surefit.train(model=start(), output=str(tmp_path / "cut"), callbacks=[_crash(8)], **options)
    cut = surefit.train(model=start(), resume=tmp_path / "cut", **options)
    losses = [[e["loss"] for e in run.history if e["event"] == "step"] for run in (whole, cut)]
    assert losses[0] == losses[1]
    states = [run.model.state_dict() for run in (whole, cut)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def _crash(at: int) -> Any:
    def observe(event: Any) -> None:
        if event["event"] == "step" and event["step"] == at:
            raise CrashError

    return observe
