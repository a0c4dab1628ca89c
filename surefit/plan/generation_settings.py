"""The settings that text is generated with: greedy, what the user wants, what the model has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from surefit.batches.branches import PROMPT
from surefit.errors import UsageError
from surefit.findings import Finding, note
from surefit.inputs.store import Store
from surefit.pipeline.open_pipeline import with_generation
from surefit.pipeline.pipeline import Pipeline
from surefit.plan.draft import Draft
from surefit.targets.generation import SHAPING, own_config
from surefit.targets.sampling import known_settings

COUNTED_ROWS = 10_000
USUAL_SHARE = 0.99
LEAST_TOKENS, MOST_TOKENS = 16, 256
"""Bounds of an answer's length where the user sets none: one evaluation makes up to 64 answers."""


def settle_generation(d: Draft) -> tuple[Pipeline, list[Finding]]:
    """Return the Pipeline with the settings that it generates with, which its Encoder keeps."""
    pipeline, wanted, generate = d.pipeline, d.config.generate, d.pipeline.task.generate
    able = generate is not None and generate.possible(pipeline.module, pipeline.encoder)
    known = known_settings(own_config(pipeline.module)) if able else {}
    _refuse_unset(wanted.from_model, known, pipeline)
    pipeline = with_generation(pipeline, wanted, before=known)
    if generate is None or not able:
        return pipeline, []
    settings = pipeline.encoder.settings.generate or {}
    if wanted.from_model:
        _refuse_invalid(settings)
    new_tokens = answer_tokens(d.train) if generate.names else None
    encoder = pipeline.encoder.with_settings(answer_tokens=new_tokens)
    return replace(pipeline, encoder=encoder), _report_unused(known, settings)


def answer_tokens(store: Store) -> int:
    """Return how many tokens nearly all answers have at most, their end included."""
    rows = np.unique(np.linspace(0, len(store) - 1, min(len(store), COUNTED_ROWS)).astype(int))
    counts = store.num_targets[rows]
    if PROMPT in store.fields:  # of several answers, the last one is generated
        counts = np.minimum(counts, store.lengths[rows] - store.values(PROMPT)[rows])
    usual = int(np.quantile(counts, USUAL_SHARE, method="higher"))
    return min(max(usual, LEAST_TOKENS), MOST_TOKENS)


def _refuse_unset(names: Sequence[str], known: Mapping[str, Any], pipeline: Pipeline) -> None:
    wrong = next((name for name in names if name not in SHAPING), None)
    if wrong is not None:
        raise UsageError(
            f"generate.from_model names {wrong!r}, which it cannot take over.",
            f"Name some of: {', '.join(SHAPING)}. To sample, set generate.temperature.",
        )
    unset = next((name for name in names if name not in known), None)
    if unset is not None:
        able = [name for name in SHAPING if name in known]
        model = type(pipeline.module).__name__
        raise UsageError(
            f"generate.from_model names {unset!r}, which the generation config of {model} does not "
            "set.",
            f"It sets: {', '.join(able)}." if able else "Leave generate.from_model out.",
        )


def _refuse_invalid(settings: Mapping[str, Any]) -> None:
    from transformers import GenerationConfig

    try:
        GenerationConfig(**settings)
    except ValueError as error:
        raise UsageError(
            f"transformers refuses what generate.from_model names: {error}",
            "Name settings that go together.",
        ) from None


def _report_unused(known: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Finding]:
    """Return what generate.from_model could take over; penalties of 1, a length of 0 and the like
    do nothing.
    """
    changing = [
        (name, known[name])
        for name in SHAPING
        if name in known and (known[name] is True or known[name] not in (0, 1))
    ]
    unused = [(n, v) for n, v in changing if n != "eos_token_id" and v != settings.get(n)]
    if not unused:
        return []
    shown = ", ".join(f"{name} {str(value)[:40]}" for name, value in unused)
    return [note(f"Text is generated without {shown} (generate.from_model).")]
