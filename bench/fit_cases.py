"""The model and the data of a case of `bench/fit_processes.py`, as files that a user would have."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fit_draw import FAMILIES
from fit_models import FEATURES, WORDS

STEPS = 3
EVAL_ROWS = 12
MODULE = """
import sys
sys.path.insert(0, {bench!r})
from fit_draw import FAMILIES

def make():
    return FAMILIES[{family!r}].model({width}, {layers})
"""


def write_case(case: dict[str, Any], folder: Path) -> list[str]:
    """Write the files of a case; returns the arguments of `surefit` that train it."""
    torch.manual_seed(0)
    family = FAMILIES[case["arch"]]
    kind = "classes" if family.input == "text" and family.is_classifier else family.input
    count = (STEPS * case["accum"] * case["processes"] * case["rows"], EVAL_ROWS)
    sides = zip(("train", "eval"), count, strict=True)
    train, held = (_WRITERS[kind](folder / name, case["length"], rows) for name, rows in sides)
    options = {
        "batch_size": case["rows"],
        "grad_accum": case["accum"],
        "parallel": case["parallel"],
        "checkpointing": str(case["ckpt"]).lower(),
        "lora.r": 16 if case["lora"] else 0,
        "padding_free": case["joined"],
        "lr": 1e-4,
        "generate.rows": 0,
        "task": TASKS[kind],
    }
    if kind in ("text", "classes", "seq2seq"):
        options["max_seq_length"] = case["length"]
    settings = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    model = _write_model(case, folder)
    return ["--data", train, "--eval-data", held, "--model", model, "--epochs", "1", *settings]


def _write_model(case: dict[str, Any], folder: Path) -> str:
    family, place = FAMILIES[case["arch"]], folder / "model"
    if family.input == "features":
        sizes = {"family": case["arch"], "width": case["width"], "layers": case["layers"]}
        bench = str(Path(__file__).parent)
        (folder / "own.py").write_text(MODULE.format(bench=bench, **sizes))
        return "own:make"
    family.model(case["width"], case["layers"]).save_pretrained(place)
    if family.input == "images":
        from transformers import ViTImageProcessor

        ViTImageProcessor(size={"height": 224, "width": 224}).save_pretrained(place)
    else:
        _write_tokenizer(place)
    return str(place)


def _write_tokenizer(place: Path) -> None:
    """One token per word, with the vocabulary that the models have."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[CLS]", "[SEP]", "[MASK]")
    words = {word: number for number, word in enumerate([*special, *map(_word, range(WORDS - 7))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
    named = {f"{name}_token": token for name, token in zip(names, special, strict=True)}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(place)


def _word(number: int) -> str:
    return f"w{number}"


def _text(choose: random.Random, length: int) -> str:
    """Words of a text; most rows are shorter than the longest."""
    count = choose.randint(length // 2, length + 8)
    return " ".join(_word(choose.randrange(WORDS - 7)) for _ in range(count))


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path = path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _write_texts(path: Path, length: int, rows: int) -> str:
    choose = random.Random(path.name)
    return _write_lines(path, [{"text": _text(choose, length)} for _ in range(rows)])


def _write_classes(path: Path, length: int, rows: int) -> str:
    choose = random.Random(path.name)
    texts = ({"text": _text(choose, length)} for _ in range(rows))
    return _write_lines(path, [{**text, "label": "ab"[n % 2]} for n, text in enumerate(texts)])


def _write_pairs(path: Path, length: int, rows: int) -> str:
    choose = random.Random(path.name)
    pairs = [{name: _text(choose, length) for name in ("source", "target")} for _ in range(rows)]
    return _write_lines(path, pairs)


def _write_features(path: Path, length: int, rows: int) -> str:
    draw = np.random.default_rng(rows)
    lengths = draw.integers(length // 2, length + 1, rows)
    values = draw.normal(size=(int(lengths.sum()), FEATURES)).astype("float32")
    path = path.with_suffix(".npz")
    np.savez(path, features=values, lengths=lengths, label=np.arange(rows) % 2)
    return str(path)


def _write_images(path: Path, side: int, rows: int) -> str:
    from PIL import Image

    draw = np.random.default_rng(rows)
    for number in range(rows):
        place = path / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png", compress_level=0)
    return str(path)


_WRITERS = {
    "text": _write_texts,
    "classes": _write_classes,
    "seq2seq": _write_pairs,
    "features": _write_features,
    "images": _write_images,
}
TASKS = {
    "text": "causal-lm",
    "classes": "text-classification",
    "seq2seq": "seq2seq",
    "features": "feature-classification",
    "images": "image-classification",
}
