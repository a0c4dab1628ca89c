"""Options for a run that does not fit: each changes something, and no two are the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import surefit
from builders import MeanPool, echo_rows, feature_rows, mostly_slow
from surefit.memory.advise import Change, Option, try_changes
from surefit.plan.plan import Plan

SETTINGS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 2), max_size=3)
ROUNDS = st.lists(st.lists(SETTINGS, max_size=4), max_size=4)


@given(ROUNDS, SETTINGS, st.integers(0, 6))
def test_options_are_distinct_and_change_something(
    rounds: list[list[dict[str, int]]], current: dict[str, int], limit: int
) -> None:
    predicted: list[dict[str, int]] = []

    def change(settings: dict[str, int]) -> Change:
        def predict() -> int:
            predicted.append(settings)
            return _peak(settings, current)

        return Change(settings, predict)

    options = list(try_changes([[*map(change, one)] for one in rounds], current, limit))
    settings = [dict(option.settings) for option in options]
    assert all(settings)
    assert all({**current, **each} != current for each in settings)
    assert all(settings.count(each) == 1 for each in settings)
    assert len(predicted) == len(options)  # nothing is traced in vain
    assert all(option.fits == (option.peak_bytes <= limit) for option in options)
    expected: list[dict[str, int]] = []
    for one in rounds:
        expected += [_difference(each, current) for each in one if _difference(each, current)]
        if any(_peak(each, {}) <= limit for each in expected):
            break
    assert all(each in expected for each in settings)
    assert all(each in settings for each in expected)


def _difference(settings: dict[str, int], current: dict[str, int]) -> dict[str, int]:
    return {key: value for key, value in settings.items() if current.get(key) != value}


def _peak(settings: dict[str, int], current: dict[str, int]) -> int:
    return sum(_difference(settings, current).values())


def test_an_option_without_settings_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        Option({}, 1, fits=True)


def refused(**options: Any) -> Plan:
    """A plan that no option makes fit."""
    plan = surefit.check(**{"max_memory_gb": 0.05, **options})
    assert "SF400" in [found.code for found in plan.findings]
    return plan


@pytest.mark.parametrize(
    ("model", "options"),
    mostly_slow(
        [
            ("module", {}),
            ("module", {"batch_size": 1}),
            ("module", {"max_tokens": 64}),
            ("tiny:bert", {}),
            ("tiny:bert", {"checkpointing": True, "batch_size": 1}),
            ("tiny:llama", {}),
            ("tiny:llama", {"batch_size": 1}),
            ("tiny:llama", {"checkpointing": True}),
            ("tiny:llama", {"lora": {"r": 4}}),
            ("tiny:llama", {"lora": {"r": 4}, "checkpointing": True, "max_tokens": 64}),
            ("tiny:llama", {"lora": {"r": 4}, "checkpointing": True, "batch_size": 1}),
        ],
        every=5,
    ),
    ids=str,
)
def test_advice_names_no_empty_and_no_repeated_option(model: Any, options: dict[str, Any]) -> None:
    data = echo_rows(20) if model == "tiny:llama" else feature_rows(20)
    model = MeanPool() if model == "module" else model
    plan = refused(**options, model=model, data=data)
    assert plan.fit is not None
    settings = [option["set"] for option in plan.fit.advice]
    assert all(settings)
    assert all(settings.count(each) == 1 for each in settings)
    config = plan.config
    current = {
        "batch_size": config.batch_size,
        "grad_accum": config.grad_accum,
        "checkpointing": config.checkpointing,
        "lora.r": config.lora.r,
    }
    assert all({**current, **each} != current for each in settings)
    (found,) = [found for found in plan.findings if found.code == "SF400"]
    assert "or  (" not in found.fix
    assert "nearest:  (" not in found.fix


def test_a_run_that_nothing_can_change_gets_advice_without_options() -> None:
    plan = refused(model=MeanPool(), data=feature_rows(20), batch_size=1)
    assert plan.fit is not None
    assert plan.fit.advice == ()
    (found,) = [found for found in plan.findings if found.code == "SF400"]
    assert found.fix.startswith("Use a smaller model or batch size")
