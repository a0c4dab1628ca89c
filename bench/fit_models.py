"""The models and batches of `bench/fit_grid.py`, and a grid drawn from other models.

A seed decides the sizes of the drawn models, the lengths, the rows, LoRA and gradient
checkpointing. Every family is drawn once, then some families again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from surefit.models.call import Call
from surefit.models.transformers_models import enable_checkpointing

WORDS = 16_000
FEATURES = 40


def build(
    case: dict[str, Any], model: Any = None, kind: str = "", classifies: bool = False
) -> tuple[Any, Call, Any, dict[str, Any]]:
    """The model of a case, its Call, its loss and a batch with some padding.

    `kind` is what the model reads: text, seq2seq, images or features; as for the model, the
    default is what `case["arch"]` stands for in this file.
    """
    torch.manual_seed(0)
    if model is None:
        model = BUILDERS[case["arch"]]()
        kind = KINDS.get(case["arch"], "text")
        classifies = case["arch"] in CLASSIFIERS
    batch = _batch(case, kind, classifies)
    if case["lora"]:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    if case["ckpt"]:
        enable_checkpointing(getattr(model, "base_model", model))
    arguments = [name for name in batch if name != "labels"]

    def loss(outputs: Any, batch: Any) -> tuple[Any, int]:
        logits, labels = getattr(outputs, "logits", outputs), batch["labels"]
        if logits.ndim == 3:
            logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        total = nn.functional.cross_entropy(logits, labels, reduction="sum")
        return total, len(labels)

    fixed = {"interpolate_pos_encoding": True} if case["arch"] == "vit" else {}
    return model, Call({name: name for name in arguments}, fixed), loss, batch


def _batch(case: dict[str, Any], kind: str, classifies: bool) -> dict[str, Any]:
    rows, length = case["rows"], case["length"]
    classes = torch.randint(0, 2, (rows,))
    if kind == "images":
        side = SIDES.get(length, length)
        return {"pixel_values": torch.randn(rows, 3, side, side), "labels": classes}
    if kind == "features":
        return {"inputs": torch.randn(rows, length, FEATURES), "labels": classes}
    ids = torch.randint(0, WORDS, (rows, length))
    mask = torch.ones_like(ids)
    mask[0, length * 3 // 4 :] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    if kind == "seq2seq":
        batch["decoder_input_ids"] = ids
    return {**batch, "labels": classes if classifies else ids}


class ConvAndLSTM(nn.Module):
    """Two convolutions over time and an LSTM in both directions; its last states are classified."""

    def __init__(self, width: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv1d(FEATURES, width // 2, 5, padding=2),
            nn.BatchNorm1d(width // 2),
            nn.ReLU(),
            nn.Conv1d(width // 2, width, 5, padding=2),
            nn.ReLU(),
            nn.Dropout(0.1),
        )
        self.lstm = nn.LSTM(width, width, num_layers=layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Classify rows of (time, features)."""
        states, _ = self.lstm(self.convs(inputs.transpose(1, 2)).transpose(1, 2))
        logits: torch.Tensor = self.head(states[:, -1])
        return logits


class GRUClassifier(nn.Module):
    """A GRU over time, whose mean state is classified."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.project = nn.Linear(FEATURES, width)
        self.gru = nn.GRU(width, width, num_layers=layers, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Classify rows of (time, features)."""
        states, _ = self.gru(self.project(inputs).relu())
        logits: torch.Tensor = self.head(states.mean(1))
        return logits


class EncoderClassifier(nn.Module):
    """torch's own transformer encoder, whose mean state is classified."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.project = nn.Linear(FEATURES, width)
        layer = nn.TransformerEncoderLayer(width, width // 32, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Classify rows of (time, features)."""
        logits: torch.Tensor = self.head(self.encoder(self.project(inputs)).mean(1))
        return logits


def transformer(config: str, model: str, **settings: Any) -> Callable[[], Any]:
    """A builder of a transformers model from its config class."""

    def builder() -> Any:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return builder


def sizes(width: int = 384, inner: int = 1024, layers: int = 6, heads: int = 8) -> dict[str, int]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return dict(zip(names, (width, inner, layers, heads), strict=True))


BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": transformer(
        "LlamaConfig", "LlamaForCausalLM", num_key_value_heads=4, vocab_size=WORDS, **sizes()
    ),
    "qwen3": transformer(
        "Qwen3Config",
        "Qwen3ForCausalLM",
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=True,
        vocab_size=WORDS,
        **sizes(),
    ),
    "gpt2": transformer(
        "GPT2Config", "GPT2LMHeadModel", n_embd=384, n_layer=6, n_head=8, vocab_size=WORDS
    ),
    "bert": transformer("BertConfig", "BertForSequenceClassification", vocab_size=WORDS, **sizes()),
    "t5": transformer(
        "T5Config",
        "T5ForConditionalGeneration",
        vocab_size=WORDS,
        d_model=256,
        d_ff=768,
        d_kv=32,
        num_layers=3,
        num_heads=8,
    ),
    "vit": transformer(
        "ViTConfig", "ViTForImageClassification", image_size=224, **sizes(192, 768, 12, 3)
    ),
    "deberta-v2": transformer(
        "DebertaV2Config",
        "DebertaV2ForSequenceClassification",
        vocab_size=WORDS,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        **sizes(256, 1024, 4),
    ),
    "roberta": transformer(
        "RobertaConfig",
        "RobertaForSequenceClassification",
        vocab_size=WORDS,
        max_position_embeddings=1026,
        **sizes(320, 1280, 5),
    ),
    "distilbert": transformer(
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        vocab_size=WORDS,
        dim=256,
        hidden_dim=1024,
        n_layers=4,
        n_heads=4,
    ),
    "mixtral": transformer(
        "MixtralConfig",
        "MixtralForCausalLM",
        vocab_size=WORDS,
        num_key_value_heads=4,
        num_local_experts=4,
        **sizes(256, 512, 3),
    ),
    "llama, wide": transformer(
        "LlamaConfig",
        "LlamaForCausalLM",
        num_key_value_heads=2,
        vocab_size=WORDS,
        **sizes(512, 1536, 4),
    ),
    "conv and LSTM": ConvAndLSTM,
}
KINDS = {"t5": "seq2seq", "vit": "images", "conv and LSTM": "features"}
SIDES = {128: 112, 256: 160, 512: 224}
"""Pixels of a side for the lengths of the fitted grid."""
CLASSIFIERS = ("bert", "deberta-v2", "roberta", "distilbert")


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
