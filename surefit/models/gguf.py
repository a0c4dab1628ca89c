"""Opens a GGUF file: dequantizes the model, so that it can be trained and saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from surefit.core.foreign import library_reads
from surefit.encode.encoder import Encoder
from surefit.encode.text.tokenizer import header_parsed_once
from surefit.errors import UsageError
from surefit.models.auto_classes import (
    auto_class,
    auto_classes,
    forward_arguments,
    quiet_transformers,
    set_head,
    set_tokens,
)
from surefit.models.config_sizes import max_positions
from surefit.models.load_weights import fit_embeddings, load_weights, new_model
from surefit.models.model_source import Built, ModelSource
from surefit.tasks.task_spec import Head

MAGIC = b"GGUF"


def open_gguf(name: str, from_scratch: bool) -> ModelSource:
    """A GGUF file, through the Auto class of the task; it also holds the tokenizer."""
    path = _find(name)
    config = _read_config(path)

    def build(head: Head | None, encoder: Encoder) -> Built:
        from transformers import GgufConfig

        auto = auto_class(name, config, head)
        set_head(config, head, encoder)
        set_tokens(config, encoder.tokenizer)
        with quiet_transformers(), _without_bar():
            if from_scratch:
                return fit_embeddings(Built(new_model(auto, config)), encoder.tokenizer)
            built = load_weights(
                auto,
                str(path.parent),
                config,
                False,
                gguf_file=str(path),
                quantization_config=GgufConfig(gguf_file=str(path), dequantize=True),
            )
        return fit_embeddings(_as_dequantized(built), encoder.tokenizer)

    return ModelSource(
        name,
        "gguf",
        build,
        max_positions=max_positions(config),
        auto_classes=auto_classes(config),
        model_type=config.model_type,
        tokenizer=str(path),
        arguments=partial(forward_arguments, config),
        untrained=from_scratch,
    )


@contextmanager
def _without_bar() -> Iterator[None]:
    """Turn off the progress bar of the GGUF reader, for which transformers has no setting."""
    from transformers import modeling_gguf_pytorch_utils as reader

    bar = reader.tqdm
    reader.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        reader.tqdm = bar


def _find(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise UsageError(f"The file {name} does not exist.", "Check the path of the GGUF file.")
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        raise UsageError(
            f"{name} is not a GGUF file: it starts with {start!r}, expected {MAGIC!r}.",
            "Pass a GGUF file or a transformers folder.",
        )
    return path.absolute()


def _read_config(path: Path) -> Any:
    from transformers import AutoConfig

    what = f"The GGUF file {path.name} cannot be read"
    fix = "Download it again, or pass the transformers folder it was made from."
    with library_reads(what, fix), quiet_transformers(), header_parsed_once():
        return AutoConfig.from_pretrained(str(path.parent), gguf_file=str(path))


def _as_dequantized(built: Built) -> Built:
    """Clear the flags of a quantized model, because the weights are dequantized."""
    module: Any = built.module
    if getattr(module.config, "quantization_config", None) is not None:
        del module.config.quantization_config
    module.is_quantized = False
    return built
