"""Time and memory of `surefit check` on 200, 100,000 and 1,000,000 rows.

    python bench/check_time.py [--rows 100000] [--short-rows 1000000] [--page docs/fit.md]

Rows are checked with `tiny:llama`, and with a folder that has the config of Qwen3-0.6B, the
tokenizer of SmolLM2, and no weights. The short rows have 220 bytes each; `--short-rows 0` leaves
them out. The first check of a file reads every row, the second uses the cache.
CPU seconds are those of all threads and children. All files are temporary.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from small import texts, tokenizer

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


def main() -> None:
    """Measure, print the table, and write it into the page if one is named."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--short-rows", type=int, default=1_000_000)
    arguments.add_argument("--page", type=Path)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = "\n".join(measure(Path(folder), given.rows, given.short_rows))
    print(table)
    if given.page is not None:
        text = given.page.read_text(encoding="utf-8")
        head, tail = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
        given.page.write_text(f"{head}{MARKS[0]}\n{table}\n{MARKS[1]}{tail}", encoding="utf-8")


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
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for text in texts(count):
                prompt, _, completion = text.partition("\n")
                file.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")
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
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
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
