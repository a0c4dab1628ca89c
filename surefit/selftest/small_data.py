"""Small data sets with a known answer, written to files that any process can read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

WORDS = ("apple", "bell", "boat", "book", "bread", "chair", "cloud", "coat", "door", "drum")
LABELS = {"up": ("rise", "climb", "ascend"), "down": ("fall", "sink", "descend")}


def write_instructions(folder: Path, num_rows: int = 400, most_words: int = 12) -> Path:
    """Rows of a prompt and its answer: the first word of a list, so that lengths vary."""
    rng = random.Random(0)

    def row() -> dict[str, Any]:
        words = rng.choices(WORDS, k=rng.randint(1, most_words))
        return {"prompt": f"First of: {' '.join(words)}", "completion": words[0]}

    return _write(folder / "instructions.jsonl", [row() for _ in range(num_rows)])


def write_labelled_texts(folder: Path, num_rows: int = 240) -> Path:
    """Texts with a class that one of their words decides."""
    rng = random.Random(0)

    def row() -> dict[str, Any]:
        label = rng.choice(sorted(LABELS))
        words = [*rng.choices(WORDS, k=rng.randint(2, 10)), rng.choice(LABELS[label])]
        rng.shuffle(words)
        return {"text": " ".join(words), "label": label}

    return _write(folder / "labelled.jsonl", [row() for _ in range(num_rows)])


def write_vectors(folder: Path, num_rows: int = 256) -> Path:
    """Four numbers and the class that their sum decides."""
    rng = random.Random(0)

    def row() -> dict[str, Any]:
        values = {name: round(rng.uniform(-1, 1), 4) for name in "abcd"}
        return {**values, "label": "positive" if sum(values.values()) > 0 else "negative"}

    return _write(folder / "vectors.jsonl", [row() for _ in range(num_rows)])


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
