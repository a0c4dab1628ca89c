"""Finds the transformers Auto class for a task, and sets the config of its model."""

from __future__ import annotations

from typing import Any

from surefit.encode.encoder import Encoder
from surefit.models.model_rules import UNSUITABLE_MODEL
from surefit.tasks.task_spec import Head

FAMILY_OF = {
    "AutoModelForCausalLM": "causal-lm",
    "AutoModelForMaskedLM": "masked-lm",
    "AutoModelForSeq2SeqLM": "seq2seq",
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}
"""The families that `tiny:` knows, by the Auto class a task asks for."""


def auto_classes(config: Any) -> frozenset[str]:
    """The Auto classes that have a model for this config, of those a task may ask for."""
    import transformers

    found = {
        name for name in FAMILY_OF if type(config) in getattr(transformers, name)._model_mapping
    }
    if _reads_both_ways(config) or getattr(config, "is_encoder_decoder", False):
        found.discard("AutoModelForCausalLM")
    return frozenset(found)


def _reads_both_ways(config: Any) -> bool:
    """Whether an architecture with a causal variant is set to see the whole row at once."""
    from transformers.models.auto import modeling_auto

    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return config.model_type in masked and not getattr(config, "is_decoder", False)


def auto_class(name: str, config: Any, head: Head | None) -> Any:
    """The Auto class of the task, if the architecture has such a model; else a Finding."""
    import transformers

    if head is None or head.auto_class is None:
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {config.model_type} model; this task takes your own nn.Module.",
            fix="Give the model as module:function.",
        )
    auto = getattr(transformers, head.auto_class)
    wanted = head.auto_class.removeprefix("AutoModelFor")
    if type(config) not in auto._model_mapping and not hasattr(config, "auto_map"):
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {config.model_type} model, and transformers has no {config.model_type} "
            f"model for {wanted}.",
        )
    if wanted == "CausalLM" and _reads_both_ways(config):
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {config.model_type} model, which sees the whole row at once; a causal "
            "model must not see the tokens it is to predict.",
            fix="Choose a causal model, such as a Llama, Qwen or GPT-2 one.",
        )
    return auto


def set_head(config: Any, head: Head | None, encoder: Encoder) -> None:
    """Size the config's head, and give it the settings that the task asks for."""
    if head is None:
        return
    if head.size is not None:
        config.num_labels = head.size(encoder)
    for key, value in (head.config(encoder) if head.config else {}).items():
        setattr(config, key, value)


def set_tokens(config: Any, tokenizer: Any) -> None:
    """Let the config name the tokenizer's special tokens."""
    if tokenizer is None:
        return
    config.pad_token_id = tokenizer.pad_token_id
    for name in ("bos_token_id", "eos_token_id"):
        if getattr(tokenizer, name, None) is not None and _eos_is_settled(config, name):
            setattr(config, name, getattr(tokenizer, name))


def _eos_is_settled(config: Any, name: str) -> bool:
    """Whether the config names no list of end tokens of its own, which would be kept."""
    return not isinstance(getattr(config, name, None), list)
