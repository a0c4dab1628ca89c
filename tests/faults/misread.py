"""Files that are misread, copies and leaks: what is learned is not what was meant."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from pictures import draw

from builders import WORDS
from faults.case import Case, evaluated, for_bert, for_mlp, for_vit

CLASSES = "--task text-classification"
NOUNS = [
    *("harbour", "winter", "violin", "engine", "garden", "letter", "mirror", "island", "candle"),
    *("bridge", "lantern", "market", "window", "orchard", "teacher", "captain", "river", "journal"),
    *("mountain", "kitchen", "blanket", "compass", "meadow", "thunder", "velvet", "pocket"),
    *("ribbon", "saddle", "tunnel", "whistle", "anchor", "basket", "curtain", "feather", "hammer"),
]


def prose(count: int, seed: int = 0, length: int = 14) -> list[dict[str, Any]]:
    """Texts of rare words, with classes."""
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        label = choose.choice(["bad", "good"])
        rows.append({"text": " ".join([*choose.choices(NOUNS, k=length), label]), "label": label})
    return rows


def retold(row: dict[str, Any], place: int = 4) -> dict[str, Any]:
    """The row with one word spelled otherwise."""
    words = row["text"].split()
    words[place] += "s"
    return {**row, "text": " ".join(words)}


def prefixed(row: dict[str, Any]) -> dict[str, Any]:
    """The row with a word before it."""
    return {**row, "text": f"please {row['text']}"}


def listed(ending: str) -> dict[str, Any]:
    """A table of files and classes, and the files."""
    names = [f"clips/{'ab'[n % 2]}{n}{ending}" for n in range(20)]
    rows = [{"text": name, "label": "ab"[n % 2]} for n, name in enumerate(names)]
    content: Any = np.zeros((4, 3), np.float32) if ending == ".npy" else b"RIFF0000WAVE"
    return {"a.jsonl": rows, **dict.fromkeys(names, content)}


def measured(**columns: Any) -> list[dict[str, Any]]:
    """A small table with classes, and further columns as functions of row number and class."""
    rows = []
    for n in range(60):
        kind = ("no", "yes")[n * 7 % 5 > 2]
        row = {"size": n * 13 % 29, "age": n * 5 % 17, "kind": kind}
        rows.append({**row, **{name: make(n, kind) for name, make in columns.items()}})
    return rows


def series(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(3 + seed % 4, 3)).astype(np.float32)


FILES = [
    for_bert("SF176 text names sound files", listed(".wav"), CLASSES, column="text"),
    for_bert("SF202 arrays in a column of texts", listed(".npy"), CLASSES),
    for_bert(
        "SF176 text names arrays that are elsewhere",
        listed(".npy")["a.jsonl"],
        CLASSES,
        column="text",
    ),
    for_bert(
        "SF197 column names an array that is missing",
        {name: held for name, held in listed(".npy").items() if "b7" not in name},
        row=7,
        column="text",
    ),
    Case(
        "SF176 prompts name pages",
        {
            "a.csv": "prompt,completion\n" + "".join(f"p{n}.html,yes\n" for n in range(12)),
            **{f"p{n}.html": f"question {n}" for n in range(12)},
        },
        "tiny:llama",
        column="prompt",
    ),
    for_bert(
        "SF173 matrices that may be rows or shards",
        {f"d/rec{n}.npy": np.random.default_rng(n).normal(size=(12, 3)) for n in range(9)},
        # sequences of one step, which is masked: nothing can be learned (SF730)
        "--task feature-pretraining --set features.width=3 --set accept=SF730",
        data="d",
    ),
]

LEAKS = [
    evaluated(
        "SF180 validation rows with one word changed",
        prose(60),
        [*prose(20, 1), *map(retold, prose(60)[:6])],
        row=20,
    ),
    for_bert(
        "SF180 rows augmented before the split",
        [make(row) for row in prose(40) for make in (dict, retold, prefixed)],
    ),
    Case(
        "SF180 instructions augmented before the split",
        [
            {"prompt": made["text"], "completion": made["label"]}
            for row in prose(40)
            for made in (row, retold(row))
        ],
    ),
    for_mlp(
        "SF232 class codes beside class names",
        measured(kind_id=lambda n, kind: 7 + 3 * (kind == "yes")),
        "--task tabular-classification --set columns.label=kind",
        column="kind_id",
    ),
    for_mlp(
        "SF232 a score that decides the class",
        measured(score=lambda n, kind: n * 11 % 31 / 62 + (kind == "yes") / 2),
        "--task tabular-classification --set columns.label=kind",
        column="score",
    ),
]

HEALTHY = [
    for_bert(
        "not SF173: class folders of arrays",
        {f"d/{'ab'[n % 2]}/{n}.npy": series(n) + n % 2 for n in range(30)},
        data="d",
    ),
    for_bert(
        "one array per row",
        {f"d/{n}.npy": series(n) for n in range(12)},
        options="--task feature-pretraining",
        data="d",
        also=("is one row",),
    ),
    for_bert(
        "a text file per class",
        {
            "rt.pos": "".join(f"{row['text']}\n" for row in prose(30)),
            "rt.neg": "".join(f"{row['text']}\n" for row in prose(20, 1)),
        },
        CLASSES,
        data="rt.pos rt.neg",
        also=("The classes are",),
    ),
    for_vit(
        "one image per array file",
        {f"d/{'ab'[n % 2]}/{n}.npy": draw("disc", n, 16, 16) for n in range(20)},
        data="d",
    ),
    for_bert(
        "one vector per array file",
        {f"d/{n}.npy": series(n)[0] for n in range(20)},
        "--task feature-pretraining --set features.width=1",
        data="d",
        also=("is one row",),
    ),
    for_bert(
        "unlabelled texts beside the classes",
        {
            **{f"d/{row['label']}/{n}.txt": row["text"] for n, row in enumerate(prose(30))},
            **{f"d/unsup/{n}.txt": row["text"] for n, row in enumerate(prose(9, 1))},
        },
        data="d",
        also=("is not read",),
    ),
    for_vit(
        "unlabelled images beside the classes",
        {
            f"d/{folder}/{n}.png": draw(shape, n, 16, 16)
            for folder, shape in (("a", "disc"), ("b", "frame"), ("Unlabeled", "stripes"))
            for n in range(8)
        },
        data="d",
        also=("is not read",),
    ),
    for_bert(
        "folder of a text file per class",
        {
            f"d/{name}.txt": "".join(f"{row['text']}\n" for row in prose(20, seed))
            for seed, name in enumerate(("mail", "news", "talk"))
        },
        CLASSES,
        data="d",
        also=("The classes are",),
    ),
    Case(
        "prompts name text files",
        {
            "a.csv": "prompt,completion\n" + "".join(f"p{n}.txt,yes {n}\n" for n in range(12)),
            **{f"p{n}.txt": f"question {w}" for n, w in enumerate(NOUNS[:12])},
        },
        "tiny:llama",
        also=("in place of the names",),
    ),
    for_bert(
        "not SF176: texts that mention files",
        {
            "a.jsonl": [
                {"text": f"open notes.txt and read {w} {n}", "label": "ab"[n % 2]}
                for n, w in enumerate(NOUNS)
            ],
            "notes.txt": "x",
        },
    ),
    Case(
        "not SF180: questions of one template",
        [
            {
                "prompt": f"Tom has {n} apples and eats {n % 3} of them, how many are left?",
                "completion": str(n - n % 3),
            }
            for n in range(3, 60)
        ],
    ),
    Case(
        "slots of one template",
        [
            {
                "prompt": f"Please translate the word {noun} from English into Spanish for me",
                "completion": f"{noun[::-1]}o",
            }
            for noun in NOUNS
        ],
    ),
    Case(
        "boilerplate before each text",
        [
            {
                "prompt": "You are a careful assistant. Answer the question below in one word "
                f"and do not explain anything. Question: {' '.join(w[::-1] for w in pair)}",
                "completion": pair[0],
            }
            for pair in zip(NOUNS, NOUNS[5:], strict=False)
        ],
    ),
    for_bert(
        "short texts that recur",
        [{"text": f"{a} {b} {c}", "label": a} for a in WORDS[:3] for b in WORDS for c in WORDS[:4]],
    ),
    for_mlp(
        "a strong column that does not decide",
        measured(strong=lambda n, kind: n % 10 + 6 * (kind == "yes")),
        "--task tabular-classification --set columns.label=kind",
    ),
]
