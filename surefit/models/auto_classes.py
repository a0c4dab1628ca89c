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
    "AutoModelForSemanticSegmentation": "image-segmentation",
    "AutoModelForAudioClassification": "audio-classification",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}
"""The families of `tiny:`, by the Auto class of the task."""


def auto_classes(config: Any) -> frozenset[str]:
    """The Auto classes of tasks that have a model for this config."""
    import transformers

    found = {
        name for name in FAMILY_OF if type(config) in getattr(transformers, name)._model_mapping
    }
    if _is_bidirectional(config) or getattr(config, "is_encoder_decoder", False):
        found.discard("AutoModelForCausalLM")
    return frozenset(found)


def _is_bidirectional(config: Any) -> bool:
    """Whether an architecture that can be causal is configured with bidirectional attention."""
    from transformers.models.auto import modeling_auto

    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return config.model_type in masked and not getattr(config, "is_decoder", False)


def auto_class(name: str, config: Any, head: Head | None) -> Any:
    """The Auto class of the task; raises where the architecture has no such model."""
    import transformers

    if head is None or head.auto_class is None:
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {config.model_type} model; this task needs a custom nn.Module.",
            fix="Pass the model as module:function.",
        )
    auto = getattr(transformers, head.auto_class)
    wanted = head.auto_class.removeprefix("AutoModelFor")
    if type(config) not in auto._model_mapping and not hasattr(config, "auto_map"):
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {config.model_type} model, and transformers has no {config.model_type} "
            f"model for {wanted}.",
        )
    if wanted == "CausalLM" and _is_bidirectional(config):
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {config.model_type} model with bidirectional attention; a causal "
            "model must not see the tokens that it predicts.",
            fix="Choose a causal model, such as Llama, Qwen or GPT-2.",
        )
    return auto


def set_head(config: Any, head: Head | None, encoder: Encoder) -> None:
    """Set the head size and the task's settings in the config."""
    if head is None:
        return
    if head.size is not None:
        config.num_labels = head.size(encoder)
    for key, value in (head.config(encoder) if head.config else {}).items():
        setattr(config, key, value)


def set_tokens(config: Any, tokenizer: Any) -> None:
    """Copy the special token ids of the tokenizer to the config."""
    if tokenizer is None:
        return
    config.pad_token_id = tokenizer.pad_token_id
    for name in ("bos_token_id", "eos_token_id"):  # a list of ids in the config is kept
        if getattr(tokenizer, name, None) is not None and not isinstance(
            getattr(config, name, None), list
        ):
            setattr(config, name, getattr(tokenizer, name))
