"""Draws a grid of models for `bench/fit_grid.py` that the prediction was not fitted to.

A seed decides the sizes of the models, the lengths, the rows, LoRA and gradient checkpointing.
Every family is drawn once, then some families again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from fit_models import (
    WORDS,
    ConvAndLSTM,
    EncoderClassifier,
    GRUClassifier,
    build,
    sizes,
    transformer,
)

from surefit.models.call import Call

NUM_CASES = 24


@dataclass(frozen=True)
class Family:
    """How the models of a family are built for a width and a number of layers."""

    model: Callable[[int, int], Any]
    input: str = "text"
    """The batch it reads: text, seq2seq, images or features."""
    is_classifier: bool = False
    lora: tuple[bool, ...] = (False, True)
    ckpt: tuple[bool, ...] = (False, True)
    lengths: tuple[int, ...] = (96, 160, 224, 352, 448)
    """For images, the pixels of a side."""
    positions: tuple[int, int] = (768, 2560)
    """Rows × length is drawn from this range; for images, the rows."""


def draw(seed: int) -> list[dict[str, Any]]:
    """The cases of a seed."""
    choose = random.Random(seed)
    again = choose.sample(sorted(FAMILIES), NUM_CASES - len(FAMILIES))
    return [_case(name, choose) for name in (*FAMILIES, *again)]


def _case(name: str, choose: random.Random) -> dict[str, Any]:
    family = FAMILIES[name]
    length = choose.choice(family.lengths)
    amount = choose.randint(*family.positions)
    return {
        "arch": name,
        "width": choose.choice((192, 256, 320, 448)),
        "layers": choose.randint(2, 7),
        "lora": choose.choice(family.lora),
        "length": length,
        "rows": amount if family.input == "images" else max(1, round(amount / length)),
        "ckpt": choose.choice(family.ckpt),
    }


def build_drawn(case: dict[str, Any]) -> tuple[Any, Call, Any, dict[str, Any]]:
    """What `fit_models.build` makes, for a case of `draw`."""
    family = FAMILIES[case["arch"]]
    torch.manual_seed(0)
    model = family.model(case["width"], case["layers"])
    return build(case, model, family.input, family.is_classifier)


def _text(config: str, model: str, **settings: Any) -> Callable[[int, int], Any]:
    """A text model with heads of 32, and the usual names of sizes in its config."""

    def build(width: int, layers: int) -> Any:
        named = sizes(width, 3 * width, layers, width // 32)
        return transformer(config, model, vocab_size=WORDS, **named, **settings)()

    return build


def _bart(width: int, layers: int) -> Any:
    sides = {
        f"{side}_{what}": value
        for side in ("encoder", "decoder")
        for what, value in (
            ("layers", max(1, layers // 2)),
            ("ffn_dim", 3 * width),
            ("attention_heads", width // 32),
        )
    }
    settings = {"vocab_size": WORDS, "d_model": width, **sides}
    return transformer("BartConfig", "BartForConditionalGeneration", **settings)()


def _t5(width: int, layers: int) -> Any:
    settings = {"d_model": width, "d_ff": 2 * width, "d_kv": 32, "num_heads": width // 32}
    settings |= {"num_layers": max(1, layers // 2), "feed_forward_proj": "gated-gelu"}
    return transformer("T5Config", "T5ForConditionalGeneration", vocab_size=WORDS, **settings)()


def _opt(width: int, layers: int) -> Any:
    settings = {"hidden_size": width, "ffn_dim": 4 * width, "word_embed_proj_dim": width}
    settings |= {"num_hidden_layers": layers, "num_attention_heads": width // 32}
    return transformer("OPTConfig", "OPTForCausalLM", vocab_size=WORDS, **settings)()


def _vit(width: int, layers: int) -> Any:
    settings = {"image_size": 224, **sizes(width, 4 * width, layers, width // 64)}
    return transformer("ViTConfig", "ViTForImageClassification", **settings)()


def _swin(width: int, layers: int) -> Any:
    settings = {"embed_dim": width // 4, "depths": [2, layers], "num_heads": [2, 4]}
    return transformer("SwinConfig", "SwinForImageClassification", image_size=224, **settings)()


def _convnext(width: int, layers: int) -> Any:
    widths = [width // 4, width // 2, width]
    settings = {"hidden_sizes": widths, "depths": [1, layers, 1], "num_stages": 3}
    return transformer("ConvNextConfig", "ConvNextForImageClassification", **settings)()


def _resnet(width: int, layers: int) -> Any:
    settings = {"embedding_size": 32, "hidden_sizes": [width // 2, width], "depths": [2, layers]}
    return transformer("ResNetConfig", "ResNetForImageClassification", **settings)()


_IMAGES = {"input": "images", "is_classifier": True, "lengths": (224,), "positions": (6, 20)}
_MODULE = {"lora": (False,), "ckpt": (False,), "is_classifier": True}
_EXPERTS = {"num_key_value_heads": 2}
FAMILIES: dict[str, Family] = {
    # Families that are not in the fitted grid.
    "electra": Family(
        _text("ElectraConfig", "ElectraForSequenceClassification", embedding_size=128),
        is_classifier=True,
    ),
    "albert": Family(
        _text("AlbertConfig", "AlbertForSequenceClassification"),
        is_classifier=True,
        ckpt=(False,),
    ),
    "modernbert": Family(
        _text("ModernBertConfig", "ModernBertForSequenceClassification", pad_token_id=0),
        is_classifier=True,
    ),
    "opt": Family(_opt),
    "gemma": Family(_text("GemmaConfig", "GemmaForCausalLM", head_dim=64, num_key_value_heads=1)),
    "phi": Family(_text("PhiConfig", "PhiForCausalLM")),
    "gpt-neox": Family(_text("GPTNeoXConfig", "GPTNeoXForCausalLM")),
    "olmoe": Family(
        _text("OlmoeConfig", "OlmoeForCausalLM", num_experts=8, num_experts_per_tok=2, **_EXPERTS),
        lora=(False,),
    ),
    "bart": Family(_bart, input="seq2seq"),
    "swin": Family(_swin, **{**_IMAGES, "positions": (4, 12)}),
    "convnext": Family(_convnext, ckpt=(False,), **_IMAGES),
    "resnet": Family(_resnet, lora=(False,), ckpt=(False,), **_IMAGES),
    "GRU, own module": Family(GRUClassifier, input="features", **_MODULE),
    "transformer encoder, own module": Family(EncoderClassifier, input="features", **_MODULE),
    # Families of the fitted grid in other sizes.
    "t5": Family(_t5, input="seq2seq"),
    "vit": Family(_vit, **_IMAGES),
    "deberta-v2": Family(
        _text(
            "DebertaV2Config",
            "DebertaV2ForSequenceClassification",
            relative_attention=True,
            pos_att_type=["c2p", "p2c"],
        ),
        is_classifier=True,
    ),
    "conv and LSTM": Family(ConvAndLSTM, input="features", **_MODULE),
    "roberta": Family(
        _text("RobertaConfig", "RobertaForSequenceClassification"),
        is_classifier=True,
        lora=(True,),
    ),
    "mixtral": Family(
        _text("MixtralConfig", "MixtralForCausalLM", num_local_experts=6, **_EXPERTS)
    ),
    "llama, long rows": Family(
        _text("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2),
        lengths=(1280, 1792, 2560),
        positions=(1280, 3600),
    ),
}
