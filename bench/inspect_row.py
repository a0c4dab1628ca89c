"""`surefit inspect DATA --row N --model M` against loading the model's tokenizer in plain Python.

Usage: python bench/inspect_row.py DATA MODEL [ROUNDS]. MODEL is a folder or a GGUF file. Both are
fresh processes, in turn; the ratio is that of their median wall times.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PLAIN = """
import sys
from transformers import AutoTokenizer
folder, *file = sys.argv[1:]
AutoTokenizer.from_pretrained(folder, **({"gguf_file": file[0]} if file else {}))
"""


def seconds(command: Sequence[str]) -> float:
    """Wall time of a whole process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Print the times of each round, and the ratio of their medians."""
    data, model, *rounds = sys.argv[1:]
    path = Path(model).absolute()
    tokenizer = [str(path.parent), path.name] if path.suffix == ".gguf" else [model]
    surefit = [sys.executable, "-m", "surefit", "inspect", data, "--row", "3", "--model", model]
    plain = [sys.executable, "-c", PLAIN, *tokenizer]
    times: list[tuple[float, float]] = []
    for number in range(int(rounds[0]) if rounds else 5):
        times.append((seconds(surefit), seconds(plain)))
        print(f"round {number + 1}: surefit {times[-1][0]:.2f} s, plain {times[-1][1]:.2f} s")
    ours, theirs = (statistics.median(each) for each in zip(*times, strict=True))
    print(f"surefit {ours:.2f} s, plain {theirs:.2f} s, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
