"""Loads the weights of a transformers model and resizes its embeddings to the tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from surefit.core.foreign import first_line
from surefit.errors import describe_error
from surefit.findings import Finding, note, rule
from surefit.kernels.tied_embeddings import find_input_embedding
from surefit.models.model_source import Built
from surefit.user_code.named_code import guard_remote

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

NO_LORA_TARGET = rule(
    "SF321",
    "error",
    "no layer for LoRA",
    why="LoRA has no layer to adapt, so nothing would be trained.",
    fix="Set lora.targets to layers of the model, or leave it out.",
)


EMBEDDINGS_RESIZED = rule(
    "SF307",
    "fixed",
    "embeddings resized",
    why="The tokenizer has more tokens than the embeddings of the model have rows.",
    fix="Nothing to do.",
)


def load_weights(auto: Any, name: str, config: Any, trust_remote_code: bool, **more: Any) -> Built:
    """Load trained weights; reports those that are missing or have another size."""
    import torch
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
        forbidden = find_unreadable(Path(name))
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
    import torch

    return auto.from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)


def report_new(names: list[str]) -> tuple[Finding, ...]:
    """The finding of weights that no file has."""
    if not names:
        return ()
    shown = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
    return (note(f"{len(names)} weights start untrained: {shown}"),)


@contextmanager
def building(name: str) -> Iterator[None]:
    """Report a model that its own config does not allow to build."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
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
    has_values = not embedding.weight.is_meta  # from which new rows start at the mean
    module.resize_token_embeddings(len(tokenizer), mean_resizing=has_values)
    message = f"The tokenizer has {len(tokenizer)} tokens, the embeddings had {had} rows."
    return replace(
        built,
        findings=(*built.findings, EMBEDDINGS_RESIZED.finding(message)),
        added_tokens=range(had, len(tokenizer)),
    )


def find_unreadable(folder: Path) -> Path | None:
    """A file of a local model folder that this user may not read, if there is any."""
    if not folder.is_dir():
        return None
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return next((path for path in files if not os.access(path, os.R_OK)), None)
