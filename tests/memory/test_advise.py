"""Options for a run that does not fit: each changes something, and no two are the same."""

from __future__ import annotations

from typing import Any

import pytest

import surefit
from builders import MeanPool, echo_rows, feature_rows, mostly_slow
from surefit.plan.plan import Plan


@pytest.mark.parametrize(
    ("model", "options"),
    mostly_slow(
        [
            ("tiny:llama", {"batch_size": 1}),
            ("module", {}),
            ("tiny:bert", {"checkpointing": True, "batch_size": 1}),
            ("tiny:llama", {"lora": {"r": 4}, "checkpointing": True, "max_tokens": 64}),
        ],
        every=4,
    ),
    ids=str,
)
def test_advice_names_no_empty_and_no_repeated_option(model: Any, options: dict[str, Any]) -> None:
    """Where no change is enough, the nearest is named."""
    data = echo_rows(20) if model == "tiny:llama" else feature_rows(20)
    plan = refused(MeanPool() if model == "module" else model, data, **options)
    settings = [option["set"] for option in plan.fit.advice]  # type: ignore[union-attr]
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
    assert "No option that was tried fits" in fix_of(plan) or not settings
    if model == "tiny:llama" and not config.lora.r:
        assert {"checkpointing": True, "lora.r": 16} in settings


def test_a_run_that_nothing_can_change_gets_advice_without_options() -> None:
    plan = refused(MeanPool(), feature_rows(20), batch_size=1)
    assert plan.fit is not None
    assert plan.fit.advice == ()
    assert fix_of(plan).startswith("Use a smaller model or batch size")


def refused(model: Any, data: Any, **options: Any) -> Plan:
    """A plan that no option makes fit."""
    return surefit.check(model=model, data=data, max_memory_gb=0.05, **options)


def fix_of(plan: Plan) -> str:
    (found,) = [found for found in plan.findings if found.code == "SF400"]
    return found.fix
