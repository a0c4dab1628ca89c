"""Preference tuning beside TRL: the same rows, weights and settings must give the same losses.

python bench/same_preferences.py [--steps 20] [--only dpo orpo …] [--lora 0 8]

TRL is given the token ids of our Store, in one batch per step, so that the order of rows does not
matter. Prints the loss of step 1, the largest difference over all steps, and the largest difference
of the gradients of step 1 (from a step of plain SGD), for each method, full and with LoRA. TRL's
ORPO adds the likelihood of the prompt to that of the chosen answer: its prompts are one token here,
which nothing predicts.
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
from surefit.models.save_model import save_model

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


TEMPLATE = (
    "{% for message in messages %}{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)
"""Writes nothing around messages, so that a prompt of one letter is one token."""


def one_token_prompts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same answers to prompts of one letter."""
    return [
        {
            "prompt": chr(ord("a") + number),
            **{side: f" {row[side]}" for side in ("chosen", "rejected")},
        }
        for number, row in enumerate(rows)
    ]


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
        elif task in ("simpo", "orpo"):  # these tokenize rows themselves
            texts = {"prompt": "a", "chosen": "b", "rejected": "c"}
            rows.append({**texts, "prompt_ids": ids[:prompt], "first": first, "second": second})
        else:
            rows.append({"prompt_ids": ids[:prompt], "chosen_ids": first, "rejected_ids": second})
    return Dataset.from_list(rows)


def tokenized(trainer: Any, row: dict[str, Any], model: Any = None) -> dict[str, Any]:
    """A row as `tokenize_row` of TRL's CPO and ORPO gives it, from its token ids."""
    prompt = row["prompt_ids"]
    made: dict[str, Any] = {"prompt_input_ids": prompt, "prompt_attention_mask": [1] * len(prompt)}
    for side, answer in (("chosen", row["first"]), ("rejected", row["second"])):
        made[f"{side}_input_ids"] = prompt + answer
        made[f"{side}_attention_mask"] = [1] * len(prompt + answer)
        made[f"{side}_labels"] = [-100] * len(prompt) + answer
    return made


Trained = tuple[list[float], dict[str, torch.Tensor]]
"""The losses of all steps, and the weights after them."""


def weights_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All weights, by the names they have without wrappers."""
    named = module.named_parameters()
    return {name.removeprefix("base_model.model."): p.detach().clone() for name, p in named}


def ours(options: dict[str, Any], folder: str) -> Trained:
    """What surefit's steps give."""
    run = surefit.train(**options, output=folder, quiet=True)
    losses = [event["loss"] for event in run.history if event["event"] == "step"]
    return losses, weights_of(run.model)


def theirs(plan: Any, task: str, steps: int, folder: str, sgd: bool) -> Trained:
    """What TRL's steps give, from the same weights."""
    from peft import AutoPeftModelForCausalLM, AutoPeftModelForSequenceClassification
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    kinds: dict[str, tuple[Any, Any]] = {
        "kto": (KTOTrainer, KTOConfig),
        "reward": (RewardTrainer, RewardConfig),
        "simpo": (CPOTrainer, CPOConfig),
        "orpo": (ORPOTrainer, ORPOConfig),
    }
    trainer_class, config_class = kinds.get(task, (DPOTrainer, DPOConfig))
    trainer_class._prepare_dataset = lambda self, dataset, *given, **named: dataset
    if task in ("simpo", "orpo"):
        trainer_class.tokenize_row = tokenized
    rows = stored(plan, task)
    more: dict[str, Any] = {} if task == "reward" else {"beta": 0.1}
    if task == "simpo":
        more |= {"loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 0.05}
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
        learning_rate=1.0 if sgd else 1e-3,
        optim="sgd" if sgd else "adamw_torch",
        max_grad_norm=0.0 if sgd else 1.0,
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
    if hasattr(model, "peft_config"):  # TRL takes it for a whole model unless peft opens it
        place = Path(folder, "adapted")
        save_model(model, plan.job.pipeline.encoder, plan.model.source, place)
        opened = dict[str, Any](num_labels=1) if task == "reward" else {}
        kind = AutoPeftModelForSequenceClassification if opened else AutoPeftModelForCausalLM
        model = kind.from_pretrained(place, is_trainable=True, **opened)
    else:  # TRL opens the reference by the name of the model
        model.save_pretrained(folder)
        model = type(model).from_pretrained(folder)
    trainer = trainer_class(
        model=model, args=config, train_dataset=rows, processing_class=tokenizer
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, weights_of(trainer.model)


def curves(task: str, steps: int, lora: int, sgd: bool = False) -> tuple[Any, Trained, Trained]:
    """The module before training, and what both give."""
    rows = make_rows(12)
    options: dict[str, Any] = {
        "data": judged(rows) if task == "kto" else rows,
        "eval_share": 0,
        "model": "tiny:llama",
        "task": "reward" if task == "reward" else "preference",
        "batch_size": len(rows),
        "max_steps": steps,
        "epochs": steps,
        "lr": 1.0 if sgd else 1e-3,
        "optimizer": "sgd" if sgd else "adamw",
        "clip": 0 if sgd else 1,
        "schedule": "constant",
        "warmup": 0,
        "weight_decay": 0,
        **({"lora_r": lora} if lora else {}),
        **({} if task == "reward" else {"preference": {"method": task, "beta": 0.1}}),
    }
    if task == "orpo":
        options |= {"data": one_token_prompts(rows), "template": TEMPLATE}
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        plan = surefit.check(**options, quiet=True)
        assert plan.ok, plan.findings
        assert plan.job is not None
        before = weights_of(plan.job.pipeline.module)
        other = theirs(plan, task, steps, str(Path(folder) / "trl"), sgd)
        return before, ours(options, str(Path(folder) / "run")), other


def compare(task: str, steps: int, lora: int = 0) -> str:
    """Both curves, how far they are apart, and the same of the gradients of step 1."""
    _, (own, _), (other, _) = curves(task, steps, lora)
    apart = np.abs(np.array(own) - np.array(other[: len(own)]))
    name = f"{task}, LoRA" if lora else task
    first = f"step 1: {own[0]:.6f} and {other[0]:.6f}"
    last = f"step {len(own)}: {own[-1]:.6f} and {other[len(own) - 1]:.6f}"
    before, (_, mine), (_, peer) = curves(task, 1, lora, sgd=True)
    assert before.keys() == mine.keys() == peer.keys() & mine.keys()
    largest = max(float((before[n] - mine[n]).abs().max()) for n in mine)
    differing = max(float((mine[n] - peer[n]).abs().max()) for n in mine)
    gradients = f"gradients up to {largest:.3g} differ by {differing:.2g}"
    return f"{name}: {first}; {last}; largest difference {apart.max():.2g}; {gradients}"


def main() -> None:
    """Compare every method that TRL has a trainer for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    methods = ["dpo", "ipo", "simpo", "orpo", "kto", "reward"]
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=methods, choices=methods)
    parser.add_argument("--lora", nargs="*", type=int, default=[0, 8])
    args = parser.parse_args()
    for task in args.only:
        for lora in args.lora:
            print(compare(task, args.steps, lora), flush=True)


if __name__ == "__main__":
    main()
