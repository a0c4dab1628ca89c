"""Builds the transformers model of a task: its Auto class, its config and sizes, its weights."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from surefit.core.foreign import WRONG_CONTENT, first_line
from surefit.errors import describe_error
from surefit.findings import Finding, note, rule
from surefit.inputs.encoder import Encoder
from surefit.models.model_source import Built
from surefit.speed.sparse_head import find_input_embedding
from surefit.targets.task_spec import Head
from surefit.user_code.named_code import guard_remote

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
    """Return the Auto classes of tasks that have a model for this config."""
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
    """Return the Auto class of the task; raises where the architecture has no such model."""
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
    """Return the arguments of a model's forward as its file has them.

    `inspect --row` needs only these: importing the model's code takes a second.
    """
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    package: Any = import_module(f"transformers.models.{model_type_to_module_name(model_type)}")
    path = Path(package.__path__[0], f"{package._class_to_module[name]}.py")
    classes = {getattr(node, "name", ""): node for node in ast.parse(path.read_bytes()).body}
    functions = {getattr(node, "name", ""): node for node in classes[name].body}  # type: ignore[attr-defined]
    arguments = functions["forward"].args  # a KeyError where it is inherited
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return frozenset(each.arg for each in named)


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


UNSUITABLE_MODEL = rule(
    "SF301",
    "error",
    "model does not suit the task",
    why="The architecture has no head, or no causal attention, for this task.",
    fix="Choose a model of another architecture or another task.",
)

MODEL_FAILED = rule(
    "SF305",
    "error",
    "model fails on the data",
    why="The model raised an error on one real batch.",
    fix="Change the named layer so that it accepts the named shape.",
)

CANNOT_CHECKPOINT = rule(
    "SF404",
    "error",
    "gradient checkpointing not supported",
    why="Only transformers models support recomputing activations layer by layer.",
    fix="Leave out checkpointing.",
)

EMBEDDINGS_RESIZED = rule(
    "SF307",
    "fixed",
    "embeddings resized",
    why="The tokenizer has more tokens than the embeddings of the model have rows.",
    fix="If the model is to stay as it is, use the tokenizer that it was trained with.",
)


def load_weights(auto: Any, name: str, config: Any, trust_remote_code: bool, **more: Any) -> Built:
    """Load trained weights; reports those that are missing or have another size."""
    from safetensors import SafetensorError

    try:
        with guard_remote(name, trust_remote_code):
            module, info = auto.from_pretrained(
                name,
                config=config,
                dtype=torch.float32,
                trust_remote_code=trust_remote_code,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                use_safetensors=True,
                **more,
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        files = sorted(Path(name).iterdir()) if Path(name).is_dir() else []
        forbidden = next((f for f in files if f.is_file() and not os.access(f, os.R_OK)), None)
        if forbidden is not None:
            raise UNSUITABLE_MODEL.error(
                f"{forbidden} may not be read by this user (permission denied).",
                fix=f"Ask its owner for: chmod -R go+rX {name}",
            ) from None
        raise UNSUITABLE_MODEL.error(
            f"The weights of {name} cannot be loaded: {first_line(error)}",
            fix="Download the model again; its weights file is missing or damaged.",
        ) from None
    resized = [key[0] if isinstance(key, tuple) else key for key in info["mismatched_keys"]]
    new = sorted({*info["missing_keys"], *resized})
    return Built(module, report_new(new), newly_initialized=tuple(new))


def new_model(auto: Any, config: Any, trust_remote_code: bool = False) -> Any:
    """A model with new weights, in float32 as trained ones are loaded, whatever its config says."""
    return auto.from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)


def report_new(names: list[str]) -> tuple[Finding, ...]:
    """Return the finding of weights that no file has."""
    if not names:
        return ()
    shown = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
    return (note(f"{len(names)} weights start untrained: {shown}"),)


@contextmanager
def building(name: str) -> Iterator[None]:
    """Report a model that its own config does not allow to build."""
    try:
        yield
    except tuple({*WRONG_CONTENT} - {ValueError, MemoryError}) as error:
        raise UNSUITABLE_MODEL.error(
            f"The model {name} cannot be built from its config: {describe_error(error)[:200]}.",
            fix="Correct its config.json, or download the model again.",
        ) from error


def fit_embeddings(built: Built, tokenizer: Any) -> Built:
    """Resize the embeddings so that every token of the tokenizer has a row."""
    module: Any = built.module
    embedding = find_input_embedding(module)
    if tokenizer is None or embedding is None:
        return built
    had = embedding.weight.shape[0]
    if len(tokenizer) <= had:
        return built
    module.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    _start_at_mean(module, had)
    message = f"The tokenizer has {len(tokenizer)} tokens, the embeddings had {had} rows."
    return replace(
        built,
        findings=(*built.findings, EMBEDDINGS_RESIZED.finding(message)),
        added_tokens=range(had, len(tokenizer)),
    )


@torch.no_grad()
def _start_at_mean(module: Any, had: int) -> None:
    """Let new rows of the embeddings start as the mean of the old ones, the same in each process.

    transformers' own draw around the mean is not the same to the bit.
    """
    layers = (find_input_embedding(module), module.get_output_embeddings())
    for values in (getattr(layer, "weight", None) for layer in layers):
        if values is not None and not values.is_meta and len(values) > had:
            values[had:] = values[:had].double().mean(0).to(values.dtype)


LEAST_POSITIONS = 64
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
OFFSET_POSITIONS = (
    *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke"),
    *("markuplm", "mpnet", "prophetnet", "roberta", "roberta-prelayernorm", "xlm-roberta"),
    *("xlm-roberta-xl", "xmod"),
)
"""Architectures that number positions from pad_token_id + 1."""


def input_size(text: Any) -> int:
    """Return the size of `inputs_embeds`; some bodies project it to their hidden size."""
    sizes = (getattr(text, name, None) for name in ("embedding_size", "word_embed_proj_dim"))
    return next((size for size in sizes if isinstance(size, int)), int(text.hidden_size))


def resize_config(config: Any, feature_size: int, longest: int) -> list[str]:
    """Size the config of an untrained body to the data; returns the changes.

    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(vocab_size=271, max_position_embeddings=20, model_type="bert")
    >>> resize_config(config, 4000, 999)
    ['vocab_size 271 → 4000', 'max_position_embeddings 20 → 999']
    """
    text = text_config(config)
    changed = []
    special = (getattr(text, f"{name}_token_id", None) for name in ("pad", "bos", "eos"))
    vocabulary = max([feature_size, *(each + 1 for each in special if isinstance(each, int))])
    if getattr(text, "vocab_size", vocabulary) != vocabulary:
        changed.append(f"vocab_size {text.vocab_size} → {vocabulary}")
        text.vocab_size = vocabulary
    room = max_positions(text)
    if room is not None and room < longest:
        name = next(n for n in _POSITIONS if isinstance(getattr(text, n, None), int))
        before = getattr(text, name)
        setattr(text, name, before + longest - room)
        changed.append(f"{name} {before} → {before + longest - room}")
    return changed


def text_config(config: Any) -> Any:
    """Return the part of a config that describes the text model, where it has several."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def room_for(longest: int) -> int:
    """Positions of a body built for the data, with room for longer rows later.

    >>> room_for(20), room_for(999)
    (64, 1998)
    """
    return max(LEAST_POSITIONS, 2 * longest)


def max_positions(config: Any) -> int | None:
    """Return the longest sequence that the model accepts, where its config limits it."""
    for name in _POSITIONS:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            offset = config.pad_token_id + 1 if offsets_positions(config) else 0
            return value - offset
    return None


def offsets_positions(config: Any) -> bool:
    """Return whether the pad token decides where positions begin."""
    return config.model_type in OFFSET_POSITIONS and config.pad_token_id is not None


def supports_checkpointing(module: nn.Module) -> bool:
    """Return whether gradient checkpointing can still be enabled in a part of the model."""
    return any(not part.is_gradient_checkpointing for part in _checkpointed_parts(module))


def is_checkpointing(module: nn.Module) -> bool:
    """Return whether any part of the model uses gradient checkpointing."""
    return any(part.is_gradient_checkpointing for part in _checkpointed_parts(module))


def enable_checkpointing(module: nn.Module) -> None:
    """Enable gradient checkpointing in each part that supports it; raises where none does."""
    parts = _checkpointed_parts(module)
    if not parts:
        raise CANNOT_CHECKPOINT.error(
            f"checkpointing is true, but {type(module).__name__} does not support it.",
        )
    for part in parts:
        part.gradient_checkpointing_enable({"use_reentrant": False})


def _checkpointed_parts(module: nn.Module) -> list[Any]:
    """Return the outermost submodules that support gradient checkpointing."""
    if getattr(module, "supports_gradient_checkpointing", False):
        return [module]
    return [part for child in module.children() for part in _checkpointed_parts(child)]
