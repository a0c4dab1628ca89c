"""The models and batches of `bench/fit_grid.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from surefit.models.call import Call
from surefit.models.gradient_checkpointing import enable_checkpointing

WORDS = 16_000
FEATURES = 40


def build(case: dict[str, Any], model: Any = None) -> tuple[Any, Call, Any, dict[str, Any]]:
    """The model of a case, its Call, its loss and a batch with some padding."""
    torch.manual_seed(0)
    model = model if model is not None else BUILDERS[case["arch"]]()
    batch = _batch(case)
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

    fixed = {"interpolate_pos_encoding": True} if case["arch"].startswith("vit") else {}
    return model, Call({name: name for name in arguments}, fixed), loss, batch


def _batch(case: dict[str, Any]) -> dict[str, Any]:
    rows, length, arch = case["rows"], case["length"], case["arch"]
    classes = torch.randint(0, 2, (rows,))
    if arch.startswith("vit"):
        side = {128: 112, 256: 160, 512: 224}[length]
        return {"pixel_values": torch.randn(rows, 3, side, side), "labels": classes}
    if arch == "conv and LSTM":
        return {"inputs": torch.randn(rows, length, FEATURES), "labels": classes}
    ids = torch.randint(0, WORDS, (rows, length))
    mask = torch.ones_like(ids)
    mask[0, length * 3 // 4 :] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    if arch.startswith("t5"):
        batch["decoder_input_ids"] = ids
    return {**batch, "labels": classes if arch in CLASSIFIERS else ids}


class ConvAndLSTM(nn.Module):
    """Two convolutions over time and an LSTM in both directions; its last states are classified."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv1d(FEATURES, 128, 5, padding=2),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Conv1d(128, 256, 5, padding=2),
            nn.ReLU(),
            nn.Dropout(0.1),
        )
        self.lstm = nn.LSTM(256, 256, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(512, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Classify rows of (time, features)."""
        states, _ = self.lstm(self.convs(inputs.transpose(1, 2)).transpose(1, 2))
        logits: torch.Tensor = self.head(states[:, -1])
        return logits


def _transformer(config: str, model: str, **settings: Any) -> Callable[[], Any]:
    """A builder of a transformers model from its config class."""

    def builder() -> Any:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return builder


def _sizes(width: int = 384, inner: int = 1024, layers: int = 6, heads: int = 8) -> dict[str, int]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return dict(zip(names, (width, inner, layers, heads), strict=True))


BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": _transformer(
        "LlamaConfig", "LlamaForCausalLM", num_key_value_heads=4, vocab_size=WORDS, **_sizes()
    ),
    "qwen3": _transformer(
        "Qwen3Config",
        "Qwen3ForCausalLM",
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=True,
        vocab_size=WORDS,
        **_sizes(),
    ),
    "gpt2": _transformer(
        "GPT2Config", "GPT2LMHeadModel", n_embd=384, n_layer=6, n_head=8, vocab_size=WORDS
    ),
    "bert": _transformer(
        "BertConfig", "BertForSequenceClassification", vocab_size=WORDS, **_sizes()
    ),
    "t5": _transformer(
        "T5Config",
        "T5ForConditionalGeneration",
        vocab_size=WORDS,
        d_model=256,
        d_ff=768,
        d_kv=32,
        num_layers=3,
        num_heads=8,
    ),
    "vit": _transformer(
        "ViTConfig", "ViTForImageClassification", image_size=224, **_sizes(192, 768, 12, 3)
    ),
    "deberta-v2": _transformer(
        "DebertaV2Config",
        "DebertaV2ForSequenceClassification",
        vocab_size=WORDS,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        **_sizes(256, 1024, 4),
    ),
    "roberta": _transformer(
        "RobertaConfig",
        "RobertaForSequenceClassification",
        vocab_size=WORDS,
        max_position_embeddings=1026,
        **_sizes(320, 1280, 5),
    ),
    "distilbert": _transformer(
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        vocab_size=WORDS,
        dim=256,
        hidden_dim=1024,
        n_layers=4,
        n_heads=4,
    ),
    "mixtral": _transformer(
        "MixtralConfig",
        "MixtralForCausalLM",
        vocab_size=WORDS,
        num_key_value_heads=4,
        num_local_experts=4,
        **_sizes(256, 512, 3),
    ),
    "llama, wide": _transformer(
        "LlamaConfig",
        "LlamaForCausalLM",
        num_key_value_heads=2,
        vocab_size=WORDS,
        **_sizes(512, 1536, 4),
    ),
    "conv and LSTM": ConvAndLSTM,
}
CLASSIFIERS = ("bert", "deberta-v2", "roberta", "distilbert")
