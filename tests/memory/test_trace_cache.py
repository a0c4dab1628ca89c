"""A second check traces nothing again, and a trace is never taken for that of another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import MeanPool, echo_rows, feature_rows, mostly_slow, require_precision
from surefit.memory import predict_peak as predict

OPTIONS: dict[str, Any] = {"data": echo_rows(30), "model": "tiny:llama", "eval_share": 0.0}


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each trace that is made."""
    made: list[int] = []
    trace = predict.trace_training

    def counted(*given: Any, **more: Any) -> Any:
        made.append(1)
        return trace(*given, **more)

    monkeypatch.setattr(predict, "trace_training", counted)
    return made


def _peak(cache: Path, **options: Any) -> int:
    plan = surefit.check(**{**OPTIONS, "cache": str(cache), **options})
    return int(plan.as_dict()["memory"]["parts"]["activations"])


def test_a_second_check_traces_nothing(tmp_path: Path, traces: list[int]) -> None:
    first = _peak(tmp_path)
    assert len(traces) == 1
    assert _peak(tmp_path) == first
    assert len(traces) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    mostly_slow(
        [
            {"batch_size": 2},
            {"checkpointing": True},
            {"lora": {"r": 2}},
            {"padding_free": "off"},
            {"grad_accum": 2, "batch_size": 4},
            {"data": echo_rows(31)[1:]},
            {"precision": "bf16"},
        ],
        every=4,
    ),
    ids=str,
)
def test_another_run_is_traced_anew(
    tmp_path: Path, traces: list[int], options: dict[str, Any]
) -> None:
    if "precision" in options:
        require_precision(options["precision"])
    _peak(tmp_path)
    found = _peak(tmp_path, **options)
    assert len(traces) == 2
    assert found == _peak(tmp_path / "empty", **options)


def test_modules_of_the_users_own_are_traced_each_time(tmp_path: Path, traces: list[int]) -> None:
    for _ in range(2):
        surefit.check(data=feature_rows(20), model=MeanPool(), cache=str(tmp_path))
    assert len(traces) == 2
