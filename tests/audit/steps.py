"""One case of the audit: the same steps by surefit and by the reference, and how they differ."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import surefit
from audit.families import FAMILIES, Family, make_rows, save_model
from audit.reference import Settings, Trained, build, train

LORA_R = 4
LOSS_BOUND = 1e-6
"""Largest difference of a step's loss, relative to a loss above 1."""
WEIGHT_BOUND = 1e-6
"""Largest difference of a weight after three steps, but for what AdamW amplifies."""
GRADIENT_BOUND = 3e-7
"""Largest error of a gradient, as a share of the model's largest, that explains all the others.

AdamW makes a step of up to the learning rate of a gradient that is zero but for rounding, such as
that of a key's bias. So a weight that differs by more than WEIGHT_BOUND is not yet wrong; it is, if
rounding of the gradient in float32 does not explain the difference.
"""


@dataclass(frozen=True)
class Case:
    """A family, what of it is trained, and how its batches are made."""

    family: Family
    lora: bool
    padding_free: bool
    accumulates: bool
    checkpoints: bool

    def __str__(self) -> str:
        """The case as the name of a test."""
        chosen = [
            self.family.name,
            "LoRA" if self.lora else "full",
            "padding-free" if self.padding_free else "padded",
            *(["accumulation"] if self.accumulates else []),
            *(["checkpointing"] if self.checkpoints else []),
        ]
        return ", ".join(chosen)

    @property
    def traits(self) -> tuple[bool, ...]:
        """The choices, by place."""
        return (self.lora, self.padding_free, self.accumulates, self.checkpoints)


@dataclass(frozen=True)
class Difference:
    """How far surefit is from the reference, in three steps."""

    loss: float
    weight: float
    """The largest difference of any weight."""
    gradient: float
    """The gradient error that explains every difference above WEIGHT_BOUND; see GRADIENT_BOUND."""
    rows: str
    """The layout of the batches, as the plan has it."""


def all_cases() -> list[Case]:
    """The whole product."""
    cases = []
    for family in FAMILIES:
        for number in range(16):
            lora, padding_free, accumulates, checkpoints = (bool(number & 1 << n) for n in range(4))
            if padding_free <= family.padding_free:
                cases.append(Case(family, lora, padding_free, accumulates, checkpoints))
    return cases


def chosen_cases() -> list[Case]:
    """All cases if $SUREFIT_AUDIT is `full`; else a sample drawn by that number, by default 0."""
    asked = os.environ.get("SUREFIT_AUDIT", "0")
    return all_cases() if asked == "full" else sample_cases(int(asked))


def sample_cases(seed: int) -> list[Case]:
    """Few cases per family that together have every value of every choice."""
    draw = random.Random(seed)
    chosen: list[Case] = []
    for family in FAMILIES:
        cases = [case for case in all_cases() if case.family is family]
        draw.shuffle(cases)
        missing = {pair for case in cases for pair in enumerate(case.traits)}
        while missing:
            best = max(cases, key=lambda case: len(missing & set(enumerate(case.traits))))
            missing -= set(enumerate(best.traits))
            chosen.append(best)
    return chosen


def options_of(case: Case, settings: Settings, model: Path) -> dict[str, Any]:
    """The options of `surefit.train`: every step has all rows."""
    rows = make_rows(case.family.rows)
    accumulated = 4 if case.accumulates else 1
    options: dict[str, Any] = {
        "data": rows,
        "model": str(model),
        "task": case.family.task,
        "epochs": settings.steps,
        "batch_size": len(rows) // accumulated,
        "grad_accum": accumulated,
        "checkpointing": case.checkpoints,
        "padding_free": "auto" if case.padding_free else "off",
        "lr": settings.lr,
        "clip": settings.clip,
        "schedule": "constant",
        "warmup": 0.0,
        "weight_decay": 0.0,
        "eval_share": 0.0,
        "compile": "off",
    }
    return {**options, "lora": {"r": LORA_R}} if case.lora else options


@lru_cache(maxsize=2)
def reference_of(family: Family, lora: bool) -> Trained:
    """The reference's steps; the initial adapters are those that a plan draws by its seed."""
    settings = Settings(lora_r=LORA_R if lora else 0)
    adapters: Mapping[str, Any] = {}
    if lora:
        with TemporaryDirectory() as folder:
            model = save_model(family, Path(folder) / "model")
            plain = Case(family, lora, False, False, False)
            plan = surefit.check(**options_of(plain, settings, model))
            assert plan.ok, plan.findings
            assert plan.job is not None
            adapters = plan.job.pipeline.module.state_dict()
            adapters = {name: weight.clone() for name, weight in adapters.items()}
    return train(build(family, settings, adapters), family.rows, make_rows(family.rows), settings)


def compare(case: Case, folder: Path, reference: Trained | None = None) -> Difference:
    """Train by surefit, load what it saved, and compare with the reference."""
    reference = reference or reference_of(case.family, case.lora)
    model = save_model(case.family, folder / "model")
    output = folder / "run"
    run = surefit.train(**options_of(case, Settings(), model), output=str(output))
    losses = [event["loss"] for event in run.history if event["event"] == "step"]
    assert len(losses) == len(reference.losses)
    trained = surefit.load(output).state_dict()
    counted: Any = run.plan["model"]
    assert counted["trainable_parameters"] == sum(w.numel() for w in reference.weights.values())
    found = [(n, (trained[n].double() - w).abs()) for n, w in reference.weights.items()]
    choices: Any = run.plan["choices"]
    return Difference(
        loss=max(_relative(pair) for pair in zip(losses, reference.losses, strict=True)),
        weight=max(float(each.max()) for _, each in found),
        gradient=max(_explain(each, reference.amplified[name]) for name, each in found),
        rows=choices.get("rows", "padded"),
    )


def _relative(pair: tuple[float, float]) -> float:
    got, expected = pair
    return abs(got - expected) / max(1.0, abs(expected))


def _explain(difference: torch.Tensor, amplified: torch.Tensor) -> float:
    large = difference > WEIGHT_BOUND
    return float((difference[large] / amplified[large]).max()) if large.any() else 0.0


def faults(found: Difference, case: Case) -> Iterator[str]:
    """What of a comparison is out of bounds."""
    if found.loss > LOSS_BOUND:
        yield f"a step's loss differs by {found.loss:.1e}; the bound is {LOSS_BOUND:.0e}"
    if found.gradient > GRADIENT_BOUND:
        yield f"a weight differs by {found.weight:.1e}: a gradient is wrong by {found.gradient:.1e}"
    meant = "padding-free" if case.padding_free else "padded"
    if found.rows != meant:
        yield f"the batches are {found.rows}; expected {meant}"
