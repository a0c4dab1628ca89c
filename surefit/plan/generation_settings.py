"""The settings that text is generated with: greedy, and what is taken over from the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from surefit.config import Generation
from surefit.errors import UsageError
from surefit.findings import Finding, note
from surefit.pipeline.pipeline import Pipeline
from surefit.targets.generation import SHAPING, own_config


def settle_generation(pipeline: Pipeline, wanted: Generation) -> tuple[Pipeline, list[Finding]]:
    """The Pipeline with the settings that it generates with, which its Encoder keeps."""
    generate, encoder = pipeline.task.generate, pipeline.encoder
    able = generate is not None and generate.possible(pipeline.module, encoder)
    if generate is None or not able:
        _refuse_unset(wanted.from_model, {}, pipeline)
        return pipeline, []
    config = own_config(pipeline.module)
    given = {} if config is None else config.to_dict()
    known = {name: value for name, value in given.items() if value is not None}
    _refuse_unset(wanted.from_model, known, pipeline)
    taken = {name: known[name] for name in wanted.from_model}
    settings = {**generate.settings(pipeline.module, encoder), **taken}
    if taken:
        _refuse_invalid(settings)
    encoder = encoder.with_settings(generate=settings)
    return replace(pipeline, encoder=encoder), _report_unused(known, settings)


def _refuse_unset(names: Sequence[str], known: Mapping[str, Any], pipeline: Pipeline) -> None:
    wrong = next((name for name in names if name not in SHAPING), None)
    if wrong is not None:
        raise UsageError(
            f"generate.from_model names {wrong!r}; text is generated without sampling, in a way "
            "that can be repeated.",
            f"Name some of: {', '.join(SHAPING)}.",
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
    """What generate.from_model could take over; penalties of 1, a length of 0 and the like do
    nothing."""
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
