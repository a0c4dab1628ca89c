"""Finds the shapes that a custom module accepts by running a batch of zeros through it.

A module does not declare what its forward reads. Of audio, a transformers model reads what its
feature extractor gives, and a custom module one of the forms that it is tried on.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from surefit.batches.field import SEQUENCES
from surefit.errors import FindingError
from surefit.inputs.audio.audio_format import KIND
from surefit.inputs.features.feature_layout import Hints
from surefit.inputs.row_input import AudioInputs
from surefit.models.call import CLOCK, Names, is_transformers, match_arguments
from surefit.models.transformers_models import auto_classes, quiet_transformers
from surefit.speed.numerics import preserved_state
from surefit.targets.task_spec import Batch

ROWS_TRIED = 7
"""Rows of a trial; few modules have as many outputs, so that rows are told apart."""
SEQUENCE_NAMES = {*SEQUENCES, "attention_mask"}
"""Arguments of a forward that reads sequences."""
_SIZES = ("in_features", "input_size", "embed_dim")
"""Attributes of torch layers with the size they expect: Linear, RNN, MultiheadAttention."""


def layer_input_size(layer: nn.Module) -> int | None:
    """The size of the last axis that a layer expects; None where it accepts any size."""
    sizes = (getattr(layer, name, None) for name in _SIZES)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def module_hints(module: nn.Module) -> Hints:
    """The sizes that the layers of a module expect, and a test whether it accepts a shape."""
    arguments = tuple(signature(module.forward).parameters)
    known = Hints(image=first_layer(module), arguments=arguments, required=_required(module))
    if _is_lazy(module):  # a run would fix the sizes of lazy layers
        return replace(known, reads_vectors=lambda size: None)
    found = (layer_input_size(layer) for layer in module.modules())
    sizes = tuple(dict.fromkeys(size for size in found if size is not None))
    return replace(
        known,
        layers=sizes,
        accepts=partial(_accepts, module),
        reads_vectors=lambda size: _gives_rows(module, "features", size),
        reads_images=partial(_gives_rows, module, "pixel_values"),
        runs_on=partial(_runs_on, module),
    )


def _required(module: nn.Module) -> tuple[str, ...] | None:
    """The arguments of a custom module's forward that a column must be found for."""
    if is_transformers(module):
        return None
    parameters = signature(module.forward).parameters.values()
    named = (p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
    return tuple(p.name for p in named if p.default is p.empty and p.name not in CLOCK)


def first_layer(module: nn.Module) -> dict[str, Any]:
    """The channels that a convolution reads, or the inputs of a Linear, whichever comes first.

    `convolutions` are the channels that any of them reads.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) and layer.in_channels:
            layers = [each for each in module.modules() if isinstance(each, nn.Conv2d)]
            read = sorted({each.in_channels for each in layers})
            return {"channels": layer.in_channels, "inputs": None, "convolutions": read}
        if isinstance(layer, nn.Linear) and layer.in_features:
            return {"channels": None, "inputs": layer.in_features}
    return {"channels": None, "inputs": None}


def _is_lazy(module: nn.Module) -> bool:
    return any(is_lazy(parameter) for parameter in module.parameters())


def run_once(module: nn.Module, batch: Batch, known: Names | None = None) -> Any:
    """What the module returns for a batch, without a trace of the run in it."""
    call, _ = match_arguments(module, list(batch), known)
    with preserved_state(module), torch.no_grad():
        return call(module, batch)


def _gives_rows(module: nn.Module, column: str, *shape: int) -> bool | None:
    """Whether the module gives one output per row of that shape, or per pixel of an image.

    None if it reads more columns.
    """
    if SEQUENCE_NAMES & {*signature(module.forward).parameters}:
        return False
    try:
        logits = run_once(module, {column: torch.zeros(ROWS_TRIED, *shape)}).logits
    except FindingError:
        return None
    except Exception:  # user code may raise anything; the first-batch probe reports it
        return False
    per_pixel = len(shape) == 3 and logits is not None and logits.ndim == 4
    return logits is None or ((logits.ndim <= 2 or per_pixel) and len(logits) == ROWS_TRIED)


def _accepts(module: nn.Module, length: int, feature_size: int) -> bool:
    """Whether the module runs on feature sequences of this shape."""
    batch = {
        "inputs_embeds": torch.zeros(2, length, feature_size),
        "attention_mask": torch.ones(2, length, dtype=torch.int64),
        "masked_steps": torch.zeros(2, length, dtype=torch.int64),
    }
    return _runs(module, batch)


def _runs_on(
    module: nn.Module, shapes: Mapping[str, Sequence[int]], integers: Collection[str]
) -> bool:
    """Whether the module runs on two rows of zeros with these columns."""
    batch = {
        name: torch.zeros(2, *shape, dtype=torch.int64 if name in integers else torch.float32)
        for name, shape in shapes.items()
    }
    return _runs(module, batch)


def _runs(module: nn.Module, batch: Batch) -> bool:
    try:
        run_once(module, batch)
    except Exception:  # user code may raise anything; the first-batch probe reports it
        return False
    return True


CLASS = "AutoModelForAudioClassification"
SHORTEST_SECONDS = 0.05
"""What a feature extractor needs for a few frames."""


def extractor_inputs(
    name: str | None, config: Any, trust_remote_code: bool = False
) -> AudioInputs | None:
    """The inputs of a transformers model; without a name, of an untrained one.

    A folder without a feature extractor gets the usual one of its architecture.
    """
    if CLASS not in auto_classes(config):
        return None
    state = _saved_extractor(name, trust_remote_code) if name is not None else None
    state = dict(state or _usual_extractor(config))
    rate = int(state.get("sampling_rate") or 16_000)
    least = max(_least_samples(config), round(SHORTEST_SECONDS * rate))
    return AudioInputs({**state, "sampling_rate": rate}, least, untrained=name is None)


def _saved_extractor(name: str, trust_remote_code: bool) -> dict[str, Any] | None:
    from transformers import AutoFeatureExtractor

    try:
        with quiet_transformers():
            found = AutoFeatureExtractor.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError):
        return None  # the model has no feature extractor
    plain = (str, int, float, list, type(None))
    return {key: value for key, value in found.to_dict().items() if isinstance(value, plain)}


def _usual_extractor(config: Any) -> dict[str, Any]:
    """The extractor of an architecture: of waveforms, unless the config has mel bands."""
    if config.model_type == "whisper":
        return {KIND: "WhisperFeatureExtractor", "feature_size": config.num_mel_bins}
    if config.model_type == "audio-spectrogram-transformer":
        sizes = {"num_mel_bins": config.num_mel_bins, "max_length": config.max_length}
        return {KIND: "ASTFeatureExtractor", **sizes}
    if config.model_type == "wav2vec2-bert":
        return {KIND: "SeamlessM4TFeatureExtractor", "return_attention_mask": True}
    masked = getattr(config, "feat_extract_norm", "layer") == "layer"
    known = {"padding_value": 0.0, "do_normalize": True, "return_attention_mask": masked}
    return {KIND: "Wav2Vec2FeatureExtractor", "feature_size": 1, **known}


def _least_samples(config: Any) -> int:
    """How many samples the convolutions of a waveform model need for two frames."""
    kernels, strides = getattr(config, "conv_kernel", ()), getattr(config, "conv_stride", ())
    samples = 2
    for kernel, stride in reversed(list(zip(kernels, strides, strict=False))):
        samples = (samples - 1) * stride + kernel
    return samples


def audio_of_module(module: nn.Module) -> AudioInputs:
    """The inputs of a custom module, which are found by trying."""
    sizes = (layer_input_size(each) or getattr(each, "in_channels", 0) for each in module.modules())
    found = tuple(dict.fromkeys(size for size in sizes if size))
    return AudioInputs(sizes=found, gives_rows=partial(_gives_audio_rows, module))


def _gives_audio_rows(
    module: nn.Module, shape: tuple[int, ...], time: int, columns: Sequence[str] = ()
) -> bool:
    batch = {
        "input_values": torch.zeros(ROWS_TRIED, *shape),
        "attention_mask": torch.ones(ROWS_TRIED, shape[time], dtype=torch.int64),
        **{column: torch.zeros(ROWS_TRIED, *shape) for column in columns[1:]},
    }
    named = dict.fromkeys(columns[:1], "input_values")
    known = Names(named, ("input_values", *columns[1:]) if columns else ())
    try:
        tried = copy.deepcopy(module)  # a run would fix the sizes of lazy layers
        logits = run_once(tried, batch, known).logits
    except Exception:  # user code may raise anything; the first-batch probe reports it
        return False
    return logits is None or (logits.ndim <= 2 and len(logits) == ROWS_TRIED)
