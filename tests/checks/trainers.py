"""Trainers of transformers and TRL on tiny models, clean and faulty, for `check(trainer=…)`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import datasets
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BertConfig,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    DataCollatorWithPadding,
    LlamaConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    Trainer,
    TrainingArguments,
)

import surefit
from builders import WORDS
from surefit.inputs.tokenizer import train_tokenizer

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def tokenizer(pad: str | None = "<pad>", chat: bool = False) -> Any:
    """A tokenizer of its own; its pad is another token than eos unless `pad` is None."""
    made = train_tokenizer([" ".join(WORDS)] * 20, 300)
    if pad is not None:
        made.add_special_tokens({"pad_token": pad})
    if chat:
        made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
        made.chat_template = CHATML
    return made


def causal(vocabulary: Any = None, **more: Any) -> Any:
    """A tiny Llama."""
    torch.manual_seed(0)
    size = len(vocabulary if vocabulary is not None else tokenizer())
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=size, **SIZES, **more))


def settings(folder: Any, kind: Any = TrainingArguments, **more: Any) -> Any:
    """Arguments that write nothing."""
    return kind(output_dir=str(folder), report_to=[], per_device_train_batch_size=4, **more)


def token_rows(labels: bool = True, eos: bool = True, words: Any = None) -> list[dict[str, Any]]:
    """Rows of different length: a prompt without labels, then an answer that ends with eos."""
    rows = []
    words = words if words is not None else tokenizer()
    for number in range(12):
        ids = words(" ".join(WORDS[number % 5 : 4 + number % 7 + number % 5]))["input_ids"]
        ids = [*ids, words.eos_token_id] if eos else ids
        rows.append(
            {"input_ids": ids, "labels": [-100, *ids[1:]]} if labels else {"input_ids": ids}
        )
    return rows


def plain(folder: Any, rows: Any, collator: Any = None, **more: Any) -> Trainer:
    """A Trainer of transformers; `more` are arguments of the Trainer."""
    more.setdefault("model", causal())
    more.setdefault("processing_class", tokenizer())
    arguments = more.pop("args", None) or settings(folder)
    collator = collator or surefit.Collator(tokenizer())
    return Trainer(args=arguments, data_collator=collator, train_dataset=rows, **more)


def prompts() -> datasets.Dataset:
    """Prompts and completions of different length."""
    rows = [
        {"prompt": f"say {word}", "completion": f" {' '.join(WORDS[: 1 + n % 4])} {word}"}
        for n, word in enumerate(WORDS)
    ]
    return datasets.Dataset.from_list(rows)


def chats() -> datasets.Dataset:
    """Conversations of two turns each."""
    rows = [
        {"messages": [
            {"role": "user", "content": f"say {word}"},
            {"role": "assistant", "content": f"{word} {WORDS[0]}"},
        ]}
        for word in WORDS
    ]  # fmt: skip
    return datasets.Dataset.from_list(rows)


def sft(folder: Any, rows: Any, words: Any = None, **more: Any) -> Any:
    """TRL's SFTTrainer."""
    from trl import SFTConfig, SFTTrainer

    words = words if words is not None else tokenizer()
    arguments = settings(folder, SFTConfig, bf16=False, **more)
    return SFTTrainer(causal(words), arguments, train_dataset=rows, processing_class=words)


def dpo(folder: Any, rows: Any) -> Any:
    """TRL's DPOTrainer."""
    from trl import DPOConfig, DPOTrainer

    arguments = settings(folder, DPOConfig, bf16=False)
    return DPOTrainer(
        causal(), causal(), arguments, train_dataset=rows, processing_class=tokenizer()
    )


def pairs(same: bool = False) -> datasets.Dataset:
    """Preference data, with the same answer twice in the first rows if asked for."""
    rows = [
        {"prompt": f"say {w}", "chosen": f" {w}", "rejected": f" {w if same and n < 2 else 'no'}"}
        for n, w in enumerate(WORDS)
    ]
    return datasets.Dataset.from_list(rows)


def classes(folder: Any, num_labels: int = 2) -> Trainer:
    """A classifier whose data set still has the text."""
    config = BertConfig(vocab_size=len(tokenizer()), num_labels=num_labels, **SIZES)
    rows = [
        {"text": "x", "id": n, "input_ids": row["input_ids"], "label": n % 2}
        for n, row in enumerate(token_rows(labels=False))
    ]
    model = AutoModelForSequenceClassification.from_config(config)
    table = datasets.Dataset.from_list(rows)
    return plain(folder, table, DataCollatorWithPadding(tokenizer()), model=model)


def masked(folder: Any) -> Trainer:
    """A masked language model with the stock collator."""
    words = tokenizer()
    words.add_special_tokens({"mask_token": "<mask>"})
    model = AutoModelForMaskedLM.from_config(BertConfig(vocab_size=len(words), **SIZES))
    collator = DataCollatorForLanguageModeling(words, mlm_probability=0.5)
    return plain(folder, token_rows(labels=False), collator, model=model, processing_class=words)


def seq2seq(folder: Any, label_pad: int | None = None) -> Seq2SeqTrainer:
    """A T5 with the stock collator; `label_pad` is what labels are padded with."""
    words = tokenizer()
    config = T5Config(
        vocab_size=len(words), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id,
        decoder_start_token_id=words.pad_token_id,
    )  # fmt: skip
    model = AutoModelForSeq2SeqLM.from_config(config)
    rows = [
        {"input_ids": row["input_ids"], "labels": row["input_ids"][n % 3 :]}
        for n, row in enumerate(token_rows(labels=False))
    ]
    pad = -100 if label_pad is None else label_pad
    collator = DataCollatorForSeq2Seq(words, model=model, label_pad_token_id=pad)
    arguments = settings(folder, Seq2SeqTrainingArguments)
    return Seq2SeqTrainer(
        model, arguments, data_collator=collator, train_dataset=rows, processing_class=words
    )


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Rows that have no number."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def weighted_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """A causal loss of one's own, a sum over the labels of the step."""
    logits, labels = outputs.logits[:, :-1], labels[:, 1:]
    total = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return total / num_items_in_batch


def loss_without_shift(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """The usual mistake: each position is compared with its own token."""
    return nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())


def pad_rows(rows: list[dict[str, Any]], label_pad: int, mask: bool = True) -> dict[str, Any]:
    """A collator of one's own."""
    pad = tokenizer().pad_token_id
    longest = max(len(row["input_ids"]) for row in rows)
    filled = {"input_ids": pad, "labels": label_pad, "attention_mask": 0}
    if mask:
        rows = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]
    return {
        name: torch.tensor(
            [row[name] + [filled[name]] * (longest - len(row[name])) for row in rows]
        )
        for name in rows[0]
    }


class Mixing(nn.Module):
    """A model whose attention does not keep packed rows apart: it ignores position_ids."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        position_ids: Any = None,
        labels: Any = None,
    ) -> Any:
        return self.inner(input_ids, attention_mask, labels=labels)


def wrapped(kind: type[Mixing] = Mixing) -> Mixing:
    inner = causal()
    inner.config.architectures = ["LlamaForCausalLM"]
    return kind(inner)


class Misfit(Mixing):
    """A model whose last layer has another width than its body."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.last = nn.Linear(7, 5)

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        return self.last(self.inner(input_ids, attention_mask).logits)


class ShiftsTwice(Mixing):
    """A user's wrapper that shifts labels which the model shifts again."""

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
        return self.inner(input_ids, attention_mask, labels=shifted)


def frozen() -> Any:
    return causal().requires_grad_(False)


def changed(row: int, **columns: Any) -> list[dict[str, Any]]:
    """Rows, one of which has other values."""
    rows = token_rows()
    rows[row] |= columns
    return rows


def begun_twice(folder: Any) -> Trainer:
    """Rows that a template and the tokenizer have begun with bos."""
    words = copy.deepcopy(tokenizer())
    words.bos_token = words.convert_ids_to_tokens(7)
    rows = [{name: [7, 7, *values] for name, values in row.items()} for row in token_rows()]
    return plain(folder, rows, processing_class=words)


def labelled_beyond(folder: Any) -> Trainer:
    """A class that the model does not have, in row 7."""
    trainer = classes(folder)
    rows = trainer.train_dataset.to_list()
    rows[7]["label"] = 2
    trainer.train_dataset = datasets.Dataset.from_list(rows)
    return trainer


def _shift(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "labels": [*row["input_ids"][1:], -100]} for row in rows]


def _mask(row: dict[str, Any]) -> dict[str, Any]:
    size = len(row["input_ids"])
    return {**row, "attention_mask": [1] * (size - 3) + [0, 0, 1], "labels": row["input_ids"]}


Make = Callable[[Any], Any]

CLEAN: dict[str, Make] = {
    "collator of surefit": lambda f: plain(f, token_rows()),
    "completion-only": lambda f: sft(f, prompts()),
    "loss on all": lambda f: sft(f, prompts(), completion_only_loss=False),
    "assistant-only": lambda f: sft(f, chats(), tokenizer("<pad>", True), assistant_only_loss=True),
    "chat, loss on all": lambda f: sft(f, chats(), tokenizer("<pad>", True)),
    "packing": lambda f: sft(f, prompts(), packing=True, max_length=32),
    "packing by wrapping": lambda f: sft(
        f, prompts(), packing=True, packing_strategy="wrapped", max_length=32
    ),
    "padding-free": lambda f: sft(f, prompts(), padding_free=True, max_length=None),
    "flattened by transformers": lambda f: plain(f, token_rows(), DataCollatorWithFlattening()),
    "preference": lambda f: dpo(f, pairs()),
    "encoder-decoder": seq2seq,
    "classifier": classes,
    "masked language model": masked,
    "stream": lambda f: plain(f, Stream(token_rows()), args=settings(f, max_steps=2)),
    "loss of one's own": lambda f: plain(f, token_rows(), compute_loss_func=weighted_loss),
    "collator of one's own": lambda f: plain(
        f, token_rows(), lambda rows: pad_rows(rows, -100), processing_class=None
    ),
    "grouped by length": lambda f: plain(
        f, token_rows(), args=settings(f, train_sampling_strategy="group_by_length")
    ),
    "collator's tokenizer": lambda f: plain(
        f, token_rows(labels=False), DataCollatorForLanguageModeling(tokenizer(), mlm=False),
        processing_class=None,
    ),
    "text and ids beside the tokens": lambda f: plain(
        f,
        datasets.Dataset.from_list(
            [{**row, "text": "x", "id": n} for n, row in enumerate(token_rows())]
        ),
    ),
}  # fmt: skip
"""Trainers that have nothing wrong."""

_EOS_PAD = DataCollatorForLanguageModeling(tokenizer(None), mlm=False)

FAULTY: dict[str, tuple[str, Make]] = {
    "shifted labels": ("SF150", lambda f: plain(f, _shift(token_rows()))),
    "labels on padding": (
        "SF151",
        lambda f: plain(f, token_rows(), lambda rows: pad_rows(rows, tokenizer().pad_token_id)),
    ),
    "labels of an encoder-decoder on padding": (
        "SF151", lambda f: seq2seq(f, tokenizer().pad_token_id)
    ),
    "labels where the mask is 0": (
        "SF152",
        lambda f: plain(
            f, [_mask(row) for row in token_rows()], lambda rows: pad_rows(rows, -100, mask=False)
        ),
    ),
    "no eos in any row": ("SF155", lambda f: plain(f, token_rows(eos=False))),
    "eos masked as padding": (
        "SF154",
        lambda f: plain(f, token_rows(labels=False, words=tokenizer(None)), _EOS_PAD,
                        processing_class=None, model=causal(tokenizer(None))),
    ),
    "row of other tokens than the vocabulary's": (
        "SF302 5", lambda f: plain(f, changed(5, input_ids=[9999] * 5, labels=[9999] * 5))
    ),
    "row longer than the positions": (
        "SF304 5", lambda f: plain(f, changed(5, input_ids=[9] * 200, labels=[9] * 200))
    ),
    "row without labels": (
        "SF721 5",
        lambda f: plain(f, changed(5, labels=[-100] * len(token_rows()[5]["labels"]))),
    ),
    "no labels at all": (
        "SF401 0",
        lambda f: plain(f, [{**r, "labels": [-100] * len(r["labels"])} for r in token_rows()]),
    ),
    "collator that does not pad labels": (
        "SF720 0",
        lambda f: plain(
            f, token_rows(), DataCollatorForLanguageModeling(tokenizer(), mlm=False)
        ),
    ),
    "label beyond the classes": ("SF303 7", labelled_beyond),
    "bos twice": ("SF724", begun_twice),
    "wrapper that shifts again": (
        "SF703", lambda f: plain(f, token_rows(), model=wrapped(ShiftsTwice))
    ),
    "everything frozen": ("SF314", lambda f: plain(f, token_rows(), model=frozen())),
    "optimizer of another model": (
        "SF314",
        lambda f: plain(
            f, token_rows(), optimizers=(torch.optim.SGD(causal().parameters(), lr=0.1), None)
        ),
    ),
    "loss of one's own that does not shift": (
        "SF703", lambda f: plain(f, token_rows(), compute_loss_func=loss_without_shift)
    ),
    "packed rows that see each other": (
        "SF726",
        lambda f: plain(f, token_rows(), DataCollatorWithFlattening(), model=wrapped()),
    ),
    "pairs with one answer": ("SF727", lambda f: dpo(f, pairs(same=True))),
    "weights that the trainer drops": (
        "SF723",
        lambda f: plain(
            f, datasets.Dataset.from_list([{**row, "weight": 0.5} for row in token_rows()])
        ),
    ),
    "batch that the model does not take": (
        "SF305",
        lambda f: plain(
            f,
            token_rows(),
            lambda rows: {**pad_rows(rows, -100), "extra": torch.ones(len(rows))},
            model=wrapped(),
        ),
    ),
    "last layer of another width than the body": (
        "SF305",
        lambda f: plain(f, token_rows(), lambda rows: pad_rows(rows, -100), model=wrapped(Misfit)),
    ),
}  # fmt: skip
"""Trainers with one fault, and its code, with the row where it has one."""
