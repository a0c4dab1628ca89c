"""Shrinks the default config of a transformers architecture to a tiny model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.models.config_sizes import OFFSET_POSITIONS
from surefit.models.tiny_architectures import (
    ALIASES,
    MODEL_TYPES,
    OVERRIDES,
    REQUIRED,
    check_architecture,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig

DEFAULT_TOKEN_IDS: dict[str, int | None] = {
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""None keeps the default of the config; an id replaces it."""


@dataclass(frozen=True)
class TinySizes:
    """The sizes of a tiny model."""

    vocab_size: int = 512
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    max_positions: int = 512
    image_size: int = 32

    def by_alias(self) -> dict[str, int]:
        """The size behind each key of ALIASES."""
        head_dim = self.hidden_size // self.num_heads
        return {
            "hidden": self.hidden_size,
            "stem": self.hidden_size // 8,
            "inner": 4 * self.hidden_size,
            "expert_inner": self.hidden_size,
            "layers": self.num_layers,
            "heads": self.num_heads,
            "kv_heads": self.num_heads,
            "head_dim": head_dim,
            "half_head": head_dim // 2,
            "mamba_heads": 2 * self.num_heads,
            "mamba_inner": 2 * self.hidden_size,
            "rank": 16,
            "experts": 4,
            "few": 2,
            "one": 1,
            "none": 0,
            "positions": self.max_positions,
            "vocab": self.vocab_size,
            "image": self.image_size,
            "patch": max(1, self.image_size // 8),
        }


DEFAULT_SIZES = TinySizes()


def tiny_config(
    arch: str,
    sizes: TinySizes = DEFAULT_SIZES,
    *,
    family: str | None = None,
    num_labels: int | None = None,
) -> PretrainedConfig:
    """Return a small config of a transformers architecture.

    `family` is a key of FAMILIES; with "causal-lm", encoders such as BERT become decoders. Special
    token ids keep their defaults where the vocabulary has them.

    >>> tiny_config("llama", TinySizes(vocab_size=300, num_layers=1)).num_hidden_layers
    1
    """
    check_architecture(arch, family)
    return shrink_config(
        arch, sizes, DEFAULT_TOKEN_IDS, num_labels=num_labels, is_decoder=family == "causal-lm"
    )


def shrink_config(
    arch: str,
    sizes: TinySizes,
    token_ids: Mapping[str, int | None],
    *,
    num_labels: int | None = None,
    is_decoder: bool = False,
) -> PretrainedConfig:
    """Return the default config of any architecture rebuilt with `sizes`, listed or not."""
    from transformers import AutoConfig

    kind = MODEL_TYPES.get(arch, arch)
    default, table = AutoConfig.for_model(kind).to_dict(), sizes.by_alias()
    if arch in OFFSET_POSITIONS:
        offset = token_ids["pad_token_id"] or default.get("pad_token_id") or 0
        table["positions"] += offset + 1
    small = _shrink(default, table, token_ids)
    if num_labels is not None:
        small["num_labels"] = num_labels
    if is_decoder and not default.get("is_encoder_decoder"):
        small |= {key: True for key in ("is_decoder", "causal") if key in default}
    for key, value in OVERRIDES.get(arch, {}).items():
        small[key] = table[value] if isinstance(value, str) and value in table else value
    config: PretrainedConfig = AutoConfig.for_model(kind, **small)
    return config


def _shrink(
    default: dict[str, Any], sizes: dict[str, int], token_ids: Mapping[str, int | None]
) -> dict[str, Any]:
    """Return the settings that change, of a default config and of the configs inside it."""
    named = {name: sizes[role] for role, names in ALIASES.items() for name in names.split()}
    if "depths" in default:  # the stages set the number of layers and the hidden size
        named = {k: v for k, v in named.items() if k not in ("num_layers", "hidden_size")}
    small: dict[str, Any] = {}
    for key, value in default.items():
        if isinstance(value, dict) and value.get("model_type"):
            small[key] = _shrink(value, sizes, token_ids) | {"model_type": value["model_type"]}
        elif isinstance(value, list | tuple):
            small |= _shrink_list(key, list(value), default.get("num_hidden_layers"), sizes)
        elif key == "patch_size" and isinstance(value, int):
            small[key] = min(value, named[key])
        elif isinstance(value, float) and "drop" in key:
            small[key] = 0.0  # a model this small underfits; dropout would not help it
        elif key in named and (type(value) is int or (value is None and key in REQUIRED)):
            small[key] = named[key]
    if default.get("num_key_value_heads") not in (None, default.get("num_attention_heads")):
        small["num_key_value_heads"] = sizes["heads"] // (1 if sizes["heads"] % 2 else 2)
    return small | _token_ids(default, sizes["vocab"], token_ids)


def _shrink_list(
    key: str, values: list[Any], default_layers: int | None, sizes: dict[str, int]
) -> dict[str, list[Any]]:
    """Return a setting that has one value per stage, or one per layer, for the tiny model.

    The layers cycle through the kinds in the default, so that two layers have both kinds of
    attention.
    """
    stages = range(len(values))
    if key in ("hidden_sizes", "embed_dims", "embed_dim"):
        return {key: [sizes["hidden"] // 2 ** (len(values) - 1 - i) for i in stages]}
    if key in ("num_heads", "num_attention_heads"):
        return {key: [min(2**i, sizes["heads"]) for i in stages]}
    if key in ("depths", "depth"):
        return {key: [min(depth, sizes["layers"]) for depth in values]}
    if key == "image_size":
        return {key: [sizes["image"] for _ in stages]}
    if len(values) != default_layers:
        return {}
    kinds = [value for i, value in enumerate(values) if value not in values[:i]]
    if key in ALIASES["inner"].split():
        kinds = [sizes["inner"]]
    return {key: (kinds * sizes["layers"])[: sizes["layers"]]}


def _token_ids(
    default: dict[str, Any], vocab_size: int, given: Mapping[str, int | None]
) -> dict[str, int]:
    """Return the special token ids: as given, else the default, else the first few ids.

    Placeholder tokens of images and audio stay outside the vocabulary, so that no text has them.
    """
    ids: dict[str, int] = {}
    for position, (key, token_id) in enumerate(given.items()):
        if token_id is not None:
            ids[key] = token_id
        elif default.get(key) is not None and not _is_below(default[key], vocab_size):
            ids[key] = min(position, vocab_size - 1)
    moved = {default[key]: ids[key] for key in ids if isinstance(default.get(key), int)}
    for key in ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"):
        if isinstance(default.get(key), int):
            ids[key] = moved.get(default[key], min(default[key], vocab_size - 1))
    for key in ("sep_token_id", "cls_token_id", "mask_token_id", "eod_token_id"):
        if not _is_below(default.get(key, 0) or 0, vocab_size):
            ids[key] = vocab_size - 1
    if default.get("is_encoder_decoder") and default.get("decoder_start_token_id") is None:
        ids["decoder_start_token_id"] = ids.get("pad_token_id", default.get("pad_token_id") or 0)
    return ids


def _is_below(token_id: Any, vocab_size: int) -> bool:
    """Return whether a token id, or every one of a list of them, is in the vocabulary."""
    return all(i < vocab_size for i in (token_id if isinstance(token_id, list) else [token_id]))
