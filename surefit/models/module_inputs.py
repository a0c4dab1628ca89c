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
from surefit.core.foreign import library_reads
from surefit.errors import FindingError
from surefit.inputs.model_hints import KIND, AudioInputs, Hints
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
    """Return the size of the last axis that a layer expects; None where it accepts any size."""
    sizes = (getattr(layer, name, None) for name in _SIZES)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def module_hints(module: nn.Module) -> Hints:
    """Return sizes that the layers of a module expect, and a test whether it accepts a shape."""
    arguments = tuple(signature(module.forward).parameters)
    known = Hints(image=first_layer(module), arguments=arguments, required=_required(module))
    if any(map(is_lazy, module.parameters())):  # a run would fix the sizes of lazy layers
        return replace(known, reads_vectors=lambda size: None)
    found = (layer_input_size(layer) for layer in module.modules())
    sizes = tuple(dict.fromkeys(size for size in found if size is not None))
    return replace(
        known,
        layers=sizes,
        accepts=partial(_accepts, module),
        reads_vectors=lambda size: _reads(module, "features", size),
        reads_images=partial(_reads, module, "pixel_values"),
        runs_on=partial(_runs_on, module),
    )


def _required(module: nn.Module) -> tuple[str, ...] | None:
    """Return the arguments of a custom module's forward that a column must be found for."""
    if is_transformers(module):
        return None
    parameters = signature(module.forward).parameters.values()
    named = (p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
    return tuple(p.name for p in named if p.default is p.empty and p.name not in CLOCK)


def first_layer(module: nn.Module) -> dict[str, Any]:
    """Return the channels that a convolution reads, or the inputs of a Linear, whichever comes
    first.

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


def run_once(module: nn.Module, batch: Batch, known: Names | None = None) -> Any:
    """Return what the module returns for a batch, without a trace of the run in it."""
    call, _ = match_arguments(module, list(batch), known)
    with preserved_state(module), torch.no_grad():
        return call(module, batch)


def _zeros(
    rows: int, shapes: Mapping[str, Sequence[int]], integers: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """Return rows of zeros by column; an attention mask keeps all of them."""
    return {
        name: torch.full(
            (rows, *shape),
            name == "attention_mask",
            dtype=torch.int64 if name in {"attention_mask", *integers} else torch.float32,
        )
        for name, shape in shapes.items()
    }


def _runs_on(
    module: nn.Module, shapes: Mapping[str, Sequence[int]], integers: Collection[str] = ()
) -> bool:
    """Return whether the module runs on two rows of zeros with these columns."""
    try:
        run_once(module, _zeros(2, shapes, integers))
    except Exception:  # user code may raise anything; the first-batch probe reports it
        return False
    return True


def _accepts(module: nn.Module, length: int, feature_size: int) -> bool:
    """Return whether the module runs on feature sequences of this shape."""
    shapes = {"attention_mask": [length], "masked_steps": [length]}
    features = {"inputs_embeds": [length, feature_size]}
    return _runs_on(module, {**features, **shapes}, {"masked_steps"})


def _gives_rows(
    module: nn.Module, shapes: Mapping[str, Sequence[int]], known: Names | None = None
) -> bool | None:
    """Return whether the module gives one output per row of zeros, or per pixel of an image.

    None if it reads more columns.
    """
    try:
        logits = run_once(module, _zeros(ROWS_TRIED, shapes), known).logits
    except FindingError:
        return None
    except Exception:  # user code may raise anything; the first-batch probe reports it
        return False
    per_pixel = "pixel_values" in shapes and logits is not None and logits.ndim == 4
    return logits is None or ((logits.ndim <= 2 or per_pixel) and len(logits) == ROWS_TRIED)


def _reads(module: nn.Module, column: str, *shape: int) -> bool | None:
    """Return whether the module gives one output per row of a column, and reads no sequences."""
    if SEQUENCE_NAMES & {*signature(module.forward).parameters}:
        return False
    return _gives_rows(module, {column: shape})


CLASS = "AutoModelForAudioClassification"
SHORTEST_SECONDS = 0.05
"""What a feature extractor needs for a few frames."""


def extractor_inputs(
    name: str | None, config: Any, trust_remote_code: bool = False
) -> AudioInputs | None:
    """Return the inputs of a transformers model; without a name, of an untrained one.

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

    what = f"The feature extractor of {name} cannot be used"
    fix = "Correct its preprocessor_config.json, or download the model again."
    with library_reads(what, fix), quiet_transformers():
        try:
            found = AutoFeatureExtractor.from_pretrained(name, trust_remote_code=trust_remote_code)
        except (OSError, ValueError, KeyError, ImportError):
            return None  # the model has no feature extractor
    plain = (str, int, float, list, type(None))
    return {key: value for key, value in found.to_dict().items() if isinstance(value, plain)}


def _usual_extractor(config: Any) -> dict[str, Any]:
    """Return the extractor of an architecture: of waveforms, unless the config has mel bands."""
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
    """Return how many samples the convolutions of a waveform model need for two frames."""
    kernels, strides = getattr(config, "conv_kernel", ()), getattr(config, "conv_stride", ())
    samples = 2
    for kernel, stride in reversed(list(zip(kernels, strides, strict=False))):
        samples = (samples - 1) * stride + kernel
    return samples


def audio_of_module(module: nn.Module) -> AudioInputs:
    """Return the inputs of a custom module, which are found by trying."""
    sizes = (layer_input_size(each) or getattr(each, "in_channels", 0) for each in module.modules())
    found = tuple(dict.fromkeys(size for size in sizes if size))
    return AudioInputs(sizes=found, gives_rows=partial(_gives_audio_rows, module))


def _gives_audio_rows(
    module: nn.Module, shape: tuple[int, ...], time: int, columns: Sequence[str] = ()
) -> bool:
    shapes = dict.fromkeys(("input_values", *columns[1:]), shape)
    known = Names(dict.fromkeys(columns[:1], "input_values"), tuple(shapes) if columns else ())
    tried = copy.deepcopy(module)  # a run would fix the sizes of lazy layers
    return _gives_rows(tried, {**shapes, "attention_mask": shape[time : time + 1]}, known) is True
