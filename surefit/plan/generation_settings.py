"""The settings that text is generated with: greedy, and what is taken over from the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from surefit.config import Generation
from surefit.errors import UsageError
from surefit.findings import Finding, note
from surefit.pipeline.pipeline import Pipeline
from surefit.tasks.generation import SHAPING, own_config

WITHOUT_EFFECT = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *("max_length", "max_new_tokens", "use_cache", "cache_implementation", "cache_config"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    *("return_dict_in_generate", "transformers_version", "_from_model_config"),
    *("compile_config", "disable_compile", "num_assistant_tokens", "is_assistant"),
    *("num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_lookbehind"),
    *("target_lookbehind", "max_matching_ngram_size"),
)
"""Settings that change no token, or that surefit has its own values for."""

NEUTRAL = {
    "do_sample": False,
    "num_beams": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "diversity_penalty": 0.0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "early_stopping": False,
    "renormalize_logits": False,
    "remove_invalid_values": False,
    "token_healing": False,
    "use_mtp": False,
}
"""Values that are as good as none."""


def settle_generation(pipeline: Pipeline, wanted: Generation) -> tuple[Pipeline, list[Finding]]:
    """The Pipeline with the settings that it generates with, which its Encoder keeps."""
    generate, encoder = pipeline.task.generate, pipeline.encoder
    able = generate is not None and generate.possible(pipeline.module, encoder)
    if generate is None or not able:
        _refuse_unset(wanted.from_model, {}, pipeline)
        return pipeline, []
    known = _known_settings(pipeline.module)
    _refuse_unset(wanted.from_model, known, pipeline)
    taken = {name: known[name] for name in wanted.from_model}
    settings = {**generate.settings(pipeline.module, encoder), **taken}
    if taken:
        _refuse_invalid(settings)
    encoder = replace(encoder, settings={**encoder.settings, "generate": settings})
    return replace(pipeline, encoder=encoder), _report_unused(known, settings)


def _known_settings(module: Any) -> dict[str, Any]:
    """What the model's generation config sets."""
    config = own_config(module)
    if config is None:
        return {}
    return {name: value for name, value in config.to_dict().items() if value is not None}


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
    unused = {
        name: value
        for name, value in known.items()
        if name not in WITHOUT_EFFECT and value != settings.get(name, NEUTRAL.get(name))
    }
    if not unused:
        return []
    shown = ", ".join(f"{name} {str(value)[:40]}" for name, value in unused.items())
    return [note(f"Text is generated without {shown} (generate.from_model).")]
