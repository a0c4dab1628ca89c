"""Reads GGUF files: their config, and their weights, which are dequantized once into the cache."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from surefit.core.foreign import library_reads
from surefit.data.cache import fingerprint
from surefit.data.cache_contents import has_room
from surefit.data.cache_entry import file_fingerprint, open_entry
from surefit.errors import UsageError
from surefit.inputs.text.tokenizer import header_parsed_once
from surefit.models.model_source import Built
from surefit.models.transformers_models import load_weights, new_model, quiet_transformers

GGUF = b"GGUF"
"""The first bytes of a GGUF file."""


def find_gguf(name: str) -> Path:
    """Return the path of a GGUF file; refuse what is none."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise UsageError(f"The file {name} does not exist.", "Check the path of the GGUF file.")
    with path.open("rb") as file:
        start = file.read(len(GGUF))
    if start != GGUF:
        raise UsageError(
            f"{name} is not a GGUF file: it starts with {start!r}, expected {GGUF!r}.",
            "Pass a GGUF file or a transformers folder.",
        )
    return path.absolute()


def read_gguf_config(path: Path) -> Any:
    """Return the transformers config that the header of a GGUF file describes."""
    from transformers import AutoConfig

    what = f"The GGUF file {path.name} cannot be read"
    fix = "Download it again, or pass the transformers folder it was made from."
    with library_reads(what, fix), quiet_transformers(), header_parsed_once():
        return AutoConfig.from_pretrained(str(path.parent), gguf_file=str(path))


def load_gguf(auto: Any, path: Path, config: Any) -> Built:
    """Load the model of a GGUF file in float32.

    Dequantizing takes longer than reading float32 weights, so these are kept in the cache where
    they fit. Weights that the file lacks, such as a new head, are not kept: they are drawn anew.
    """
    with torch.device("meta"):
        plain = new_model(auto, config)
    if not has_room(4 * sum(each.numel() for each in plain.parameters())):
        return _dequantize(auto, path, config)

    def read(folder: Path) -> Built:
        built = load_weights(auto, str(folder), config, False)
        module: Any = built.module
        for named in (config, module.config, module):  # the origin is the file, not the entry
            named.name_or_path = str(path.parent)
        if module.can_generate():  # a GGUF file has no settings for it, those of the config hold
            module.generation_config = plain.generation_config
        return built

    versions = [version(name) for name in ("transformers", "gguf")]
    # A weight whose size depends on the number of classes is not kept where it differs.
    about = (auto.__name__, getattr(config, "num_labels", None))
    key = fingerprint(file_fingerprint(path), *versions, *about)
    return open_entry("gguf-weights", key, partial(_fill, auto, path, config), read)


def _fill(auto: Any, path: Path, config: Any, folder: Path) -> None:
    """Write the weights of a GGUF file as transformers saves them, without those it lacks."""
    with torch.random.fork_rng(devices=()):  # what it lacks is drawn when the entry is read
        built = _dequantize(auto, path, deepcopy(config))
    module: Any = built.module
    new = {*built.newly_initialized}
    weights = {name: each for name, each in module.state_dict().items() if name not in new}
    module.save_pretrained(folder, state_dict=weights)
    module.to("meta")  # frees the weights at once, even if the module is in a reference cycle


def _dequantize(auto: Any, path: Path, config: Any) -> Built:
    """Load the model from the GGUF file itself, without the flags of a quantized one."""
    from transformers import GgufConfig
    from transformers import modeling_gguf_pytorch_utils as reader

    bar, quantized = reader.tqdm, GgufConfig(gguf_file=str(path), dequantize=True)
    reader.tqdm = partial(bar, disable=True)  # transformers has no setting for it
    try:
        more = {"gguf_file": str(path), "quantization_config": quantized}
        built = load_weights(auto, str(path.parent), config, False, **more)
    finally:
        reader.tqdm = bar
    module: Any = built.module
    if getattr(module.config, "quantization_config", None) is not None:
        del module.config.quantization_config
    module.is_quantized = False
    return built
