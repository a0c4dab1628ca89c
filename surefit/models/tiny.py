"""Opens `tiny:ARCH`, a small untrained transformers model sized to the data."""

from __future__ import annotations

from dataclasses import replace

from surefit.encode.encoder import Encoder
from surefit.errors import UsageError
from surefit.findings import rule
from surefit.models.audio_inputs import extractor_inputs
from surefit.models.auto_classes import FAMILY_OF, auto_class, auto_classes, set_head, set_tokens
from surefit.models.build_feature_model import build_feature_model
from surefit.models.config_sizes import max_positions, room_for
from surefit.models.model_rules import UNSUITABLE_MODEL
from surefit.models.model_source import Built, ModelSource
from surefit.models.quiet_transformers import quiet_transformers
from surefit.models.tiny_architectures import FAMILIES
from surefit.models.tiny_config import DEFAULT_SIZES, TinySizes, tiny_config
from surefit.tasks.task_spec import Head

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
    listed = {name for name, family in FAMILY_OF.items() if arch in FAMILIES[family]}
    return ModelSource(
        f"tiny:{arch}",
        "tiny",
        lambda head, encoder: _build(arch, head, encoder),
        max_positions=max_positions(default),
        model_type=default.model_type,
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
    with quiet_transformers():
        return Built(auto.from_config(config))


def _sizes(encoder: Encoder) -> TinySizes:
    """The default sizes, with the vocabulary and the image size of the data."""
    sizes, pixels = DEFAULT_SIZES, encoder.fitted.get("pixels")
    if encoder.tokenizer is not None and len(encoder.tokenizer):
        sizes = replace(sizes, vocab_size=len(encoder.tokenizer))
    if pixels is None:
        return sizes
    if pixels["height"] != pixels["width"]:
        raise IMAGE_SIZE_REFUSED.error(
            f"image.size is {pixels['height']} × {pixels['width']}; a tiny model needs square "
            "images.",
        )
    return replace(sizes, image_size=pixels["height"])
