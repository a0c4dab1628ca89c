"""Rounds of 20 faults in public data that no other bench reads: found, hinted or missed.

    python bench/fresh_faults.py --mirror MIRROR --round 1 --out results

Thresholds may be fitted on a round; the next one judges them. Each fault is checked beside its
healthy original (`PLANTED_COMMAND`: `check` or `encode`). `python bench/planted.py page` writes the
table; results of an earlier version, in the folder `before` of the results, are shown beside.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fresh_round_5 import SETS as FIFTH
from fresh_rounds import FAULTS, Rows
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
    **FIFTH,
}
"""The kind of each set, how it is read, and how many rows are taken."""


def read_set(name: str, source: Source) -> Rows:
    """Return a fixed sample of a set's rows in their own order."""
    _, read, most = SETS[name]
    rows = [*read(source)]
    if len(rows) > most:
        rows = [rows[at] for at in sorted(random.Random(0).sample(range(len(rows)), most))]
    return rows


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
