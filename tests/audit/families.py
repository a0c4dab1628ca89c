"""The models and rows of the audit, made by transformers and tokenizers alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

IGNORED = -100
LENGTHS = (4, 45, 9, 26, 3, 33, 14, 6)
"""Words of each row: very different, so that padding would show."""
NUM_WORDS = 60
SPECIAL = ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>", "<eos>")
CLASSES = 3
WEIGHT_NOISE = 0.08
"""Standard deviation of what is added to every initial weight.

The outputs of freshly initialized models hardly depend on their inputs, so that a wrong mask or
position would not show in the loss.
"""


@dataclass(frozen=True, eq=False)
class Family:
    """One architecture with a task, small enough for a step in milliseconds."""

    name: str
    task: str
    arch: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    trained_in_full: tuple[str, ...] = ()
    """Heads that are trained in full beside LoRA adapters."""
    not_adapted: tuple[str, ...] = ()
    """Linear layers that LoRA leaves alone."""

    @property
    def rows(self) -> str:
        """What rows its data has; `make_rows` makes them."""
        return ROWS_OF[self.task]

    @property
    def padding_free(self) -> bool:
        """Whether `padding_free=auto` must give padding-free batches."""
        return self.name not in PADDED


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 192,
        **more,
    }


_MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
_GPT2 = {"n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4, "n_positions": 192}
# T5 1.1; with ReLU, two cases are out of bounds on some CPUs (docs/audit.md)
_T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "feed_forward_proj": "gated-gelu",
}
_BART = {
    "d_model": 32,
    "max_position_embeddings": 192,
    **{
        f"{side}_{size}": n
        for side in ("encoder", "decoder")
        for size, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
    },
}
_DISTILBERT = {
    "dim": 32,
    "hidden_dim": 48,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 192,
}
_SIZES = _sizes()
_GROUPED = _sizes(num_key_value_heads=2)
_LM, _CLASSIFY = "causal-lm", "text-classification"
ROWS_OF = {
    "causal-lm": "ids",
    "sft": "messages",
    "text-classification": "classes",
    "token-classification": "tags",
    "seq2seq": "pairs",
}
FAMILIES = (
    Family("llama", _LM, "llama", _GROUPED),
    Family("llama, messages", "sft", "llama", _GROUPED),
    Family("gpt2", _LM, "gpt2", _GPT2),
    Family("qwen3", _LM, "qwen3", {**_GROUPED, "head_dim": 8}),
    Family("mistral", _LM, "mistral", _GROUPED),
    Family("mistral, window 8", _LM, "mistral", {**_GROUPED, "sliding_window": 8}),
    Family("gemma2", _LM, "gemma2", {**_GROUPED, "head_dim": 8, "sliding_window": 8}),
    Family("gemma3", _LM, "gemma3_text", {**_GROUPED, "head_dim": 8, "sliding_window": 64}),
    Family("opt", _LM, "opt", {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    Family("gpt_neox", _LM, "gpt_neox", _SIZES),
    Family("phi3", _LM, "phi3", _GROUPED),
    Family("mamba", _LM, "mamba", _MAMBA, not_adapted=("out_proj", "dt_proj")),
    Family("mixtral", _LM, "mixtral", {**_GROUPED, "num_local_experts": 4}, not_adapted=("gate",)),
    Family("llama, classes", _CLASSIFY, "llama", _GROUPED, ("score",)),
    Family("bert", _CLASSIFY, "bert", _SIZES, ("classifier",)),
    Family("roberta", _CLASSIFY, "roberta", _SIZES, ("classifier",)),
    Family("distilbert", _CLASSIFY, "distilbert", _DISTILBERT, ("pre_classifier", "classifier")),
    Family("electra", _CLASSIFY, "electra", _sizes(embedding_size=16), ("classifier",)),
    Family(
        "modernbert", _CLASSIFY, "modernbert", _sizes(local_attention=8), ("head", "classifier")
    ),
    Family("deberta-v2", _CLASSIFY, "deberta-v2", _SIZES, ("pooler", "classifier")),
    Family("bert, tags", "token-classification", "bert", _SIZES, ("classifier",)),
    Family("t5", "seq2seq", "t5", _T5),
    Family("bart", "seq2seq", "bart", _BART),
)
PADDED = ("gemma2", "mamba", "deberta-v2", "t5", "bart")
"""Models that surefit cannot run padding-free; all others must not fall back to padding."""
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' %}{{ '<cls> ' + message.content }}"
    "{% else %}{{ ' <sep> ' + message.content + ' <eos> ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' <sep> ' }}{% endif %}"
)
"""A user's turn begins with <cls>; an answer begins with <sep> and ends with <eos>."""
AUTO_CLASSES = {
    "causal-lm": "AutoModelForCausalLM",
    "sft": "AutoModelForCausalLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "seq2seq": "AutoModelForSeq2SeqLM",
}


def word(number: int) -> str:
    return f"w{number}"


@lru_cache
def make_tokenizer(rows: str) -> Any:
    """One token per word; encoders get <cls> … <sep>, translators … <eos>, dialogues a template."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = [*SPECIAL, *map(word, range(NUM_WORDS))]
    ids = {name: place for place, name in enumerate(names)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    shape = {"classes": "<cls> $A <sep>", "tags": "<cls> $A <sep>", "pairs": "$A <eos>"}.get(rows)
    if shape is not None:
        used = [(name, ids[name]) for name in SPECIAL if name in shape]
        backend.post_processor = processors.TemplateProcessing(
            single=shape, pair=None, special_tokens=used
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **{f"{name.strip('<>')}_token": name for name in SPECIAL},
        model_input_names=["input_ids", "attention_mask"],
    )
    if rows == "messages":
        tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(family: Family, seed: int = 0) -> Any:
    """A model without dropout, whose outputs depend on every token."""
    import transformers

    tokenizer = make_tokenizer(family.rows)
    known = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
        "num_labels": CLASSES,
    }
    config = transformers.AutoConfig.for_model(family.arch, **{**known, **family.settings})
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    torch.manual_seed(seed)
    model = getattr(transformers, AUTO_CLASSES[family.task]).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=WEIGHT_NOISE)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped kernels have no float64
    return model


def save_model(family: Family, folder: Path, seed: int = 0) -> Path:
    """The model's folder, as transformers writes it."""
    make_model(family, seed).save_pretrained(folder)
    make_tokenizer(family.rows).save_pretrained(folder)
    return folder


def make_rows(kind: str, lengths: tuple[int, ...] = LENGTHS) -> list[dict[str, Any]]:
    """The data as a user has it: every kind in rows of the same lengths."""
    choose = random.Random(5)
    return [MAKERS[kind](choose, number, length) for number, length in enumerate(lengths)]


def _words(choose: random.Random, length: int) -> list[str]:
    return [word(choose.randrange(NUM_WORDS)) for _ in range(length)]


def _ids(choose: random.Random, number: int, length: int) -> dict[str, Any]:
    """Token ids; the first of them carry no label."""
    ids = [choose.randrange(len(SPECIAL), len(SPECIAL) + NUM_WORDS) for _ in range(length)]
    kept = choose.randint(1, max(1, length // 2))
    return {"input_ids": ids, "labels": [IGNORED] * kept + ids[kept:]}


def _messages(choose: random.Random, number: int, length: int) -> dict[str, Any]:
    """One or two questions, each with its answer."""
    messages = []
    for _ in range(1 + number % 2):
        asked, answered = choose.randint(1, length), choose.randint(1, length)
        messages.append({"role": "user", "content": " ".join(_words(choose, asked))})
        messages.append({"role": "assistant", "content": " ".join(_words(choose, answered))})
    return {"messages": messages}


def _classes(choose: random.Random, number: int, length: int) -> dict[str, Any]:
    return {"text": " ".join(_words(choose, length)), "label": number % CLASSES}


def _tags(choose: random.Random, number: int, length: int) -> dict[str, Any]:
    tags = [choose.randrange(CLASSES) for _ in range(length)]
    return {"tokens": _words(choose, length), "tags": tags}


def _pairs(choose: random.Random, number: int, length: int) -> dict[str, Any]:
    source, target = _words(choose, length), _words(choose, choose.randint(1, 20))
    return {"source": " ".join(source), "target": " ".join(target)}


MAKERS: dict[str, Callable[[random.Random, int, int], dict[str, Any]]] = {
    "ids": _ids,
    "messages": _messages,
    "classes": _classes,
    "tags": _tags,
    "pairs": _pairs,
}
