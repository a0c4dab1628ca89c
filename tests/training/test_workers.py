"""Worker processes and prefetching change neither the order nor the batches."""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

import pytest
import torch

import surefit
from builders import MeanPool, echo_rows, feature_rows
from surefit.batches.loading import from_workers, prefetch


@pytest.mark.parametrize("workers", [1, 4])
def test_items_come_in_their_order(workers: int) -> None:
    items = list(range(23))
    made = list(from_workers(items, lambda n: {"n": torch.tensor(n * n)}, workers))
    assert [int(each["n"]) for each in made] == [n * n for n in items]
    for depth in (0, 1, 5):
        assert list(prefetch(items, lambda n: n * n, depth)) == [n * n for n in items]


def test_workers_leave_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    monkeypatch.delitem(settings, "tempdir", raising=False)
    list(from_workers(range(4), lambda n: {"n": torch.tensor(n)}, 2))
    assert [str(path) for path in tmp_path.iterdir()] == [
        settings["tempdir"]
    ]  # its own, till it ends
    monkeypatch.delitem(settings, "tempdir")


def test_an_error_in_a_worker_is_raised_here() -> None:
    def fail_at_three(number: int) -> dict[str, torch.Tensor]:
        if number == 3:
            raise ValueError("row 3 is bad")
        return {"n": torch.tensor(number)}

    with pytest.raises(ValueError, match="row 3 is bad"):
        list(from_workers(range(6), fail_at_three, 2))


def _train(folder: Path, workers: int) -> surefit.api.Run:
    torch.manual_seed(0)
    module = MeanPool(dropout=0.1)
    options = {"epochs": 2, "batch_size": 4, "output": str(folder / str(workers))}
    return surefit.train(data=feature_rows(50), model=module, workers=workers, **options)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_run_with_workers_equals_one_without(tmp_path: Path, workers: int) -> None:
    runs = [_train(tmp_path, count) for count in (0, workers)]
    events = [[{**e, "seconds": 0} for e in run.history] for run in runs]
    assert events[0] == events[1]
    states = [run.model.state_dict() for run in runs]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.slow
def test_language_models_with_workers(tmp_path: Path) -> None:
    options = {"data": echo_rows(40), "model": "tiny:llama", "max_steps": 4}
    losses = [
        [
            event["loss"]
            for event in surefit.train(
                **options, workers=workers, output=str(tmp_path / str(workers))
            ).history
            if event["event"] == "step"
        ]
        for workers in (0, 2)
    ]
    assert losses[0] == losses[1]
