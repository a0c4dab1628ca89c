"""Preference tuning beside TRL: the same rows, weights and settings must give the same losses.

python bench/same_preferences.py [--steps 20]

TRL is given the token ids of our Store, in one batch per step, so that the order of rows does not
matter. Prints the loss of step 1 and the largest difference over all steps, for each method.
"""

from __future__ import annotations

import argparse
import copy
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset

import surefit

WORDS = ["time", "year", "people", "way", "day", "thing", "life", "child", "world", "school"]


def make_rows(count: int) -> list[dict[str, Any]]:
    """Pairs of short answers to prompts of several words."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        good, bad = draw.sample(WORDS, 2)
        rows.append(
            {
                "prompt": f"Say {good} and not {bad}, number {number}",
                "chosen": " ".join([good] * draw.randint(1, 6)),
                "rejected": " ".join([bad] * draw.randint(1, 6)),
            }
        )
    return rows


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One answer per row, every second one good."""
    return [
        {"prompt": r["prompt"], "completion": r["chosen" if n % 2 else "rejected"], "label": n % 2}
        for n, r in enumerate(rows)
    ]


def stored(plan: Any, task: str) -> Dataset:
    """The rows of a plan's Store as TRL's trainers have them once they are tokenized."""
    store, rows = plan.job.train, []
    for number in range(len(store)):
        row = store.row(number)
        ids, prompt = row["input_ids"].tolist(), int(row["prompt_length"])
        end = prompt + int(row["first_length"])
        first, second = ids[prompt:end], ids[end:]
        if task == "kto":
            named = {"completion_ids": first, "KL_completion_ids": second}
            rows.append({"prompt_ids": ids[:prompt], **named, "label": bool(row["good"])})
        elif task == "reward":
            rows.append({"chosen_ids": ids[:prompt] + first, "rejected_ids": ids[:prompt] + second})
        else:
            rows.append({"prompt_ids": ids[:prompt], "chosen_ids": first, "rejected_ids": second})
    return Dataset.from_list(rows)


def ours(options: dict[str, Any], folder: str) -> list[float]:
    """The losses of surefit's steps."""
    run = surefit.train(**options, output=folder, quiet=True)
    return [event["loss"] for event in run.history if event["event"] == "step"]


def theirs(plan: Any, task: str, steps: int, folder: str) -> list[float]:
    """The losses of TRL's steps, from the same weights."""
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer

    kinds = {"kto": (KTOTrainer, KTOConfig), "reward": (RewardTrainer, RewardConfig)}
    trainer_class, config_class = kinds.get(task, (DPOTrainer, DPOConfig))
    trainer_class._prepare_dataset = lambda self, dataset, *given, **named: dataset
    rows = stored(plan, task)
    more: dict[str, Any] = {} if task == "reward" else {"beta": 0.1}
    if task == "ipo":
        more["loss_type"] = "ipo"
    if task == "kto":
        more["train_sampling_strategy"] = "sequential"
    if task == "reward":
        more["center_rewards_coefficient"] = None
    config = config_class(
        output_dir=folder,
        per_device_train_batch_size=len(rows),
        num_train_epochs=steps,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_length=None,
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        **more,
    )
    model = copy.deepcopy(plan.job.pipeline.module)
    tokenizer = copy.deepcopy(plan.job.pipeline.encoder.tokenizer)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if not hasattr(model, "peft_config"):  # TRL opens the reference by the name of the model
        model.save_pretrained(folder)
        model = type(model).from_pretrained(folder)
    trainer = trainer_class(
        model=model, args=config, train_dataset=rows, processing_class=tokenizer
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def compare(task: str, steps: int, lora: int = 0) -> str:
    """Both curves, and how far they are apart."""
    rows = make_rows(12)
    options: dict[str, Any] = {
        "data": judged(rows) if task == "kto" else rows,
        "eval_share": 0,
        "model": "tiny:llama",
        "task": "reward" if task == "reward" else "preference",
        "batch_size": len(rows),
        "max_steps": steps,
        "epochs": steps,
        "lr": 1e-3,
        "schedule": "constant",
        "warmup": 0,
        "weight_decay": 0,
        **({"lora_r": lora} if lora else {}),
        **({} if task == "reward" else {"preference": {"method": task, "beta": 0.1}}),
    }
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        plan = surefit.check(**options, quiet=True)
        assert plan.ok, plan.findings
        other = theirs(plan, task, steps, str(Path(folder) / "trl"))
        own = ours(options, str(Path(folder) / "run"))
    apart = np.abs(np.array(own) - np.array(other[: len(own)]))
    name = f"{task}, LoRA" if lora else task
    first = f"step 1: {own[0]:.6f} and {other[0]:.6f}"
    last = f"step {len(own)}: {own[-1]:.6f} and {other[len(own) - 1]:.6f}"
    return f"{name}: {first}; {last}; largest difference {apart.max():.2g}"


def main() -> None:
    """Compare every method that TRL has a trainer for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=["dpo", "ipo", "kto", "reward", "lora"])
    args = parser.parse_args()
    for task in args.only:
        lora = 8 if task == "lora" else 0
        print(compare("dpo" if lora else task, args.steps, lora), flush=True)


if __name__ == "__main__":
    main()
