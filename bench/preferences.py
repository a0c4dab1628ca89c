"""DPO beside TRL's DPOTrainer: pairs per second and peak memory, on the same rows and weights.

python bench/preferences.py [--rounds 2] [--pairs 16] [--batch 4] [--length 512]

Each contender runs in a process of its own, and they take turns. Both train LoRA r = 16 on
SmolLM2-135M; the time is that of all steps with what the reference takes. TRL is given our token
ids, so that templates and truncation are the same, and computes the reference in each step, which
is its fastest setting for one epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from trainers import SHARED, gguf_path

DATA = SHARED / "data" / "preference" / "dpo_en_demo.json"
LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
CONTENDERS = ("surefit", "TRL")


def options(args: argparse.Namespace, data: str) -> dict[str, Any]:
    """What surefit is called with."""
    return {
        "data": data,
        "model": str(gguf_path()),
        "task": "preference",
        "lora_r": 16,
        "epochs": 1,
        "batch_size": args.batch,
        "max_seq_length": args.length,
        "eval_share": 0,
        "quiet": True,
    }


def prepare(args: argparse.Namespace, folder: Path) -> None:
    """Write the rows that fit, and their token ids, which TRL is given."""
    import surefit

    rows = json.loads(DATA.read_text(encoding="utf-8"))
    plan = surefit.check(**options(args, str(DATA)), max_dropped_share=1)
    store, ids = plan.job.train, []
    chosen = sorted(range(len(store)), key=lambda n: int(store.source_row[n]))[: args.pairs]
    kept = [rows[int(store.source_row[n])] for n in chosen]
    for number in chosen:
        row = store.row(number)
        tokens, prompt = row["input_ids"].tolist(), int(row["prompt_length"])
        end = prompt + int(row["first_length"])
        parts = {"prompt_ids": tokens[:prompt], "chosen_ids": tokens[prompt:end]}
        ids.append({**parts, "rejected_ids": tokens[end:]})
    (folder / "rows.json").write_text(json.dumps(kept), encoding="utf-8")
    (folder / "ids.json").write_text(json.dumps(ids), encoding="utf-8")


class Clock:
    """Adds up the seconds of calls, and the CPU time of this process in them."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def timed(self, function: Any) -> Any:
        """Return the function, timed."""

        def call(*given: Any, **named: Any) -> Any:
            began, cpu = time.perf_counter(), time.process_time()
            try:
                return function(*given, **named)
            finally:
                self.seconds += time.perf_counter() - began
                self.cpu_seconds += time.process_time() - cpu

        return call


def run_surefit(args: argparse.Namespace, folder: Path) -> Clock:
    """Time the reference and all steps."""
    import surefit
    from surefit.training import run

    clock = Clock()
    run.with_reference = clock.timed(run.with_reference)
    run.train_rows = clock.timed(run.train_rows)
    with tempfile.TemporaryDirectory() as output:
        data = str(folder / "rows.json")
        cache = str(Path(output) / "cache")
        surefit.train(**options(args, data), output=f"{output}/run", cache=cache)
    return clock


def run_trl(args: argparse.Namespace, folder: Path) -> Clock:
    """Time TRL's training, which computes the reference in each step."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from trl import DPOConfig, DPOTrainer

    path = gguf_path()
    named = {"gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **named)
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=str(path),
        quantization_config=GgufConfig(gguf_file=str(path), dequantize=True),
        dtype=torch.float32,
    )
    model.is_quantized = False
    rows = Dataset.from_list(json.loads((folder / "ids.json").read_text(encoding="utf-8")))
    DPOTrainer._prepare_dataset = lambda self, dataset, *given, **more: dataset
    with tempfile.TemporaryDirectory() as output:
        config = DPOConfig(
            output_dir=output,
            per_device_train_batch_size=args.batch,
            num_train_epochs=1,
            learning_rate=2e-4,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            max_length=None,
            save_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        trainer = DPOTrainer(
            model=get_peft_model(model, LoraConfig(**LORA)),
            args=config,
            train_dataset=rows,
            processing_class=tokenizer,
        )
        clock = Clock()
        clock.timed(trainer.train)()
        return clock


def main() -> None:
    """Let both take turns, and print the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--contender", choices=CONTENDERS)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.contender is not None:
        clock = {"surefit": run_surefit, "TRL": run_trl}[args.contender](args, args.folder)
        figures = {
            "pairs_per_second": args.pairs / clock.seconds,
            "pairs_per_cpu_second": args.pairs / clock.cpu_seconds,
            "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        }
        print(json.dumps(figures))
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        prepare(args, Path(folder))
        sizes = [f"--{name}={getattr(args, name)}" for name in ("pairs", "batch", "length")]
        for turn in range(args.rounds):
            for name in CONTENDERS:
                command = [sys.executable, __file__, "--contender", name, "--folder", folder]
                done = subprocess.run([*command, *sizes], capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
                print(turn + 1, name, found[name][-1], flush=True)
    middle = {
        name: {key: statistics.median(each[key] for each in runs) for key in runs[0]}
        for name, runs in found.items()
    }
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for key in middle["TRL"]:
        ours, theirs = (middle[name][key] for name in CONTENDERS)
        print(f"{key}: {ours:.3g} and {theirs:.3g}, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
