"""The runs on real data: one list for `bench/real_runs.py` and for the slow tests.

In commands, `$DATA` is ../shared/data, `$WEIGHTS` ../shared/weights, `$MINILM` the folder of
all-MiniLM-L6-v2, `$SMOLLM` the GGUF file of SmolLM2-135M-Instruct, and `$WORK` a fresh folder with
what `prepare` has put there.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import real_run_goals as goals

if TYPE_CHECKING:
    from real_run_goals import Goal

PAIRS = 300
CLASSES = (
    "top",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
)


@dataclass(frozen=True)
class RealRun:
    """One run: its command, what it must reach, and how it can be repeated otherwise."""

    name: str
    data: tuple[str, ...]
    """What `--data` names."""
    options: str
    """The rest of `surefit train`."""
    goals: tuple[Goal, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    """Role and column, as the data is opened: what has another name when the run is repeated."""
    eval_data: tuple[str, ...] = ()
    """Rows given to `--eval-data`."""
    test_data: tuple[str, ...] = ()
    """Rows to evaluate on afterwards; those held out, or eval_data, if left out."""
    new_data: tuple[str, ...] = ()
    """Rows that the run has not seen, for the goals to predict on."""
    prepare: Callable[[Path, Path], None] | None = None
    """Puts files into the work folder, from the folder of shared data."""
    tested: bool = True
    """Whether the slow tests run it, too."""


def first_pairs(data: Path, work: Path) -> None:
    """The first sentence pairs of multi30k, as two gzipped texts."""
    for language in ("en", "de"):
        source = data / "multi30k" / f"train.{language}.gz"
        with gzip.open(source, "rt", encoding="utf-8") as lines:
            text = "".join(islice(lines, PAIRS))
        (work / f"pairs.{language}.gz").write_bytes(gzip.compress(text.encode()))


def class_folders(data: Path, work: Path) -> None:
    """Pictures of fashion-mnist as PNG files, in a folder per class."""
    import numpy as np
    from PIL import Image

    def read(name: str, header: int) -> np.ndarray:
        raw = gzip.decompress((data / "fashion-mnist" / name).read_bytes())
        return np.frombuffer(raw, np.uint8, offset=header)

    pictures = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    labels = read("t10k-labels-idx1-ubyte.gz", 8)
    for number, name in enumerate(CLASSES):
        folder = work / "fashion" / name
        folder.mkdir(parents=True)
        for place in np.flatnonzero(labels == number):
            Image.fromarray(pictures[place]).save(folder / f"{place}.png")


def few_pictures(data: Path, work: Path) -> None:
    """The first 240 pictures of fashion-mnist as arrays, and the next 16."""
    import numpy as np

    from surefit.data.open_data import open_table

    table = open_table(str(data / "fashion-mnist" / "t10k-images-idx3-ubyte.gz"))
    for name, rows in (("train", range(240)), ("new", range(240, 256))):
        chosen = list(table.rows(list(rows)))
        np.savez(
            work / f"{name}.npz", **{c: np.stack([row[c] for row in chosen]) for c in table.columns}
        )


def first_rows(folder: str, **files: tuple[str, int]) -> Callable[[Path, Path], None]:
    """Puts the first rows of JSON lines into the work folder, under other names."""

    def prepare(data: Path, work: Path) -> None:
        for name, (file, count) in files.items():
            lines = (data / folder / file).read_text("utf-8").splitlines(keepends=True)
            (work / f"{name}.jsonl").write_text("".join(lines[:count]), "utf-8")

    return prepare


CHAT = (
    "--model $SMOLLM --lora-r 16 --epochs 1 --batch-size 4 --max-seq-length 512 "
    "--set eval_at_start=true --set generate.rows=16 --set generate.max_new_tokens=96"
)
FASHION = "$DATA/fashion-mnist/t10k-images-idx3-ubyte.gz"
XQUAD = {"prompt": "question", "answer": "answer"}
WIKITEXT = "--max-seq-length {} --set max_dropped_share=0.6"

RUNS: tuple[RealRun, ...] = (
    RealRun(
        "trec, MiniLM",
        ("$DATA/trec/TREC.train",),
        "--model $MINILM --task text-classification --set columns.label=label --epochs 2 "
        "--batch-size 16 --lr 1e-4",
        (goals.metric("accuracy", 0.85),),
        {"text": "text", "label": "label"},
        test_data=("$DATA/trec/TREC.test",),
    ),
    RealRun(
        "sms-spam, MiniLM",
        ("$DATA/sms-spam/sms.tsv",),
        "--model $MINILM --task text-classification --epochs 1 --batch-size 16 --lr 1e-4 "
        "--max-seq-length 64 --set eval_share=0.2",
        (goals.metric("macro_f1", 0.95),),
        {"text": "text", "label": "label"},
    ),
    RealRun(
        "wnut17, MiniLM",
        ("$DATA/wnut17/wnut17train.conll",),
        "--model $MINILM --epochs 1 --batch-size 16 --lr 1e-4",
        (goals.metric("entity_f1", 0.25),),
        {"tokens": "tokens", "tags": "tags"},
        eval_data=("$DATA/wnut17/emerging.dev.conll",),
    ),
    RealRun(
        "fashion-mnist, a small CNN",
        (FASHION,),
        "--model small_cnn:make --epochs 5 --batch-size 64 --lr 3e-3",
        (goals.metric("accuracy", 0.85),),
        {"image": "image", "label": "label"},
    ),
    RealRun(
        "fashion-mnist as PNG, tiny:vit",
        ("$WORK/fashion",),
        "--model tiny:vit --epochs 6 --batch-size 16 --lr 5e-4",
        (goals.metric("accuracy", 0.75),),
        {"image": "image", "label": "label"},
        prepare=class_folders,
    ),
    RealRun(
        "basic-motions, tiny:bert",
        ("$DATA/basic-motions/BasicMotions_TRAIN.ts",),
        "--model tiny:bert --task feature-classification --epochs 60 --batch-size 8 --lr 3e-3 "
        "--set eval_share=0",
        (goals.metric("accuracy", 0.9),),
        {"features": "features", "label": "label"},
        test_data=("$DATA/basic-motions/BasicMotions_TEST.ts",),
    ),
    RealRun(
        "japanese-vowels, tiny:bert",
        ("$DATA/japanese-vowels/JapaneseVowels_TRAIN.ts",),
        "--model tiny:bert --task feature-classification --epochs 20 --batch-size 16 "
        "--set eval_share=0",
        (goals.metric("accuracy", 0.93),),
        {"features": "features", "label": "label"},
        test_data=("$DATA/japanese-vowels/JapaneseVowels_TEST.ts",),
    ),
    RealRun(
        "bike-sharing, tiny:mlp",
        ("$DATA/bike-sharing/hour.csv",),
        "--model tiny:mlp --task regression --set columns.label=cnt "
        "--set ignore=[casual,registered] --epochs 8 --batch-size 128",
        (goals.metric("r2", 0.85),),
        {"label": "cnt", "ignored": "casual", "ignored too": "registered", "date": "dteday"},
    ),
    RealRun(
        "multi30k, tiny:t5, 300 pairs by heart",
        ("$WORK/pairs.en.gz", "$WORK/pairs.de.gz"),
        "--model tiny:t5 --epochs 30 --batch-size 16 --lr 3e-3 --set eval_share=0 "
        f"--set generate.rows={PAIRS}",
        (goals.metric("chrf", 80),),
        {"source": "source", "target": "target"},
        test_data=("$WORK/pairs.en.gz", "$WORK/pairs.de.gz"),
        prepare=first_pairs,
    ),
    RealRun(
        "xquad as sft, tiny:llama",
        ("$DATA/xquad/xquad.en.json",),
        "--model tiny:llama --task sft --max-steps 100 --max-seq-length 384",
        (goals.falls(0.1), goals.FLAT_ROW),
        XQUAD,
    ),
    RealRun(
        "xquad as seq2seq, tiny:t5",
        ("$DATA/xquad/xquad.en.json",),
        "--model tiny:t5 --task seq2seq --max-steps 150 --max-seq-length 384 --lr 3e-3",
        (goals.falls(0.1), goals.FLAT_ROW),
        XQUAD,
    ),
    RealRun(
        "wikitext-2, stories260K",
        ("$DATA/wikitext-2/valid.txt",),
        "--model $WEIGHTS/stories260K --task causal-lm --epochs 2 --lr 2e-3 "
        f"--set eval_at_start=true {WIKITEXT.format(256)}",
        (goals.PERPLEXITY_FALLS,),
        {"text": "text"},
        eval_data=("$DATA/wikitext-2/test.txt",),
    ),
    RealRun(
        "wikitext-2, tiny:bert, masked",
        ("$DATA/wikitext-2/valid.txt",),
        f"--model tiny:bert --task masked-lm --epochs 8 --batch-size 16 {WIKITEXT.format(128)}",
        (goals.BELOW_UNIGRAM,),
        {"text": "text"},
        test_data=("$DATA/wikitext-2/test.txt",),
    ),
    RealRun(
        "fashion-mnist resized, EfficientNet-Lite0",
        ("$WORK/train.npz",),
        "--model efficientnet_lite:make --set image.size=64 --epochs 3 --batch-size 12 --lr 1e-3",
        (goals.falls(0.3), goals.SAME_AGAIN),
        {"image": "image", "label": "label"},
        new_data=("$WORK/new.npz",),
        prepare=few_pictures,
    ),
    RealRun(
        "gsm8k (120 rows), SmolLM2-135M-Instruct, LoRA",
        ("$WORK/train.jsonl",),
        CHAT,
        (goals.LOSS_BEFORE, goals.LOSS_FALLS, goals.F1_BEFORE, goals.F1_RISES),
        {"prompt": "question", "answer": "answer"},
        eval_data=("$WORK/eval.jsonl",),
        prepare=first_rows("gsm8k", train=("train.jsonl", 120), eval=("test.jsonl", 16)),
        tested=False,
    ),
    RealRun(
        "sgd-dialogues (60), SmolLM2-135M-Instruct, LoRA",
        ("$WORK/train.jsonl",),
        CHAT,
        (goals.LOSS_BEFORE, goals.LOSS_FALLS, goals.F1_BEFORE, goals.F1_RISES),
        {"messages": "messages"},
        eval_data=("$WORK/eval.jsonl",),
        prepare=first_rows(
            "sgd-dialogues",
            train=("train.messages.jsonl", 60),
            eval=("dev.messages.jsonl", 16),
        ),
        tested=False,
    ),
)
