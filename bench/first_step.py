"""CPU seconds to the end of the first optimizer step: surefit beside TRL's SFTTrainer.

    python bench/first_step.py [--rows 5000] [--model FOLDER] [--repeats 3]

Both train LoRA (r = 8, all linear layers) on the same prompts and completions, from a new process
with an empty cache; surefit plans, checks and rehearses the run before that step. The contenders
alternate. Without --model, a tiny untrained Llama is made. All files are temporary.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from small import texts, tokenizer

SUREFIT = """
import os, resource, sys, time
import surefit

def tell(event):
    if event["event"] == "step":
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        print("CPU", time.process_time() + children.ru_utime + children.ru_stime, flush=True)
        os._exit(0)

surefit.train(data="rows.jsonl", model=sys.argv[1], lora_r=8, max_steps=3, batch_size=8,
              max_seq_length=512, output="run", callbacks=[tell])
"""
TRL = """
import os, sys, time
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

class Tell(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        print("CPU", time.process_time(), flush=True)
        os._exit(0)

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
settings = SFTConfig(output_dir="trl", max_steps=3, per_device_train_batch_size=8, max_length=512,
                     report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False)
rows = load_dataset("json", data_files="rows.jsonl", split="train", cache_dir="cache")
adapter = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
SFTTrainer(model=sys.argv[1], args=settings, train_dataset=rows, processing_class=tokenizer,
           peft_config=adapter, callbacks=[Tell()]).train()
"""
CONTENDERS = {"surefit": SUREFIT, "TRL": TRL}


def cpu_seconds(code: str, rows: Path, model: Path) -> float:
    """Run one contender in a folder of its own, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        os.link(rows, Path(folder, "rows.jsonl"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment |= {"SUREFIT_CACHE": str(Path(folder, "surefit"))}
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, str(model)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
    told = [line.rsplit("CPU ")[-1] for line in done.stdout.splitlines() if "CPU " in line]
    if not told:
        raise SystemExit(done.stderr[-2000:])
    return float(told[0])


def make_model(folder: Path) -> Path:
    """A tiny untrained Llama with the tokenizer of SmolLM2."""
    from transformers import LlamaConfig, LlamaForCausalLM

    known = tokenizer()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=len(known), num_attention_heads=4, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    known.save_pretrained(folder)
    return folder


def main() -> None:
    """Measure both, alternated, and print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = given.model.resolve() if given.model else make_model(Path(folder, "model"))
        rows = Path(folder, "rows.jsonl")
        parted = (text.partition("\n") for text in texts(given.rows))
        lines = (json.dumps({"prompt": prompt, "completion": rest}) for prompt, _, rest in parted)
        rows.write_text("\n".join(lines), encoding="utf-8")
        taken: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for _ in range(given.repeats):
            for name, code in CONTENDERS.items():
                taken[name].append(cpu_seconds(code, rows, model))
    middle = {name: statistics.median(seconds) for name, seconds in taken.items()}
    for name, seconds in taken.items():
        print(f"{name}: {middle[name]:.1f} CPU s ({min(seconds):.1f} to {max(seconds):.1f})")
    print(f"surefit takes {middle['surefit'] / middle['TRL']:.2f} of TRL's time")


if __name__ == "__main__":
    main()
