"""Finds the transformers Auto class for a task, and sets the config of its model."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from surefit.encode.encoder import Encoder
from surefit.models.load_weights import UNSUITABLE_MODEL
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


def forward_arguments(config: Any, head: Head | None) -> frozenset[str] | None:
    """The arguments of the forward of a task's model; None for code of its own and for features."""
    import transformers

    if head is None or head.auto_class is None or head.body is not None:
        return None
    mapping = getattr(transformers, head.auto_class)._model_mapping
    if type(config) not in mapping:
        return None
    try:
        return _written_arguments(mapping._model_mapping[config.model_type], config.model_type)
    except (AttributeError, KeyError, OSError, SyntaxError, TypeError):
        return frozenset(inspect.signature(mapping[type(config)].forward).parameters)


def _written_arguments(name: str, model_type: str) -> frozenset[str]:
    """The arguments of a model's forward as its file has them; to import it takes a second."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    package: Any = import_module(f"transformers.models.{model_type_to_module_name(model_type)}")
    path = Path(package.__path__[0], f"{package._class_to_module[name]}.py")
    classes = {getattr(node, "name", ""): node for node in ast.parse(path.read_bytes()).body}
    functions = {getattr(node, "name", ""): node for node in classes[name].body}  # type: ignore[attr-defined]
    given = functions["forward"].args  # a KeyError where it is inherited
    return frozenset(each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs))


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


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Turn off the progress bars and load reports of transformers inside the block."""
    from transformers.utils import logging

    before, shows_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shows_bars:
            logging.enable_progress_bar()
