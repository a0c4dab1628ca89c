"""Time and memory of `surefit check` on 200, 100,000 and 1,000,000 rows; and what it may cost.

    python bench/check_time.py [--rows 100000] [--short-rows 1000000] [--page docs/fit.md]
    python bench/check_time.py --against CHECKOUT [--repeats 3] [--only WORDS] [--page docs/fit.md]

Rows are checked with `tiny:llama`, and with a folder that has the config of Qwen3-0.6B, the
tokenizer of SmolLM2, and no weights. The short rows have 220 bytes each; `--short-rows 0` leaves
them out. The first check of a file reads every row, the second uses the cache.

With `--against`, each aim is a ratio: to another checkout of surefit, to the imports alone, to the
steps of the run, to TRL. The sides alternate, on one thread; a ratio is that of the medians.
CPU seconds are those of all threads and children. All files are temporary.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from first_step import CONTENDERS, cpu_seconds, make_model
from small import texts, tokenizer
from trainers import gguf_path

QWEN3 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
MARKS = "<!-- from bench/check_time.py -->", "<!-- end of check_time -->"
AIM_MARKS = "<!-- from bench/check_time.py --against -->", "<!-- end of aims -->"
HERE = Path(__file__).resolve().parents[1]
IMPORTS = """
import sys
sys.modules["bitsandbytes"] = None  # as in an environment without it
import torch, peft
from transformers import AutoTokenizer, LlamaForCausalLM
"""
Side = Callable[[], float]


def main() -> None:
    """Measure, print the table, and write it into the page if one is named."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--short-rows", type=int, default=1_000_000)
    arguments.add_argument("--against", type=Path, help="another checkout, with a .venv")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--only", default="", help="aims with these words in their name")
    arguments.add_argument("--page", type=Path)
    given = arguments.parse_args()
    marks = MARKS if given.against is None else AIM_MARKS
    with tempfile.TemporaryDirectory() as folder:
        if given.against is None:
            lines = measure(Path(folder), given.rows, given.short_rows)
        else:
            lines = measure_aims(Path(folder), given.against.resolve(), given.repeats, given.only)
    table = "\n".join(lines)
    print(table)
    if given.page is not None:
        text = given.page.read_text(encoding="utf-8")
        head, tail = text.split(marks[0])[0], text.split(marks[1])[1]
        given.page.write_text(f"{head}{marks[0]}\n{table}\n{marks[1]}{tail}", encoding="utf-8")


@dataclass(frozen=True)
class Aim:
    """Two sides whose CPU seconds are compared, and the ratio that is aimed at."""

    name: str
    aim: float
    ours: Side
    other: Side

    def row(self, repeats: int) -> str:
        """Measure both sides, alternated; a row of the table."""
        taken = [(self.ours(), self.other()) for _ in range(repeats)]
        ours, other = (statistics.median(side) for side in zip(*taken, strict=True))
        return f"| {self.name} | {ours:.1f} | {other:.1f} | {ours / other:.2f} | {self.aim:g} |"


def measure_aims(folder: Path, against: Path, repeats: int, only: str) -> list[str]:
    """Return the lines of the table of aims; of those alone whose name has `only` in it."""
    model, tiny = save_smollm(folder / "smollm"), make_model(folder / "tiny")
    for count in (60, 91, 200, 5000, 50_000):
        write_rows(folder / f"{count}.jsonl", count)

    def surefit(checkout: Path, cache: str, *options: str) -> Side:
        return lambda: cpu_of(command_of(checkout), folder, cache, *options)

    def first_step(name: str, rows: int, model: Path) -> Side:
        return lambda: cpu_seconds(CONTENDERS[name], folder / f"{rows}.jsonl", model)

    def check(checkout: Path, rows: int, *options: str, cache: str = "") -> Side:
        return surefit(checkout, cache, "check", "--data", f"{rows}.jsonl", "--model", *options)

    imports: Side = lambda: cpu_of([sys.executable, "-c", IMPORTS], folder, "")  # noqa: E731
    smollm, old = str(model), check(against, 91, str(model))
    cpu_of(command_of(HERE), folder, "kept", "check", "--data", "91.jsonl", "--model", smollm)
    aims = [
        Aim(
            "check of 200 rows, tiny Llama with LoRA, to the imports of torch, peft and Llama",
            1.25,
            check(HERE, 200, str(tiny), "--lora-r", "8"),
            imports,
        ),
        Aim("check of 91 rows with SmolLM2-135M", 0.3, check(HERE, 91, smollm), old),
        Aim("the same check, the second time", 0.15, check(HERE, 91, smollm, cache="kept"), old),
        Aim(
            "check of 50,000 rows, tiny:llama",
            0.5,
            check(HERE, 50_000, "tiny:llama"),
            check(against, 50_000, "tiny:llama"),
        ),
        *(
            Aim(
                f"to the end of step 1, {rows:,} rows, {name}, to TRL",
                1.0,
                first_step("surefit", rows, place),
                first_step("TRL", rows, place),
            )
            for rows, name, place in ((5000, "tiny Llama", tiny), (91, "SmolLM2-135M", model))
        ),
    ]
    lines = [
        f"{os.cpu_count()} cores, Python {platform.python_version()}, no GPU; {repeats} alternated "
        f"pairs, load average {os.getloadavg()[0]:.1f} before the first; CPU seconds.",
        "",
        "| | seconds | compared with | ratio | aim |",
        "| --- | --- | --- | --- | --- |",
    ]
    for aim in aims:
        if only in aim.name:
            lines.append(aim.row(repeats))
            print(lines[-1], flush=True)
    name = "all of `train`, 60 rows, one epoch of SmolLM2-135M, to its steps (wall clock)"
    if only in name:
        seconds, steps = whole_command(folder, smollm)
        lines.append(f"| {name} | {seconds:.1f} | {steps:.1f} | {seconds / steps:.2f} | 1.4 |")
    return lines


def command_of(checkout: Path) -> list[str]:
    """Return the command of a checkout, run by its own environment."""
    own = checkout / ".venv" / "bin" / "python"
    return [str(own if own.exists() else sys.executable), "-m", "surefit"]


def cpu_of(command: list[str], folder: Path, cache: str, *options: str) -> float:
    """Return the CPU seconds of a process and its children; without `cache`, with an empty one."""
    with tempfile.TemporaryDirectory(dir=folder) as empty:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment["SUREFIT_CACHE"] = str(folder / cache if cache else empty)
        checkout = Path(command[0]).parents[2]
        environment["PYTHONPATH"] = str(checkout if (checkout / "surefit").is_dir() else HERE)
        began = children_seconds()
        done = subprocess.run(
            [*command, *options], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
        return children_seconds() - began


def whole_command(folder: Path, model: str) -> tuple[float, float]:
    """Return the seconds of `surefit train`, and of its steps alone."""
    options = ["train", "--data", "60.jsonl", "--model", model, "--epochs", "1", "--output", "run"]
    began = time.perf_counter()
    cpu_of(command_of(HERE), folder, "", *options)
    seconds = time.perf_counter() - began
    events = (folder / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    steps = (each for each in map(json.loads, events) if each["event"] == "step")
    return seconds, sum(each["seconds"] for each in steps)


def save_smollm(folder: Path) -> Path:
    """Save SmolLM2-135M-Instruct, dequantized, as transformers saves a model."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    path = gguf_path()
    plain = GgufConfig(gguf_file=str(path), dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=str(path), quantization_config=plain, dtype=torch.float32
    )
    model.is_quantized = False
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def write_rows(path: Path, count: int) -> None:
    """Write questions and answers of gsm8k as prompts and completions."""
    with path.open("w", encoding="utf-8") as file:
        for text in texts(count):
            prompt, _, completion = text.partition("\n")
            file.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")


@dataclass(frozen=True)
class Checked:
    """What one `surefit check` process took, and what it printed as JSON."""

    seconds: float
    cpu_seconds: float
    found: dict[str, Any]

    def cells(self) -> str:
        """The columns of the table."""
        memory = self.found["memory"]
        peak = f"{memory['predicted_peak_bytes'] / 1e9:.2f} GB"
        fits = "yes" if memory["fits"] else "no"
        return f"{self.seconds:.1f} | {self.cpu_seconds:.1f} | {peak} | {fits}"


def measure(folder: Path, num_rows: int, num_short: int) -> list[str]:
    """The lines of the table."""
    model = folder / "qwen3-0.6b"
    tokenizer().save_pretrained(model)
    (model / "config.json").write_text(json.dumps(QWEN3), encoding="utf-8")
    for name, count in (("rows", num_rows), ("few", 200)):
        write_rows(folder / f"{name}.jsonl", count)
    adapted = ["--model", str(model), "--lora-r", "16", "--data"]
    tiny = ["--model", "tiny:llama", "--data"]
    cases: list[tuple[str, list[str]]] = [
        ("check, 200 rows, tiny:llama", [*tiny, "few.jsonl"]),
        (f"check, {num_rows:,} rows, tiny:llama, cold", [*tiny, "rows.jsonl"]),
        ("the same, from the cache", [*tiny, "rows.jsonl"]),
        (f"check, {num_rows:,} rows, Qwen3-0.6B, LoRA, cold", [*adapted, "rows.jsonl"]),
        ("the same, from the cache", [*adapted, "rows.jsonl"]),
        (
            "LoRA r = 16, `max_seq_length` 512, limit 8 GB, 200 rows",
            [*adapted, "few.jsonl", "--max-seq-length", "512", "--max-memory-gb", "8"],
        ),
    ]
    if num_short:
        size = write_short_rows(folder / "short.jsonl", num_short)
        name = f"check, {num_short:,} short rows ({size / 1e6:.0f} MB), tiny:llama, cold"
        cases.append((name, [*tiny, "short.jsonl"]))
    load = os.getloadavg()[0]
    lines = [
        f"{os.cpu_count()} cores, Python {platform.python_version()}, no GPU; "
        f"load average {load:.1f} before the first case.",
        "",
        "| | seconds | CPU seconds | predicted peak | fits |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, options in cases:
        checked = check(folder, options)
        lines.append(f"| {name} | {checked.cells()} |")
        if any(
            each["severity"] == "error" and each["code"] != "SF400"
            for each in checked.found["findings"]
        ):
            raise SystemExit(f"{name}: {checked.found['findings']}")
    return lines


def write_short_rows(path: Path, count: int) -> int:
    """Rows of a prompt and an answer in made-up words; the size of the file."""
    draw = random.Random(0)
    syllables = [a + b for a in "bcdfghjklmnprstvz" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(30_000)]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            prompt = " ".join(draw.choices(words, k=draw.randint(5, 18)))
            completion = " ".join(draw.choices(words, k=draw.randint(6, 28)))
            file.write(json.dumps({"prompt": f"{prompt}?", "completion": f"{completion}."}) + "\n")
    return path.stat().st_size


def check(folder: Path, options: list[str]) -> Checked:
    """Run a whole `surefit check` process."""
    command = [sys.executable, "-m", "surefit", "check", *options, "--json"]
    environment = {**os.environ, "SUREFIT_CACHE": str(folder / "cache")}
    environment["PYTHONPATH"] = str(HERE)
    began, used = time.perf_counter(), children_seconds()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode > 1:
        raise SystemExit(done.stderr[-2000:])
    return Checked(seconds, children_seconds() - used, dict(json.loads(done.stdout)))


def children_seconds() -> float:
    """CPU seconds of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
