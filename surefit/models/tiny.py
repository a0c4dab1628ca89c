"""Opens `tiny:ARCH`, a small untrained transformers model sized to the data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import Hints
from surefit.errors import UsageError
from surefit.findings import rule
from surefit.models.audio_inputs import extractor_inputs
from surefit.models.auto_classes import (
    FAMILY_OF,
    auto_class,
    auto_classes,
    forward_arguments,
    quiet_transformers,
    set_head,
    set_tokens,
)
from surefit.models.build_feature_model import build_feature_model
from surefit.models.config_sizes import max_positions, offsets_positions, room_for
from surefit.models.load_weights import UNSUITABLE_MODEL
from surefit.models.model_source import Built, ModelSource
from surefit.models.tiny_config import DEFAULT_SIZES, TinySizes, tiny_config, tiny_families
from surefit.tasks.task_spec import Head

if TYPE_CHECKING:
    from torch import nn


IMAGE_SIZE_REFUSED = rule(
    "SF253",
    "error",
    "image size the model does not accept",
    why="The model is built for square images of one size.",
    fix="Set image.size to one number, or leave it out.",
)

BODY_VOCABULARY = 16
"""Vocabulary of a body that reads features: no text tokens, room for the special ones."""


def open_tiny(arch: str) -> ModelSource:
    """A small untrained model of an architecture, with a tokenizer made from the data."""
    try:
        default = tiny_config(arch)
    except ValueError as error:
        raise UsageError(str(error), "`surefit tasks --models` lists them.") from None
    families = tiny_families()
    listed = {name for name, family in FAMILY_OF.items() if arch in families[family]}
    return ModelSource(
        f"tiny:{arch}",
        "tiny",
        lambda head, encoder: _build(arch, head, encoder),
        max_positions=max_positions(default),
        model_type=default.model_type,
        arguments=partial(forward_arguments, default),
        auto_classes=frozenset(listed) & auto_classes(default),
        makes_tokenizer=True,
        untrained=True,
        follows_rows=True,
        image={"multiple_of": 32},
        audio=lambda: extractor_inputs(None, default),
    )


def _build(arch: str, head: Head | None, encoder: Encoder) -> Built:
    if head is not None and head.body is not None:
        positions = room_for(encoder.fitted["longest"])
        config = tiny_config(arch, TinySizes(BODY_VOCABULARY, max_positions=positions))
        return build_feature_model(f"tiny:{arch}", config, head, encoder, from_scratch=True)
    try:
        config = tiny_config(
            arch,
            _sizes(encoder),
            family=FAMILY_OF.get(head.auto_class or "") if head is not None else None,
            num_labels=head.size(encoder) if head is not None and head.size else None,
        )
    except ValueError as error:
        raise UNSUITABLE_MODEL.error(str(error)) from None
    auto = auto_class(f"tiny:{arch}", config, head)
    set_head(config, head, encoder)
    set_tokens(config, encoder.tokenizer)
    largest = encoder.settings.get("largest_id")
    if encoder.tokenizer is None and largest is not None and not offsets_positions(config):
        config.pad_token_id = largest + 1  # no id of the data
    with quiet_transformers():
        return Built(auto.from_config(config))


def _sizes(encoder: Encoder) -> TinySizes:
    """The default sizes, with the vocabulary and the image size of the data."""
    sizes, pixels = DEFAULT_SIZES, encoder.fitted.get("pixels")
    if encoder.tokenizer is not None and len(encoder.tokenizer):
        sizes = replace(sizes, vocab_size=len(encoder.tokenizer))
    elif (largest := encoder.settings.get("largest_id")) is not None:  # token ids of the data
        sizes = replace(sizes, vocab_size=max(sizes.vocab_size, largest + 2))
    if pixels is None:
        return sizes
    if pixels["height"] != pixels["width"]:
        raise IMAGE_SIZE_REFUSED.error(
            f"image.size is {pixels['height']} × {pixels['width']}; a tiny model needs square "
            "images.",
        )
    return replace(sizes, image_size=pixels["height"])


NAME = "tiny:mlp"
HIDDEN = 256


def open_mlp() -> ModelSource:
    """A source that sizes the network to the columns and classes of the data."""
    return ModelSource(
        NAME,
        "tiny",
        _build_mlp,
        makes_tokenizer=True,
        untrained=True,
        auto_classes=frozenset(),
        recipe={"tiny": NAME},
        hints=lambda: Hints(reads_vectors=lambda size: True),
    )


def _build_mlp(head: Head | None, encoder: Encoder) -> Built:
    width = encoder.fitted.get("width")
    if width is None or head is None or head.size is None or head.body is not None:
        raise UNSUITABLE_MODEL.error(
            f"{NAME} reads tabular rows and vectors, and the task {encoder.task} reads "
            f"{', '.join(encoder.roles.values()) or 'whole rows'}.",
            fix="Choose another model, or the task tabular-classification or regression.",
        )
    mean, scale = encoder.fitted.get("feature_mean"), encoder.fitted.get("feature_scale")
    return Built(make_mlp(width, head.size(encoder), mean, scale))


def make_mlp(
    width: int, num_outputs: int, mean: list[float] | None, scale: list[float] | None
) -> nn.Module:
    """Three times linear, norm, GELU and dropout, and a linear output: (B, W) to (B, C).

    Inputs whose means and scales are known are standardised first.
    """
    import torch
    from torch import nn

    class MLP(nn.Module):
        mean: torch.Tensor | None
        scale: torch.Tensor | None

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*(layer(size) for size in (width, HIDDEN, HIDDEN)))
            self.head = nn.Linear(HIDDEN, num_outputs)
            for name, values in (("mean", mean), ("scale", scale)):
                self.register_buffer(name, None if values is None else torch.tensor(values))

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            if self.mean is not None and self.scale is not None:
                features = (features - self.mean) / self.scale
            logits: torch.Tensor = self.head(self.body(features))
            return logits

    def layer(size: int) -> nn.Module:
        norm = nn.LayerNorm(HIDDEN)
        return nn.Sequential(nn.Linear(size, HIDDEN), norm, nn.GELU(), nn.Dropout(0.1))

    return MLP()
