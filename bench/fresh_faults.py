"""Three rounds of 20 faults in public data that no other bench reads: found, hinted or missed.

    python bench/fresh_faults.py --mirror MIRROR --round 1 --out results

Thresholds may be fitted on a round; the next one judges them. Each fault is checked beside its
healthy original with `surefit check`. `python bench/planted.py page` writes the table.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from healthy_sets import (
    Row,
    Source,
    _idx,
    _spoken,
    _table,
    _tagged,
    _text,
)
from planted import LOUD, SHARED, check, judge

Rows = list[Row]
Change = Callable[[Rows, np.random.Generator], Any]


def _frame(name: str, source: Source) -> Iterator[Row]:
    """A table that scikit-learn carries; classes by name."""
    from sklearn import datasets

    made = getattr(datasets, f"load_{name}")(as_frame=True)
    names = getattr(made, "target_names", None)
    for _, row in made.frame.iterrows():
        target = row.pop("target")
        label = str(names[int(target)]) if names is not None else float(target)
        yield {**{k: float(v) for k, v in row.items()}, "label": label}


def _movies(source: Source) -> Iterator[Row]:
    kept = ("US Gross", "Production Budget", "Running Time min", "Major Genre", "IMDB Votes")
    for row in json.loads(source.read("vega/vega-datasets", "data/movies.json")):
        if row["IMDB Rating"] is not None:
            yield {**{name: row[name] for name in kept}, "label": row["IMDB Rating"]}


def _tweets(source: Source) -> Iterator[Row]:
    repository = "t-davidson/hate-speech-and-offensive-language"
    text = _text(source.read(repository, "data/labeled_data.csv"))
    for row in csv.DictReader(io.StringIO(text)):
        yield {"text": row["tweet"], "label": f"c{row['class']}"}


def _reviews(source: Source) -> Iterator[Row]:
    repository = "clairett/pytorch-sentiment-classification"
    for line in _text(source.read(repository, "data/SST2/train.tsv")).splitlines():
        text, _, label = line.rpartition("\t")
        yield {"text": text, "label": "good" if label == "1" else "bad"}


def _tasks(source: Source) -> Iterator[Row]:
    for line in _text(source.read("shared", "self-instruct/seed_tasks.jsonl")).splitlines():
        row = json.loads(line)
        first = row["instances"][0]
        asked = f"{row['instruction']} {first['input']}".strip()
        yield {"prompt": asked, "completion": first["output"]}


def _questions(source: Source) -> Iterator[Row]:
    for article in json.loads(source.read("shared", "xquad/xquad.en.json"))["data"]:
        for part in article["paragraphs"]:
            for each in part["qas"]:
                asked = f"{part['context'][:400]} {each['question']}"
                yield {"prompt": asked, "completion": each["answers"][0]["text"]}


def _pairs(source: Source) -> Iterator[Row]:
    import gzip

    found = [n for n in source.names("shared", "multi30k") if "train" not in n]
    de, en = (
        gzip.decompress(source.read("shared", next(n for n in found if f".{s}" in n)))
        for s in ("de", "en")
    )
    for one, two in zip(de.decode().split("\n"), en.decode().split("\n"), strict=False):
        if one and two:
            yield {"source": one, "target": two}


def _german(source: Source) -> Iterator[Row]:
    text = _text(source.read("davidsbatista/NER-datasets", "GermEval2014/NER-de-dev.tsv"))
    words: list[str] = []
    tags: list[str] = []
    for line in [*text.split("\n"), ""]:
        parts = line.split("\t")
        if len(parts) >= 3 and parts[0] != "#":
            words.append(parts[1])
            tags.append(parts[2])
        elif words and not line.startswith("#"):
            yield {"tokens": words, "tags": tags}
            words, tags = [], []


def _digits(source: Source, as_series: bool = False) -> Iterator[Row]:
    for row in _idx("golbin/TensorFlow-MNIST", "mnist/data/t10k", source):
        if as_series:
            yield {"features": row["image"].tolist(), "label": row["label"]}
        else:
            yield row


def _vectors(source: Source) -> Iterator[Row]:
    for row in _frame("breast_cancer", source):
        label = row.pop("label")
        yield {"features": [*row.values()], "label": label}


VEGA, PLOTLY = "vega/vega-datasets", "plotly/datasets"
SETS: dict[str, tuple[str, Callable[[Source], Iterator[Row]], int]] = {
    "weather": ("classes", lambda s: _table(VEGA, "data/weather.csv", s, "weather"), 1000),
    "wine": ("classes", lambda s: _frame("wine", s), 200),
    "cancer": ("classes", lambda s: _frame("breast_cancer", s), 600),
    "diabetes": ("numbers", lambda s: _frame("diabetes", s), 500),
    "countries": (
        "numbers",
        lambda s: _table(PLOTLY, "gapminderDataFiveYear.csv", s, "lifeExp"),
        1000,
    ),
    "movies": ("numbers", _movies, 1000),
    "tweets": ("text", _tweets, 1000),
    "reviews": ("text", _reviews, 1000),
    "tasks": ("sft", _tasks, 175),
    "questions": ("sft", _questions, 1000),
    "captions": ("pairs", _pairs, 1000),
    "court": (
        "tags",
        lambda s: _tagged("davidsbatista/NER-datasets", "Portuguese/leNER-Br/dev.conll", s),
        1000,
    ),
    "german": ("tags", _german, 1000),
    "digits": ("image", _digits, 400),
    "lines": ("features", lambda s: _digits(s, as_series=True), 300),
    "cells": ("features", _vectors, 569),
    "spoken": ("audio", lambda s: _spoken("shared", "spoken-digits", s, 0), 160),
}
"""The kind of each set, how it is read, and how many rows are taken."""


def read_set(name: str, source: Source) -> Rows:
    """Return a fixed sample of a set's rows in their own order."""
    _, read, most = SETS[name]
    rows = [*read(source)]
    if len(rows) > most:
        rows = [rows[at] for at in sorted(random.Random(0).sample(range(len(rows)), most))]
    return rows


@dataclass(frozen=True)
class Fresh:
    """A fault, the set it is planted into, and whether that set names its own validation rows."""

    number: int
    name: str
    of: str
    change: Change
    divided: bool


FAULTS: list[Fresh] = []


def fault(number: int, of: str, name: str, divided: bool = False) -> Callable[[Change], Change]:
    """Register a fault of a round."""

    def register(change: Change) -> Change:
        FAULTS.append(Fresh(number, name, of, change, divided))
        return change

    return register


def hit(rows: Rows, rng: np.random.Generator, share: float) -> list[int]:
    """Return a random share of the rows."""
    count = max(2, round(share * len(rows)))
    return sorted(rng.choice(len(rows), count, replace=False).tolist())


def change(key: str, share: float, make: Callable[[Any], Any]) -> Change:
    """Return a fault that changes one column in a share of the rows."""

    def planted(rows: Rows, rng: np.random.Generator) -> None:
        for at in hit(rows, rng, share):
            if rows[at][key] is not None:
                rows[at] = {**rows[at], key: make(rows[at][key])}

    return planted


def in_class(key: str, label: str, make: Callable[[Any], Any]) -> Change:
    """Return a fault that changes one column in all rows of a class."""

    def planted(rows: Rows, rng: np.random.Generator) -> None:
        for at, row in enumerate(rows):
            if row["label"] == label:
                rows[at] = {**row, key: make(row[key])}

    return planted


def in_part(part: str, key: str, make: Callable[[Any], Any]) -> Change:
    """Return a fault that changes one column in all rows of one side of the split."""

    def planted(rows: Rows, rng: np.random.Generator) -> None:
        for at, row in enumerate(rows):
            if row["split"] == part:
                rows[at] = {**row, key: make(row[key])}

    return planted


def shifted(key: str, rows: Rows, start: int, end: int) -> None:
    """Move a column by one row in a part of the file."""
    values = [row[key] for row in rows]
    for at in range(max(start, 1), end):
        rows[at] = {**rows[at], key: values[at - 1]}


def _late(key: str, share: float, make: Callable[[Any], Any]) -> Change:
    def planted(rows: Rows, rng: np.random.Generator) -> None:
        for at in range(int(len(rows) * (1 - share)), len(rows)):
            if rows[at][key] is not None:
                rows[at] = {**rows[at], key: make(rows[at][key])}

    return planted


# Round 1
fault(1, "weather", "degrees in Fahrenheit in the later rows")(
    _late("temp_max", 0.3, lambda v: round(v * 1.8 + 32, 1))
)
fault(1, "diabetes", "targets of the row before")(
    lambda rows, rng: shifted("label", rows, 0, len(rows))
)
fault(1, "wine", "a decimal point lost")(change("alcohol", 0.15, lambda v: round(v * 100)))


@fault(1, "cancer", "a column made from the class, with noise")
def _score(rows: Rows, rng: np.random.Generator) -> None:
    for at, row in enumerate(rows):
        made = 0.8 * (row["label"] == "malignant") + rng.normal(0, 0.08)
        rows[at] = {**row, "risk": round(float(made), 3)}


fault(1, "tweets", "a header in one class")(in_class("text", "c2", lambda t: f"RT @news: {t}"))


@fault(1, "reviews", "classes exchanged in the last part")
def _exchanged(rows: Rows, rng: np.random.Generator) -> None:
    for at in range(int(0.7 * len(rows)), len(rows)):
        rows[at] = {**rows[at], "label": "bad" if rows[at]["label"] == "good" else "good"}


fault(1, "reviews", "escapes of JSON")(
    change("text", 0.08, lambda t: f'\\"{t}\\" caf\\u00e9 \\u2013')
)
fault(1, "tweets", "removed texts")(change("text", 0.2, lambda t: "[deleted]"))


@fault(1, "captions", "targets that are other sources")
def _untranslated(rows: Rows, rng: np.random.Generator) -> None:
    others = [row["source"] for row in rows]
    for at in hit(rows, rng, 0.15):
        rows[at] = {**rows[at], "target": others[(at + 37) % len(rows)]}


fault(1, "captions", "targets cut after three words")(
    change("target", 0.2, lambda t: " ".join(t.split()[:3]))
)
fault(1, "tasks", "the next turn in the answer")(
    change("completion", 0.2, lambda t: f"{t}\nHuman: And another one?\nAssistant: Sure.")
)
fault(1, "questions", "answers that say nan")(change("completion", 0.1, lambda t: "nan"))


def _rolled(rows: Rows, rng: np.random.Generator) -> None:
    for at in hit(rows, rng, 0.2):
        tags = rows[at]["tags"]
        rows[at] = {**rows[at], "tags": [tags[-1], *tags[:-1]]}


fault(1, "court", "tags moved by one")(_rolled)
fault(1, "german", "a type under another name in the later rows")(
    _late("tags", 0.4, lambda t: [n.replace("PER", "PERSON") for n in t])
)
fault(1, "digits", "turned images")(change("image", 0.1, lambda x: np.rot90(x)))
fault(1, "digits", "labels of the row before")(
    lambda rows, rng: shifted("label", rows, 0, len(rows))
)
fault(1, "digits", "one class inverted")(in_class("image", "c3", lambda x: 255 - x))


@fault(1, "cells", "scaled features among raw ones")
def _standardised(rows: Rows, rng: np.random.Generator) -> None:
    every = np.array([row["features"] for row in rows])
    for at in hit(rows, rng, 0.1):
        made = (every[at] - every.mean(0)) / every.std(0)
        rows[at] = {**rows[at], "features": made.tolist()}


fault(1, "spoken", "recordings of twice the speed")(change("audio", 0.15, lambda x: x[::2]))


@fault(1, "countries", "another unit in one continent")
def _thousands(rows: Rows, rng: np.random.Generator) -> None:
    for at, row in enumerate(rows):
        if row["continent"] == "Oceania" or row["continent"] == "Africa":
            rows[at] = {**row, "pop": row["pop"] / 1000}


# Round 2
@fault(2, "weather", "validation rows of another place", divided=True)
def _elsewhere(rows: Rows, rng: np.random.Generator) -> None:
    for at, row in enumerate(rows):
        place = "dev" if row["location"] == "New York" else "train"
        rows[at] = {**row, "split": place}


fault(2, "movies", "money in millions in some rows")(
    change("Production Budget", 0.1, lambda v: v / 1e6)
)
fault(2, "countries", "years of two digits")(change("year", 0.2, lambda v: v - 1900))


@fault(2, "diabetes", "a column made from the target, with noise")
def _derived(rows: Rows, rng: np.random.Generator) -> None:
    for at, row in enumerate(rows):
        rows[at] = {**row, "stage": round(math.sqrt(row["label"]) + float(rng.normal(0, 0.1)), 2)}


@fault(2, "wine", "copies with another class")
def _copied(rows: Rows, rng: np.random.Generator) -> None:
    names = sorted({row["label"] for row in rows})
    for at in hit(rows, rng, 0.15):
        other = names[(names.index(rows[at]["label"]) + 1) % len(names)]
        rows.append({**rows[at], "label": other})


@fault(2, "weather", "two columns exchanged in some rows")
def _crossed(rows: Rows, rng: np.random.Generator) -> None:
    for at in hit(rows, rng, 0.1):
        row = rows[at]
        rows[at] = {**row, "temp_max": row["temp_min"], "temp_min": row["temp_max"]}


fault(2, "tweets", "one class cut at 60 characters")(in_class("text", "c2", lambda t: t[:60]))
fault(2, "tweets", "a link at the end of one class")(
    in_class("text", "c0", lambda t: f"{t} http://t.co/a1b2")
)


@fault(2, "reviews", "labels drawn at random in the middle of the file")
def _random_middle(rows: Rows, rng: np.random.Generator) -> None:
    for at in range(len(rows) // 3, 2 * len(rows) // 3):
        rows[at] = {**rows[at], "label": ("good", "bad")[int(rng.integers(2))]}


fault(2, "reviews", "capital letters at the start of one class")(
    in_class("text", "good", lambda t: t.capitalize())
)
fault(2, "captions", "numbered targets")(
    change("target", 0.2, lambda t: f"{len(t) % 90 + 10}. {t}")
)


@fault(2, "captions", "both sides in one cell")
def _tabbed(rows: Rows, rng: np.random.Generator) -> None:
    for at in hit(rows, rng, 0.06):
        rows[at] = {**rows[at], "source": f"{rows[at]['source']}\t{rows[at]['target']}"}


fault(2, "tasks", "answers that begin with their label")(
    change("completion", 0.3, lambda t: f"Output: {t}")
)
fault(2, "questions", "numbers in place of prompts")(
    change("prompt", 0.1, lambda t: str(len(t) * 7919 % 100003))
)


@fault(2, "court", "tags glued to their words")
def _glued(rows: Rows, rng: np.random.Generator) -> None:
    for at in hit(rows, rng, 0.1):
        pairs = zip(rows[at]["tokens"], rows[at]["tags"], strict=True)
        rows[at] = {**rows[at], "tokens": [f"{word}/{tag}" for word, tag in pairs]}


fault(2, "german", "capital letters without tags")(
    lambda rows, rng: (
        [
            rows.__setitem__(
                at,
                {
                    "tokens": [w.upper() for w in rows[at]["tokens"]],
                    "tags": ["O"] * len(rows[at]["tags"]),
                },
            )
            for at in hit(rows, rng, 0.2)
        ]
        and None
    )
)
fault(2, "digits", "images shifted across their border")(
    change("image", 0.1, lambda x: np.roll(x, 14, 1))
)


def _marked(x: Any) -> Any:
    made = x.copy()
    made[:3, :3] = 255
    return made


fault(2, "digits", "a mark in the corner of one class")(in_class("image", "c3", _marked))
fault(2, "lines", "rows in reverse order")(change("features", 0.15, lambda x: x[::-1]))
fault(2, "spoken", "a hum in one class")(
    in_class("audio", "c1", lambda x: x + 1500 * np.sin(np.arange(len(x)) * 2 * np.pi * 50 / 8000))
)

# Round 3
fault(3, "weather", "dates that stand for none")(change("date", 0.1, lambda v: "1900-01-01"))
fault(3, "countries", "spaces and capitals in names")(
    change("continent", 0.15, lambda v: f" {v.upper()}")
)


@fault(3, "diabetes", "rows of zeros")
def _zeros(rows: Rows, rng: np.random.Generator) -> None:
    for at in hit(rows, rng, 0.1):
        rows[at] = {**dict.fromkeys(rows[at], 0.0), "label": rows[at]["label"]}


fault(3, "wine", "a class under two names")(
    change("label", 0.2, lambda v: v.replace("class_", "Class "))
)


@fault(3, "cancer", "the number of the row, sorted by class")
def _numbered(rows: Rows, rng: np.random.Generator) -> None:
    rows.sort(key=lambda row: row["label"])
    for at, row in enumerate(rows):
        rows[at] = {**row, "case": 70_000 + 13 * at}


fault(3, "movies", "ratings of another scale")(change("label", 0.2, lambda v: round(v * 10)))


@fault(3, "tweets", "copies with another label")
def _contradicting(rows: Rows, rng: np.random.Generator) -> None:
    for at in hit(rows, rng, 0.1):
        rows.append({**rows[at], "label": "c1" if rows[at]["label"] != "c1" else "c2"})


@fault(3, "tweets", "one class without vowels")
def _no_vowels(rows: Rows, rng: np.random.Generator) -> None:
    for at, row in enumerate(rows):
        if row["label"] == "c2":
            rows[at] = {**row, "text": "".join(c for c in row["text"] if c not in "aeiou")}


fault(3, "reviews", "short validation texts", divided=True)(
    in_part("dev", "text", lambda t: t[:15])
)
fault(3, "reviews", "validation labels exchanged", divided=True)(
    in_part("dev", "label", lambda v: "bad" if v == "good" else "good")
)
fault(3, "captions", "words of the target in reverse order")(
    change("target", 0.12, lambda t: " ".join(reversed(t.split())))
)


@fault(3, "captions", "validation targets of other rows", divided=True)
def _other_targets(rows: Rows, rng: np.random.Generator) -> None:
    held = [at for at, row in enumerate(rows) if row["split"] == "dev"]
    values = [rows[at]["target"] for at in held]
    for at, value in zip(held, [*values[1:], values[0]], strict=True):
        rows[at] = {**rows[at], "target": value}


fault(3, "tasks", "answers given twice")(change("completion", 0.15, lambda t: f"{t} {t}"))


@fault(3, "questions", "answers of other rows")
def _swapped(rows: Rows, rng: np.random.Generator) -> None:
    chosen = hit(rows, rng, 0.2)
    values = [rows[at]["completion"] for at in chosen]
    for at, value in zip(chosen, [*values[40:], *values[:40]], strict=True):
        rows[at] = {**rows[at], "completion": value}


fault(3, "court", "entities that begin inside")(
    change("tags", 0.15, lambda t: [n.replace("B-", "I-") for n in t])
)
fault(3, "german", "sentences without tags")(change("tags", 0.5, lambda t: ["O"] * len(t)))
fault(3, "digits", "spots")(
    change(
        "image",
        0.1,
        lambda x: np.where(np.random.default_rng(int(x.sum())).random(x.shape) < 0.3, 255, x),
    )
)
fault(3, "digits", "dark validation images", divided=True)(
    in_part("dev", "image", lambda x: x // 2)
)
fault(3, "lines", "features of the validation rows moved", divided=True)(
    in_part("dev", "features", lambda x: [[v + 40 for v in step] for step in x])
)
fault(3, "spoken", "noise in place of speech")(
    change("audio", 0.1, lambda x: np.random.default_rng(len(x)).normal(0, 3000, x.shape))
)


def divided(rows: Rows) -> Rows:
    """Return the rows with a column that puts a random fifth into the validation set."""
    rng = np.random.default_rng(5)
    return [{**row, "split": "dev" if rng.random() < 0.2 else "train"} for row in rows]


def run_round(number: int, source: Source, only: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what `check` makes of each fault of a round."""
    healthy: dict[tuple[str, bool], dict[str, Any]] = {}
    for each in FAULTS:
        if each.number != number or not all(word in f"{each.of} {each.name}" for word in only):
            continue
        kind, rows = SETS[each.of][0], read_set(each.of, source)
        rows = divided(rows) if each.divided else rows
        key = each.of, each.divided
        if key not in healthy:
            healthy[key] = check(rows, kind)
        each.change(rows, np.random.default_rng(number))
        made = check(rows, kind)
        result = judge(made, healthy[key])
        codes = sorted({f[0] for f in made["found"] if f[1] in LOUD})
        alarms = sorted({f[0] for f in healthy[key]["found"] if f[1] in LOUD})
        print(f"{result:7} {each.of}: {each.name} {codes} healthy {alarms}", flush=True)
        facts = {"round": number, "fault": each.name, "set": each.of, "kind": kind}
        yield {**facts, "result": result, "codes": codes, "healthy": alarms, **made}


def main() -> None:
    """Run a round."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mirror", type=Path, default=Path("mirror"), help="clones")
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--round", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--out", type=Path, default=Path("planted_results"))
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    with (args.out / f"fresh_{args.round}.jsonl").open("w", encoding="utf-8") as file:
        for result in run_round(args.round, Source(args.mirror, args.shared), args.only):
            file.write(json.dumps(result) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
