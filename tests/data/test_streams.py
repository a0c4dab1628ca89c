"""Streams: planned with their first rows, trained on window by window, resumed to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

import surefit
from builders import noisy_net, numbered_vector, stop_at, weights_of
from surefit.data.open_data import open_table
from surefit.data.python import streams
from surefit.errors import RunFailedError, UsageError
from surefit.pipeline.live_batch import StreamEndedError

FIRST = 60


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FIRST_ROWS", FIRST)


class Endless(torch.utils.data.IterableDataset[Any]):
    """Rows without an end, with noise from torch's global generator."""

    def __iter__(self) -> Iterator[Any]:
        for number in itertools.count():
            values, label = numbered_vector(number)
            yield values + 0.01 * torch.randn(4).numpy(), label


class Finite(torch.utils.data.IterableDataset[Any]):
    """150 rows; some have no label."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(150):
            values, label = numbered_vector(number)
            yield {"x": values, "label": None if number % 10 == 9 else label}


class Saved(torch.utils.data.IterableDataset[Any]):
    """Rows without an end, whose position can be saved."""

    loaded = 0

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.number += 1
            yield numbered_vector(self.number)

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]
        Saved.loaded += 1


def function() -> Iterator[Any]:
    yield from map(numbered_vector, itertools.count())


def of_datasets() -> Any:
    def rows() -> Iterator[dict[str, Any]]:
        for number in range(400):
            values, label = numbered_vector(number)
            yield {"features": values.tolist(), "label": label}

    return datasets.IterableDataset.from_generator(rows).shuffle(seed=3, buffer_size=10)


KINDS: dict[str, Callable[[], Any]] = {
    "saved": Saved,
    "endless": Endless,
    "finite": Finite,
    "a generator function": lambda: function,
    "a generator": function,
    "a loader": lambda: torch.utils.data.DataLoader(Endless(), batch_size=7),
    "datasets": of_datasets,
}


def train(output: Path, data: Any, **options: Any) -> Any:
    settings: dict[str, Any] = {"max_steps": 20, "batch_size": 16, "output": str(output)}
    if "resume" in options:
        settings = {}
    return surefit.train(data=data, model=noisy_net(), **settings, **options)


@pytest.mark.parametrize(
    "kind", [k if k == "saved" else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_a_resumed_run_equals_an_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    make = KINDS[kind]
    whole = train(tmp_path / "whole", make())
    assert any("read as a stream" in note for note in whole.plan["notes"])
    assert whole.history[-1]["step"] == 20

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", make(), save_every=2, callbacks=[stop_at(15)])
    Saved.loaded = 0
    assert weights_of(train(tmp_path, make(), resume=str(tmp_path / "stopped"))) == weights_of(
        whole
    )
    assert Saved.loaded == (kind == "saved")


def windows(data: Any) -> tuple[Any, Any, Any]:
    plan = surefit.check(data=data, model=torch.nn.Linear(4, 2), max_steps=50)
    pipeline, store = plan.job.pipeline, plan.job.train
    return pipeline, store, plan.job.validation


def test_the_windows_in_memory_are_predicted() -> None:
    """Two of them: the next one is read while rows of the other are trained on."""
    plan = surefit.check(data=Endless(), model=torch.nn.Linear(4, 2), max_steps=50)
    own = sum(plan.job.train.values(name).nbytes for name in plan.job.train.fields)
    assert plan.fit.parts["stream"] == 2 * own > 0
    short = surefit.check(data=Endless(), model=torch.nn.Linear(4, 2), max_steps=1)
    assert "stream" not in short.fit.parts  # the first window stays on disk


def test_a_new_pass_leaves_out_validation_rows_and_reports_what_it_drops() -> None:
    pipeline, store, validation = windows(Finite())
    assert pipeline.live.held_out == {*validation.source_row.tolist()}
    said: list[str] = []
    pipeline.live.notices.append(said.append)
    seen = []
    for epoch in range(1, 4):
        rows = pipeline.live.encoded(pipeline, store, np.arange(len(store)), epoch)
        seen += [row.columns["features"].tobytes() for row in rows]
    assert pipeline.live.stream.cursor.passes == 1
    held = {validation.row(place)["features"].tobytes() for place in range(len(validation))}
    first = {store.row(place)["features"].tobytes() for place in range(len(store))}
    assert not held & {*seen}
    assert first & {*seen}  # in the second pass
    assert said[0] == "Stream, from row 60 on: 5 rows are dropped (5 without a label)."
    with pytest.raises(RunFailedError, match="needed again"):
        pipeline.live.encoded(pipeline, store, [0], 1)


def test_the_end_of_a_generator_is_the_end_of_the_run(tmp_path: Path) -> None:
    run = train(tmp_path / "run", map(numbered_vector, range(130)))
    assert run.history[-1]["event"] == "eval"
    assert run.history[-1]["step"] == 8  # two windows of 54 rows; the third is not full
    assert (run.path / "model").is_dir()
    pipeline, store, _ = windows(map(numbered_vector, range(70)))
    with pytest.raises(StreamEndedError, match="ended after 70 rows"):
        pipeline.live.encoded(pipeline, store, [0], 1)


def test_another_stream_is_not_resumed_with() -> None:
    pipeline, store, _ = windows(Endless())
    pipeline.live.encoded(pipeline, store, [0], 2)
    position = pipeline.live.position()
    again, store, _ = windows(Endless())
    again.live.seek(again, position, lambda *_: None)
    assert again.live.position() == position
    with pytest.raises(RunFailedError, match="other rows than before"):
        again.live.seek(again, {**position, "digest": "0"}, lambda *_: None)


def test_what_a_stream_cannot_do_is_refused() -> None:
    model = torch.nn.Linear(4, 2)
    for options, message in (
        ({}, "--max-steps"),
        ({"max_steps": 5, "workers": 2}, "workers"),
        ({"max_steps": 5, "split": {"folds": 2}}, "split.folds"),
        ({"max_steps": 5, "eval_data": Endless()}, "islice"),
    ):
        with pytest.raises(UsageError) as caught:
            surefit.check(data=Endless(), model=model, **options)
        assert message in f"{caught.value} {caught.value.fix}"


def test_a_short_stream_is_a_table() -> None:
    table = open_table(map(numbered_vector, range(30)))
    assert (table.num_rows, table.live) == (30, None)
