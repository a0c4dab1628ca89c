"""What a model reads of audio: its feature extractor, or the forms that a custom module accepts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from surefit.encode.audio.audio_format import KIND
from surefit.models.auto_classes import auto_classes, quiet_transformers
from surefit.models.module_inputs import ROWS_TRIED, layer_input_size, run_once

if TYPE_CHECKING:
    from torch import nn

CLASS = "AutoModelForAudioClassification"
SHORTEST_SECONDS = 0.05
"""What a feature extractor needs for a few frames."""
TINY_MELS = 64


@dataclass(frozen=True)
class AudioInputs:
    """What is known of a model before the audio is looked at."""

    extractor: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its feature extractor, as in preprocessor_config.json; empty for a module."""
    least_samples: int = 1
    untrained: bool = False
    """Whether the extractor, and the model with it, can be fitted to the data."""
    sizes: tuple[int, ...] = ()
    """Sizes that layers of a custom module expect, which may be mel bands."""
    gives_rows: Callable[..., bool] | None = None
    """Tries a custom module: whether it gives one output per row for rows of a shape, whose time
    is the axis of that number; with `columns`, for several columns of audio."""


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


def module_inputs(module: nn.Module) -> AudioInputs:
    """The inputs of a custom module, which are found by trying."""
    sizes = (layer_input_size(each) or getattr(each, "in_channels", 0) for each in module.modules())
    found = tuple(dict.fromkeys(size for size in sizes if size))
    return AudioInputs(sizes=found, gives_rows=partial(_gives_rows, module))


def _gives_rows(
    module: nn.Module, shape: tuple[int, ...], time: int, columns: Sequence[str] = ()
) -> bool:
    import torch

    from surefit.models.call import Names

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
