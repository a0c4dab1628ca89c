"""Rows whose shapes are fine and whose meaning is not: what the mechanisms of `checks/` find."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from faults.case import Case, for_bert, for_mlp, for_vit

NOUNS = (
    *("river", "train", "market", "window", "garden", "letter"),
    *("engine", "mountain", "doctor", "ticket", "bridge", "candle"),
)
TRANSLATED = (
    *("река", "поезд", "рынок", "окно", "сад", "письмо"),
    *("мотор", "гора", "врач", "билет", "мост", "свеча"),
)
GOOD, BAD = ("great", "superb", "lovely", "brilliant"), ("awful", "dreadful", "boring", "poor")
PIXELS = np.random.default_rng(8).integers(0, 256, (120, 8, 8), dtype=np.uint8)
CITIES = (
    *("oslo", "rome", "lima", "cairo", "quito", "delhi"),
    *("tokyo", "paris", "accra", "minsk", "sofia", "dakar"),
)


def reviews(count: int = 320, seed: int = 1) -> list[dict[str, Any]]:
    """Sentences of which some words show the class."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        label = rng.choice(("good", "bad"))
        words = [*rng.choices(NOUNS, k=6), rng.choice(GOOD if label == "good" else BAD)]
        rng.shuffle(words)
        made.append({"text": f"the {' '.join(words)} there", "label": label})
    return made


def tables(count: int = 260, seed: int = 2) -> list[dict[str, Any]]:
    """Measurements of three classes."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        label = rng.choice("abc")
        size = round(rng.gauss({"a": 40, "b": 55, "c": 70}[label], 4), 2)
        made.append({"size": size, "weight": round(rng.gauss(160, 9), 2), "label": label})
    return made


def questions(count: int = 160, seed: int = 3) -> list[dict[str, Any]]:
    """Prompts and answers that share a code and a city."""
    rng = random.Random(seed)
    made = []
    for n in range(count):
        city, noun = rng.choice(CITIES), rng.choice(NOUNS)
        made.append(
            {
                "prompt": f"Where is the {noun} number {n * 37 % 1009} of {city} these days?",
                "completion": f"You will see {noun} {n * 37 % 1009} near {city} station, I hope.",
            }
        )
    return made


def translated(count: int = 160) -> list[dict[str, Any]]:
    """Sentences of two languages with unlike letters."""
    other = dict(zip(NOUNS, TRANSLATED, strict=True))
    rng = random.Random(4)
    made = []
    for n in range(count):
        words = rng.sample(NOUNS, 4)
        made.append(
            {
                "source": f"{' '.join(words)} {n}",
                "target": f"{' '.join(other[word] for word in words)} {n}",
            }
        )
    return made


def tagged(count: int = 120) -> list[dict[str, Any]]:
    """Sentences with places of one or two words, in BIO."""
    rng = random.Random(6)
    made = []
    for _ in range(count):
        words, tags = [], []
        for _ in range(2):
            plain = rng.choices(NOUNS, k=3)
            place = rng.sample(CITIES, rng.choice((1, 2)))
            words += plain + place
            tags += ["O"] * 3 + ["B-LOC", "I-LOC"][: len(place)]
        made.append({"tokens": words, "tags": tags})
    return made


def changed(rows: list[dict[str, Any]], change: Any, every: int = 9) -> list[dict[str, Any]]:
    """Every so many rows with a change."""
    return [change(dict(row)) if n % every == 3 else row for n, row in enumerate(rows)]


def shuffled(rows: list[dict[str, Any]], start: int = 0) -> list[dict[str, Any]]:
    """Rows with the labels of others, from a row on."""
    labels = [row["label"] for row in rows[start:]]
    random.Random(7).shuffle(labels)
    late = [{**row, "label": label} for row, label in zip(rows[start:], labels, strict=True)]
    return rows[:start] + late


def shifted(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Rows with the value of the row before."""
    return [{**row, key: rows[n - 1][key]} for n, row in enumerate(rows)]


def moved(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its tags one place on."""
    return {**row, "tags": [row["tags"][-1], *row["tags"][:-1]]}


CASES = [
    for_bert("SF226 labels that belong to other rows", shuffled(reviews())),
    for_mlp(
        "SF226 one class under two names",
        [
            {**row, "label": "a2" if row["label"] == "a" and n % 2 else row["label"]}
            for n, row in enumerate(tables(480))
        ],
    ),
    Case("SF227 answers moved by one row", shifted(questions(), "completion")),
    Case(
        "SF227 sentences exchanged with their translations",
        changed(translated(), lambda r: {"source": r["target"], "target": r["source"]}),
        "tiny:t5",
    ),
    for_bert(
        "SF228 entities that begin with I",
        changed(tagged(), lambda r: {**r, "tags": [t.replace("B-", "I-") for t in r["tags"]]}),
    ),
    for_bert("SF228 tags moved by one word", changed(tagged(), moved)),
    for_bert(
        "SF229 capital letters in one class",
        [
            {**row, "text": row["text"].upper() if row["label"] == "bad" else row["text"]}
            for row in reviews()
        ],
    ),
    for_bert(
        "SF229 a word of its own before each class",
        [{**row, "text": f"[{row['label'][0]}1] {row['text']}"} for row in reviews()],
    ),
    for_mlp("SF244 -999 in a column", changed(tables(), lambda r: {**r, "weight": -999.0})),
    for_mlp(
        "SF244 a unit 1000 times smaller",
        changed(tables(), lambda r: {**r, "weight": r["weight"] * 1000}),
    ),
    Case(
        "SF243 tokens of a chat template",
        changed(questions(), lambda r: {**r, "completion": f"{r['completion']}<|im_end|>"}),
    ),
    Case(
        "SF243 the next turn in an answer",
        changed(questions(), lambda r: {**r, "completion": f"{r['completion']}\nHuman: And?"}),
    ),
    Case(
        "SF244 answers given twice",
        changed(questions(), lambda r: {**r, "completion": f"{r['completion']} " * 2}),
    ),
    Case(
        "SF244 numbers in place of prompts",
        changed(questions(), lambda r: {**r, "prompt": r["prompt"].split()[5]}),
    ),
    for_bert(
        "SF244 texts of one class cut off",
        [
            {**r, "text": (f"{r['text']} " * 2)[: 61 if r["label"] == "bad" else None]}
            for r in reviews()
        ],
    ),
    Case(
        "SF227 targets of two words",
        changed(translated(), lambda r: {**r, "target": " ".join(r["target"].split()[:1])}),
        "tiny:t5",
    ),
    Case(
        "SF227 answers that are not in their texts",
        [
            {**row, "completion": row["prompt"].split()[3] if n % 7 else "basilica"}
            for n, row in enumerate(questions())
        ],
    ),
    for_mlp(
        "SF244 a date that stands for none",
        [
            {**row, "seen": f"2024-{1 + n % 12:02d}-{1 + n % 28:02d}" if n % 9 else "1900-01-01"}
            for n, row in enumerate(tables())
        ],
        column="seen",
    ),
    for_mlp(
        "SF244 years of two digits",
        [{**r, "year": 1960 + n % 47 - 1900 * (n % 8 == 2)} for n, r in enumerate(tables())],
        column="year",
    ),
    for_mlp(
        "SF234 categories in two spellings",
        [
            {**r, "site": "North " if n % 20 == 7 else ("north", "south")[n * 7 % 5 % 2]}
            for n, r in enumerate(tables())
        ],
        column="site",
    ),
    for_mlp(
        "SF232 a column made from the target",
        [{**r, "root": round(r["size"] ** 0.5, 2)} for r in tables()],
        "--task regression --set columns.label=size --set ignore=label",
        column="root",
    ),
    for_vit(
        "SF185 dark validation images",
        {
            "a.npz": {"image": PIXELS, "label": np.arange(120) % 3},
            "e.npz": {"image": PIXELS[:60, ::-1] // 3, "label": np.arange(60) % 3},
        },
        "--eval-data e.npz",
    ),
    for_bert(
        "SF185 short validation texts",
        [
            {**r, "split": "dev", "text": r["text"][:9]}
            if n % 4 == 1
            else {**r, "split": "train", "text": r["text"] * (1 + n % 3)}
            for n, r in enumerate(reviews())
        ],
    ),
    for_bert(
        "SF226 validation labels exchanged",
        [
            {
                **r,
                "split": ("train", "dev")[n % 4 == 1],
                "label": r["label"] if n % 4 != 1 else {"good": "bad", "bad": "good"}[r["label"]],
            }
            for n, r in enumerate(reviews(400))
        ],
    ),
]
HEALTHY = [
    for_bert("not SF226 SF229: sentences of two classes", reviews()),
    for_mlp("not SF226 SF244: measurements of three classes", tables()),
    Case("not SF227: prompts and answers with common words", questions()),
    Case("not SF227: sentences and translations", translated(), "tiny:t5"),
    for_bert("not SF228: places in BIO", tagged()),
    for_bert(
        "not SF185 SF226: validation rows drawn at random",
        [{**r, "split": ("train", "dev")[n % 4 == 1]} for n, r in enumerate(reviews())],
        also=("Column 'split' divides the rows",),
    ),
    for_mlp(
        "not SF234 SF244: dates, sites and years in one form",
        [
            {
                **row,
                "seen": f"2024-{1 + n % 12:02d}-{1 + n % 28:02d}",
                "site": ("north", "south")[n * 7 % 5 % 2],
                "year": 1960 + n * 11 % 47,
            }
            for n, row in enumerate(tables())
        ],
    ),
    for_bert(
        "not SF229: long and short sentences of both classes",
        [{**r, "text": r["text"] * (1 + n % 3)} for n, r in enumerate(reviews())],
    ),
]
