"""Opens `tiny:ARCH`, a small untrained transformers model sized to the data.

The sizes in the config of an architecture are replaced, found by the names that configs give them.
`tests/models/test_tiny_architectures.py` builds and steps each of ARCHITECTURES.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.errors import UsageError
from surefit.findings import rule
from surefit.inputs.encoder import Encoder
from surefit.models.feature_model import build_feature_model
from surefit.models.model_source import Built, ModelSource
from surefit.models.module_inputs import extractor_inputs
from surefit.models.transformers_models import (
    FAMILY_OF,
    OFFSET_POSITIONS,
    UNSUITABLE_MODEL,
    auto_class,
    auto_classes,
    forward_arguments,
    max_positions,
    offsets_positions,
    quiet_transformers,
    room_for,
    set_head,
    set_tokens,
)
from surefit.targets.task_spec import Head

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ARCHITECTURES = """
    albert ast bart beit bert big_bird bloom camembert cohere convbert convnext convnextv2
    deberta deberta-v2 deit dinov2 distilbert electra ernie esm eurobert falcon fnet funnel
    gemma gemma2 gemma3_text glm glm4 gpt2 gpt_neox gpt_oss gptj granite granitemoe hubert led
    llama longformer longt5 m2m_100 mamba marian mbart megatron-bert mistral mixtral mobilebert
    modernbert mpnet mpt mt5 nllb-moe olmo olmo2 olmo3 olmoe openai-gpt opt pegasus phi phi3
    phimoe qwen2 qwen2_moe qwen3 qwen3_moe regnet resnet roberta rwkv segformer smollm3 stablelm
    starcoder2 swin switch_transformers t5 umt5 vit wav2vec2 wavlm whisper xlm-roberta xlstm
"""
"""What `tiny:` builds, for each task that transformers has a model of it for."""
UNSUITED = {
    "text-classification": ("bart", "mbart", "mt5", "t5", "umt5"),  # pool at an eos of all rows
    "image-segmentation": ("beit",),  # upsamples by a factor that small images do not have
}
MODEL_TYPES = {"ast": "audio-spectrogram-transformer"}
"""What transformers calls architectures that are known by a shorter name."""
OVERRIDES: dict[str, dict[str, Any]] = {
    "ast": {"patch_size": 16, "frequency_stride": 16, "time_stride": 16},
    "deit": {"architectures": ["DeiTForImageClassification"]},
    "regnet": {"hidden_sizes": [32, 64, 128], "depths": [1, 1, 1], "groups_width": 16},
    "resnet": {"hidden_sizes": [32, 64, 128], "depths": [1, 1, 1], "embedding_size": 32},
    "swin": {"depths": [1, 1, 1], "num_heads": [1, 2, 4], "window_size": 2},
}
"""Settings of architectures whose sizes depend on each other."""
REQUIRED = ("head_dim", "num_key_value_heads", "vocab_size")
"""None by default in some configs, whose models cannot be built without a value."""
_FIRST_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_START_TOKENS = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")
_LAST_TOKENS = ("sep_token_id", "cls_token_id", "mask_token_id", "eod_token_id")


@lru_cache
def tiny_families() -> dict[str, tuple[str, ...]]:
    """Return the architectures that `tiny:` builds, by family."""
    import transformers

    short, found = {kind: arch for arch, kind in MODEL_TYPES.items()}, {}
    for auto, family in FAMILY_OF.items():
        listed = getattr(transformers, auto)._model_mapping._model_mapping
        names = {*ARCHITECTURES.split()} & {short.get(kind, kind) for kind in listed}
        found[family] = tuple(sorted(names - {*UNSUITED.get(family, ())}))
    return found


@dataclass(frozen=True)
class TinySizes:
    """The sizes of a tiny model."""

    vocab_size: int = 512
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    max_positions: int = 512
    image_size: int = 32

    @cached_property
    def by_name(self) -> dict[str, int]:
        """The sizes by the names that configs give them."""
        width, heads, positions = self.hidden_size, self.num_heads, self.max_positions
        listed = {
            "num_experts_per_tok": 2,
            "num_experts num_local_experts num_conv_pos_embedding_groups": 4,
            "num_conv_pos_embeddings state_size time_step_rank": 16,
            "num_hidden_layers num_layers num_decoder_layers encoder_layers decoder_layers n_layer "
            "n_layers num_blocks": self.num_layers,
            "num_attention_heads num_key_value_heads num_heads num_kv_heads n_head n_heads "
            "encoder_attention_heads decoder_attention_heads": heads,
            "head_dim d_head d_kv rotary_dim": width // heads,
            "moe_intermediate_size shared_expert_intermediate_size": width,
            "intermediate_size encoder_ffn_dim decoder_ffn_dim ffn_dim hidden_dim d_inner d_ff "
            "ffn_hidden_size": 4 * width,
            "vocab_size decoder_vocab_size": self.vocab_size,
            "max_position_embeddings max_encoder_position_embeddings n_positions max_seq_len "
            "max_decoder_position_embeddings max_source_positions max_target_positions "
            "context_length": positions,
            "image_size": self.image_size,
            "patch_size": max(1, self.image_size // 8),
            "embed_dim": width // 8,
            "hidden_size d_model n_embd dim embedding_size embedding_dim pooler_hidden_size "
            "true_hidden_size word_embed_proj_dim attention_hidden_size decoder_hidden_size "
            "output_hidden_size pooler_output_size classifier_proj_size "
            "intra_bottleneck_size": width,
        }
        return {name: size for names, size in listed.items() for name in names.split()}


DEFAULT_SIZES = TinySizes()


def tiny_config(
    arch: str,
    sizes: TinySizes = DEFAULT_SIZES,
    *,
    family: str | None = None,
    num_labels: int | None = None,
) -> PretrainedConfig:
    """Return a small config of a transformers architecture.

    `family` is one of FAMILY_OF; with "causal-lm", encoders such as BERT become decoders. Special
    token ids keep their defaults where the vocabulary has them.

    >>> tiny_config("llama", TinySizes(vocab_size=300, num_layers=1)).num_hidden_layers
    1
    """
    from transformers import AutoConfig

    _check_architecture(arch, family)
    kind = MODEL_TYPES.get(arch, arch)
    default = AutoConfig.for_model(kind).to_dict()
    if arch in OFFSET_POSITIONS:
        room = sizes.max_positions + (default.get("pad_token_id") or 0) + 1
        sizes = replace(sizes, max_positions=room)
    small = _shrink(default, sizes)
    if num_labels is not None:
        small["num_labels"] = num_labels
    if family == "causal-lm" and not default.get("is_encoder_decoder"):
        small |= {key: True for key in ("is_decoder", "causal") if key in default}
    config: PretrainedConfig = AutoConfig.for_model(kind, **small | OVERRIDES.get(arch, {}))
    return config


def _check_architecture(arch: str, family: str | None) -> None:
    """Raise ValueError, with the nearest names, unless `tiny:` can build `arch`."""
    families = tiny_families()
    known = families[family] if family else sorted(set().union(*families.values()))
    if arch in known:
        return
    kind = f"an architecture for {family}" if family else "an architecture"
    near = difflib.get_close_matches(arch, known, n=3, cutoff=0.5)
    hint = (
        f"close matches: {', '.join(near)}" if near else f"there are {len(known)}, e.g. {known[0]}"
    )
    raise ValueError(f"tiny:{arch}: {arch!r} is not {kind} that tiny: builds; {hint}")


def _shrink(default: dict[str, Any], sizes: TinySizes) -> dict[str, Any]:
    """Return the settings that change, of a default config and of the configs inside it."""
    small: dict[str, Any] = {}
    for key, value in default.items():
        size = sizes.by_name.get(key)
        if isinstance(value, dict) and value.get("model_type"):
            small[key] = _shrink(value, sizes) | {"model_type": value["model_type"]}
        elif isinstance(value, list | tuple):
            small |= _shrink_list(key, list(value), default.get("num_hidden_layers"), sizes)
        elif isinstance(value, float) and "drop" in key:
            small[key] = 0.0  # a model this small underfits; dropout would not help it
        elif size is not None and (type(value) is int or (value is None and key in REQUIRED)):
            small[key] = min(value or size, size) if key == "patch_size" else size
    if "depths" in default:  # the stages set the number of layers and the hidden size
        small = {k: v for k, v in small.items() if k not in ("num_layers", "hidden_size")}
    if "feat_extract_norm" in default:
        small["feat_extract_norm"] = "layer"  # padding is kept out by the attention mask
    if default.get("num_key_value_heads") not in (None, default.get("num_attention_heads")):
        small["num_key_value_heads"] = sizes.num_heads // (1 if sizes.num_heads % 2 else 2)
    return small | _token_ids(default, sizes.vocab_size)


def _shrink_list(
    key: str, values: list[Any], default_layers: int | None, sizes: TinySizes
) -> dict[str, list[Any]]:
    """Return a setting that has one value per stage, or one per layer, for the tiny model.

    The layers cycle through the kinds in the default, so that two layers have both kinds of
    attention.
    """
    count, layers = len(values), sizes.num_layers
    if key == "hidden_sizes":
        return {key: [sizes.hidden_size // 2**i for i in reversed(range(count))]}
    if key in ("num_heads", "num_attention_heads"):
        return {key: [min(2**i, sizes.num_heads) for i in range(count)]}
    if key == "depths":
        return {key: [min(depth, layers) for depth in values]}
    if key == "conv_dim":
        return {key: [32] * count}
    if count != default_layers:
        return {}
    kinds = [value for i, value in enumerate(values) if value not in values[:i]]
    return {key: (kinds * layers)[:layers]}


def _token_ids(default: dict[str, Any], vocab_size: int) -> dict[str, int]:
    """Return the special token ids that change: those beyond the vocabulary get the first few ids.

    Placeholder tokens of images and audio stay outside the vocabulary, so that no text has them.
    """
    ids: dict[str, int] = {}
    for key in (*_FIRST_TOKENS, *_LAST_TOKENS):
        given = default.get(key)
        if given is not None and np.max(given) >= vocab_size:
            ids[key] = min(_FIRST_TOKENS.get(key, vocab_size), vocab_size - 1)
    moved = {default[key]: ids[key] for key in ids if isinstance(default[key], int)}
    for key in _START_TOKENS:
        if isinstance(default.get(key), int):
            ids[key] = moved.get(default[key], min(default[key], vocab_size - 1))
    if default.get("is_encoder_decoder") and default.get("decoder_start_token_id") is None:
        ids["decoder_start_token_id"] = ids.get("pad_token_id", default.get("pad_token_id") or 0)
    return ids


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
    """Return a small untrained model of an architecture, with a tokenizer made from the data."""
    try:
        default = tiny_config(arch)
    except ValueError as error:
        raise UsageError(
            str(error),
            "`surefit tasks --models` lists them. For others, pass a folder with a small "
            "config.json and a tokenizer, and --from-scratch.",
        ) from None
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
        positions = room_for(encoder.input.statistics.longest)
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
    largest = encoder.settings.tokens.largest
    if encoder.tokenizer is None and largest is not None and not offsets_positions(config):
        config.pad_token_id = largest + 1  # no id of the data
    with quiet_transformers():
        return Built(auto.from_config(config))


def _sizes(encoder: Encoder) -> TinySizes:
    """Return the default sizes, with the vocabulary and the image size of the data."""
    sizes, pixels = DEFAULT_SIZES, encoder.input.pixels
    if encoder.tokenizer is not None and len(encoder.tokenizer):
        sizes = replace(sizes, vocab_size=len(encoder.tokenizer))
    elif (largest := encoder.settings.tokens.largest) is not None:  # token ids of the data
        sizes = replace(sizes, vocab_size=max(sizes.vocab_size, largest + 2))
    if pixels is None:
        return sizes
    if pixels.height != pixels.width:
        raise IMAGE_SIZE_REFUSED.error(
            f"image.size is {pixels.height} × {pixels.width}; a tiny model needs square images.",
        )
    return replace(sizes, image_size=pixels.height)
