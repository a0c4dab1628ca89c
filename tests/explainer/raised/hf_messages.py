"""Messages of transformers, peft, datasets and trl, raised for real: code, then the call."""

from __future__ import annotations

import json
import logging
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import torch
import transformers
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

Call = Callable[[Path], Any]
TINY = {
    "vocab_size": 8,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 8,
}
IDS = torch.zeros(2, 3, dtype=torch.long)


def tokenizer(**special: str) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[PAD]": 2, "[UNK]": 3}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", model_max_length=4, **special
    )


def padding() -> PreTrainedTokenizerFast:
    return tokenizer(pad_token="[PAD]")


def llama(**more: Any) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**{**TINY, **more}))


def bert(**more: Any) -> BertForSequenceClassification:
    return BertForSequenceClassification(BertConfig(**{**TINY, **more}))


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    settings: dict[str, Any] = {"report_to": [], "use_cpu": True, "disable_tqdm": True, **more}
    return TrainingArguments(str(folder / "out"), **settings)


def train(folder: Path, rows: Any, **more: Any) -> None:
    settings = {"max_steps": 1, "per_device_train_batch_size": 2, "save_strategy": "no", **more}
    Trainer(bert(), arguments(folder, **settings), train_dataset=rows).train()


def train_by_f1(folder: Path) -> None:
    rows = [{"input_ids": [0, 1], "labels": 0}] * 4
    settings = {
        "max_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_steps": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "f1",
    }
    Trainer(bert(), arguments(folder, **settings), train_dataset=rows, eval_dataset=rows).train()


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield {"input_ids": [0, 1], "labels": 0}


class NoLabels(nn.Module):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids


def quantised(folder: Path) -> None:
    model = llama()
    model.is_quantized = True
    model.quantization_method = "gguf"
    model.hf_quantizer = types.SimpleNamespace(
        is_trainable=False, is_qat_trainable=False, quantization_config=None
    )
    Trainer(model, arguments(folder), train_dataset=[])


def config_of(folder: Path, **keys: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    return str(folder)


def other_classes(folder: Path) -> None:
    bert(num_labels=2).save_pretrained(folder)
    BertForSequenceClassification.from_pretrained(folder, num_labels=5)


def seq2seq_bert(folder: Path) -> None:
    bert().save_pretrained(folder)
    AutoModelForSeq2SeqLM.from_pretrained(folder)


def refusing_template() -> None:
    words = padding()
    words.chat_template = (
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/…') }}"
    )
    words.apply_chat_template([{"role": "user", "content": "a"}])


def long_text() -> str:
    return logged(lambda: padding()(["a b a b a b"]))


def unmarked_template() -> str:
    words = padding()
    words.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    return logged(
        lambda: words.apply_chat_template(
            turns, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        ),
    )


def logged(call: Callable[[], Any]) -> str:
    """What transformers logs during a call."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    transformers.logging.set_verbosity_warning()
    transformers.utils.logging.warning_once.cache_clear()  # a test before may have been warned
    logger, handler = logging.getLogger("transformers"), Keep()
    logger.addHandler(handler)
    try:
        call()
    finally:
        logger.removeHandler(handler)
    return "\n".join(lines)


def lora(**more: Any) -> LoraConfig:
    return LoraConfig(**{"target_modules": ["q_proj"], "r": 4, **more})


def other_rank(folder: Path) -> None:
    get_peft_model(llama(), lora()).save_pretrained(folder)
    path = folder / "adapter_config.json"
    path.write_text(path.read_text("utf-8").replace('"r": 4', '"r": 8'), encoding="utf-8")
    PeftModel.from_pretrained(llama(), folder)


def warned(call: Callable[[], Any]) -> str:
    """What a call warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return "\n".join(f"{item.category.__name__}: {item.message}" for item in caught)


def missing_adapters(folder: Path) -> str:
    get_peft_model(llama(), lora()).save_pretrained(folder)
    return warned(lambda: PeftModel.from_pretrained(llama(num_hidden_layers=2), folder))


def load_json(folder: Path, *files: str) -> None:
    paths = []
    for number, text in enumerate(files):
        paths.append(folder / f"{number}.jsonl")
        paths[-1].write_text(text, encoding="utf-8")
    names = [str(path) for path in paths]
    datasets.load_dataset("json", data_files=names, cache_dir=str(folder / "cache"))


def generation_markers(folder: Path) -> None:
    from trl import SFTConfig, SFTTrainer

    words = padding()
    words.eos_token = "[PAD]"
    words.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    settings = {"report_to": [], "use_cpu": True, "bf16": False, "assistant_only_loss": True}
    SFTTrainer(
        llama(),
        SFTConfig(str(folder), max_length=8, **settings),
        train_dataset=Dataset.from_list([{"messages": turns}] * 2),
        processing_class=words,
    )


RAGGED = [{"input_ids": [0, 1], "labels": [0, 1]}, {"input_ids": [0], "labels": [0]}]
USER = [{"role": "user", "content": "a"}]

RAISED: dict[str, tuple[str, Call]] = {
    "causal collator": (
        "SF601",
        lambda _: DataCollatorForLanguageModeling(padding(), mlm=False)(RAGGED),
    ),
    "nesting": (
        "SF602",
        lambda _: (_ for _ in ()).throw(_outer(lambda: DataCollatorWithPadding(padding())(RAGGED))),
    ),
    "no pad token": ("SF606", lambda _: tokenizer()(["a b", "a"], padding=True)),
    "no pad id": (
        "SF606",
        lambda _: LlamaForSequenceClassification(LlamaConfig(**TINY, pad_token_id=None))(IDS),
    ),
    "no text": ("SF607", lambda _: padding()([None])),
    "positions": ("SF612", lambda _: bert()(torch.zeros(1, 12, dtype=torch.long))),
    "label lengths": ("SF613", lambda _: bert(num_labels=3)(IDS, labels=IDS)),
    "vocabulary": ("SF620", lambda _: bert()(torch.tensor([[9]]))),
    "classes": ("SF621", lambda _: bert(num_labels=2)(IDS, labels=torch.tensor([0, 5]))),
    "multi-label dtype": (
        "SF623",
        lambda _: bert(num_labels=3, problem_type="multi_label_classification")(IDS, labels=IDS),
    ),
    "no markers": ("SF627", generation_markers),
    "no markers, warned": ("SF627", lambda _: unmarked_template()),
    "bf16": ("SF646", lambda folder: TrainingArguments(str(folder), bf16=True)),
    "flash attention": ("SF647", lambda _: llama(attn_implementation="flash_attention_2")),
    "head of other classes": ("SF670", other_classes),
    "adapter of another rank": ("SF670", other_rank),
    "quantised": ("SF676", quantised),
    "no checkpoint": (
        "SF677",
        lambda folder: Trainer(
            bert(), arguments(folder), train_dataset=[{"input_ids": [0], "labels": 0}]
        ).train(resume_from_checkpoint=str(folder / "none")),
    ),
    "no checkpoints": (
        "SF677",
        lambda folder: Trainer(
            bert(), arguments(folder), train_dataset=[{"input_ids": [0], "labels": 0}]
        ).train(resume_from_checkpoint=True),
    ),
    "no such folder": (
        "SF679",
        lambda folder: AutoModelForCausalLM.from_pretrained("./no/such/folder"),
    ),
    "empty folder": ("SF679", lambda folder: AutoModelForCausalLM.from_pretrained(folder)),
    "offline": ("SF680", lambda _: AutoConfig.from_pretrained("no-such/model")),
    "custom code": (
        "SF681",
        lambda folder: AutoConfig.from_pretrained(
            config_of(folder, model_type="zork9", auto_map={"AutoConfig": "c.C"}),
            trust_remote_code=False,
        ),
    ),
    "unknown type": (
        "SF682",
        lambda folder: AutoConfig.from_pretrained(config_of(folder, model_type="zork9")),
    ),
    "renamed argument": (
        "SF682",
        lambda folder: TrainingArguments(str(folder), evaluation_strategy="steps"),
    ),
    "renamed argument of Trainer": ("SF682", lambda _: Trainer(bert(), tokenizer=None)),
    "wrong class": ("SF683", seq2seq_bert),
    "heads": (
        "SF684",
        lambda _: BertModel(BertConfig(**{**TINY, "hidden_size": 10, "num_attention_heads": 3})),
    ),
    "attention heads": ("SF684", lambda _: nn.MultiheadAttention(10, 3)),
    "no template": ("SF685", lambda _: padding().apply_chat_template(USER)),
    "refusing template": ("SF685", lambda _: refusing_template()),
    "no mask token": ("SF686", lambda _: DataCollatorForLanguageModeling(padding(), mlm=True)),
    "targets": ("SF687", lambda _: get_peft_model(llama(), lora(target_modules=["query"]))),
    "no targets": (
        "SF687",
        lambda _: get_peft_model(nn.Sequential(nn.Linear(2, 2)), LoraConfig()),
    ),
    "target kind": (
        "SF688",
        lambda _: get_peft_model(llama(), lora(target_modules=["input_layernorm"])),
    ),
    "no adapter": ("SF689", lambda folder: PeftModel.from_pretrained(llama(), folder)),
    "no such adapter": ("SF689", lambda _: get_peft_model(llama(), lora()).set_adapter("x")),
    "missing adapters": ("SF690", missing_adapters),
    "adapted twice": (
        "SF690",
        lambda _: warned(lambda: get_peft_model(get_peft_model(llama(), lora()), lora())),
    ),
    "unknown key": ("SF691", lambda _: LoraConfig(zork=1)),
    "mixed types": ("SF693", lambda _: Dataset.from_list([{"a": 1}, {"a": "x"}])),
    "other columns": ("SF693", lambda folder: load_json(folder, '{"a": 1}\n', '{"b": 1}\n')),
    "cast": (
        "SF693",
        lambda _: Dataset.from_list([{"a": "x"}]).cast(
            datasets.Features({"a": datasets.Value("int64")})
        ),
    ),
    "struct to text": (
        "SF693",
        lambda _: datasets.table.array_cast(pa.array([{"a": 1}]), pa.string()),
    ),
    "align": (
        "SF693",
        lambda _: datasets.concatenate_datasets(
            [Dataset.from_list([{"a": "x"}]), Dataset.from_list([{"a": 1}])]
        ),
    ),
    "bad line": ("SF694", lambda folder: load_json(folder, '{"a": 1}\n{"a": \n')),
    "map": (
        "SF695",
        lambda _: Dataset.from_list([{"a": 1}] * 4).map(lambda rows: {"b": [1]}, batched=True),
    ),
    "no columns": ("SF696", lambda folder: train(folder, Dataset.from_list([{"text": "a"}] * 4))),
    "no rows left": ("SF696", lambda _: Dataset.from_list([])[0]),
    "no ids": ("SF696", lambda _: padding().pad([{"labels": [1]}])),
    "no loss": ("SF697", lambda folder: train(folder, [{"input_ids": [0, 1]}] * 4)),
    "forward without labels": ("SF697", lambda _: NoLabels()(input_ids=IDS, labels=IDS)),
    "ids and embeddings": (
        "SF698",
        lambda _: bert()(input_ids=IDS, inputs_embeds=torch.zeros(2, 3, 8)),
    ),
    "long row": ("SF699", lambda _: long_text()),
    "long prompt": ("SF699", lambda _: llama().generate(torch.zeros(1, 6).long(), max_length=4)),
    "best model": (
        "SF608",
        lambda folder: arguments(
            folder, eval_strategy="steps", save_strategy="epoch", load_best_model_at_end=True
        ),
    ),
    "no evaluation rows": (
        "SF608",
        lambda folder: Trainer(bert(), arguments(folder, eval_strategy="steps"), train_dataset=[]),
    ),
    "unknown metric": ("SF608", train_by_f1),
    "stream": (
        "SF609",
        lambda folder: Trainer(bert(), arguments(folder), train_dataset=Stream()),
    ),
}


def _outer(call: Callable[[], Any]) -> Exception:
    """The exception of a call without the one before it, as a log that lost it shows it."""
    try:
        call()
    except Exception as error:
        error.__cause__ = error.__context__ = None
        return error
    raise AssertionError("nothing was raised")
