"""Time of `surefit check` on 100,000 rows, for a model folder without weights.

    python bench/check_time.py [--rows 100000] [--page docs/fit.md]

The model is a folder with the config of Qwen3-0.6B and the tokenizer of SmolLM2, and no weights.
The first check reads every row. Before the second one, the middle of the file is overwritten with
zeros and its modification time restored: a check that read the rows again would fail. All files
are temporary.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
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
    arguments.add_argument("--page", type=Path)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = "\n".join(measure(Path(folder), given.rows))
    print(table)
    if given.page is not None:
        text = given.page.read_text(encoding="utf-8")
        head, tail = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
        given.page.write_text(f"{head}{MARKS[0]}\n{table}\n{MARKS[1]}{tail}", encoding="utf-8")


def measure(folder: Path, num_rows: int) -> list[str]:
    """The lines of the table."""
    model = folder / "qwen3-0.6b"
    tokenizer().save_pretrained(model)
    (model / "config.json").write_text(json.dumps(QWEN3), encoding="utf-8")
    for name, count in (("rows", num_rows), ("few", 200)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for text in texts(count):
                prompt, _, completion = text.partition("\n")
                file.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")
    cases: list[tuple[str, list[str]]] = [
        (f"check, {num_rows:,} rows, cold", ["--data", "rows.jsonl"]),
        ("the same, from the cache", ["--data", "rows.jsonl"]),
        (
            "LoRA r = 16, `max_seq_length` 512, limit 8 GB, 200 rows",
            ["--data", "few.jsonl", "--max-seq-length", "512", "--max-memory-gb", "8"],
        ),
    ]
    lines = [
        f"{os.cpu_count()} cores, Python {platform.python_version()}, no GPU.",
        "",
        "| | seconds | predicted peak | fits |",
        "| --- | --- | --- | --- |",
    ]
    for name, options in cases:
        seconds, found = check(folder, ["--model", str(model), "--lora-r", "16", *options])
        peak = found["memory"]["predicted_peak_bytes"] / 1e9
        shown = "yes" if found["memory"]["fits"] else "no"
        lines.append(f"| {name} | {seconds:.1f} | {peak:.2f} GB | {shown} |")
        if any(
            each["severity"] == "error" and each["code"] != "SF400" for each in found["findings"]
        ):
            raise SystemExit(f"{name}: {found['findings']}")
        blank_middle(folder / "rows.jsonl")
    return lines


def blank_middle(path: Path) -> None:
    """Overwrite the middle of a file; its size and modification time stay the same."""
    about = path.stat()
    with path.open("r+b") as file:
        file.seek(about.st_size // 2)
        file.write(bytes(1000))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def check(folder: Path, options: list[str]) -> tuple[float, dict[str, Any]]:
    """The seconds of a whole `surefit check` process, and what it printed as JSON."""
    command = [sys.executable, "-m", "surefit", "check", *options, "--json"]
    environment = {**os.environ, "SUREFIT_CACHE": str(folder / "cache")}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode > 1:
        raise SystemExit(done.stderr[-2000:])
    return seconds, dict(json.loads(done.stdout))


if __name__ == "__main__":
    main()
