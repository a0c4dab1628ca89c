"""Learning rate schedules: those of transformers, in a run and by the keys of the config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.optimization as peers

import surefit
from builders import feature_rows, same_pool
from surefit.config import make_config
from surefit.errors import UsageError
from surefit.models.learning_rate import Schedule

STEPS, WARM = 40, 5
THEIRS: dict[str, tuple[Any, dict[str, Any]]] = {
    "linear": (peers.get_linear_schedule_with_warmup, {}),
    "cosine": (peers.get_cosine_schedule_with_warmup, {}),
    "cosine, end 0.1": (peers.get_cosine_with_min_lr_schedule_with_warmup, {"min_lr_rate": 0.1}),
    "cosine, 2 restarts": (
        peers.get_cosine_with_hard_restarts_schedule_with_warmup,
        {"num_cycles": 3},
    ),
    "constant": (peers.get_constant_schedule_with_warmup, {}),
    "wsd, end 0.1": (
        peers.get_wsd_schedule,
        {"num_decay_steps": 7, "decay_type": "linear", "min_lr_ratio": 0.1},
    ),
    "inverse-sqrt": (peers.get_inverse_sqrt_schedule, {}),
}


@pytest.mark.parametrize("name", THEIRS)
def test_after_the_warmup_the_rates_are_those_of_transformers(name: str) -> None:
    make, more = THEIRS[name]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    total = {} if make in (THEIRS["constant"][0], THEIRS["inverse-sqrt"][0]) else STEPS
    given = {"num_training_steps": total} if total else {}
    scheduler = make(optimizer, num_warmup_steps=WARM, **given, **more)
    shape, _, option = name.partition(", ")
    ours = Schedule(
        shape,
        WARM / STEPS,
        end=0.1 if option == "end 0.1" else 0.0,
        restarts=2 if "restarts" in option else 0,
    )
    for step in range(1, STEPS + 1):
        wanted = step / WARM if step <= WARM else scheduler.lr_lambdas[0](step - 1)
        assert ours.factor(step, STEPS) == pytest.approx(wanted), step


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "wsd", "schedule_end": 0.2},
        {"schedule": "cosine", "restarts": 2},
        {"schedule": "inverse-sqrt"},
    ],
    ids=str,
)
def test_a_run_has_the_schedule_that_is_set(settings: dict[str, Any], tmp_path: Path) -> None:
    run = surefit.train(
        data=feature_rows(40),
        task="feature-classification",
        model=same_pool(),
        output=str(tmp_path / "run"),
        lr=0.01,
        max_steps=12,
        warmup=0.2,
        **settings,
    )
    shape, end = settings["schedule"], settings.get("schedule_end", 0.0)
    schedule = Schedule(shape, 0.2, end, settings.get("restarts", 0))
    assert [event["lr"] for event in run.history if event["event"] == "step"] == pytest.approx(
        [0.01 * schedule.factor(step, 12) for step in range(1, 13)]
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"schedule": "constant", "schedule_end": 0.1},
            "schedule_end: it has no effect",
        ),
        ({"schedule": "linear", "restarts": 1}, "restarts: it has no effect"),
    ],
)
def test_a_key_that_the_schedule_does_not_read_is_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        make_config(settings)
