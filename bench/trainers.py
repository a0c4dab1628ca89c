"""The contenders that train a job: surefit, transformers' Trainer, TRL's SFTTrainer, a plain loop.

Each returns the seconds from the beginning of its first step to the end of its last one, and the
model; the clock leaves out loading, planning and saving, for all of them alike.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

from jobs import Job

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
    from jobs import gguf_path
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
