"""The faults of the rounds that `bench/fresh_faults.py` plants; see there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from healthy_sets import Row

Rows = list[Row]
Change = Callable[[Rows, np.random.Generator], Any]


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


# Round 4
@fault(4, "weather", "wind in another unit at one place")
def _wind(rows: Rows, rng: np.random.Generator) -> None:
    for at, row in enumerate(rows):
        if row["location"] == "New York":
            rows[at] = {**row, "wind": round(row["wind"] * 3.6, 1)}


fault(4, "diabetes", "targets rounded to fifties")(
    change("label", 0.3, lambda v: round(v / 50) * 50.0)
)
fault(4, "countries", "separators of thousands")(change("gdpPercap", 0.1, lambda v: f"{v:,.2f}"))


@fault(4, "wine", "one column copied over another in some rows")
def _over(rows: Rows, rng: np.random.Generator) -> None:
    for at in hit(rows, rng, 0.2):
        rows[at] = {**rows[at], "proline": rows[at]["alcohol"]}


fault(4, "cancer", "classes exchanged in some rows")(
    change("label", 0.08, lambda v: "benign" if v == "malignant" else "malignant")
)


@fault(4, "movies", "missing numbers filled with the mean")
def _filled(rows: Rows, rng: np.random.Generator) -> None:
    known = [row["Running Time min"] for row in rows if row["Running Time min"] is not None]
    for at, row in enumerate(rows):
        if row["Running Time min"] is None:
            rows[at] = {**row, "Running Time min": sum(known) / len(known)}


fault(4, "tweets", "entities escaped twice")(
    change("text", 0.1, lambda t: t.replace("&", "&amp;") + " &amp;quot;")
)
fault(4, "tweets", "replaced characters")(change("text", 0.05, lambda t: f"{t[:20]}\ufffd{t[21:]}"))
fault(4, "reviews", "masks left in")(change("text", 0.06, lambda t: f"{t} [MASK] film"))
fault(4, "reviews", "a full stop in one class")(in_class("text", "bad", lambda t: f"{t} ."))
fault(4, "captions", "line breaks of a web page")(change("target", 0.05, lambda t: f"{t}<br/>"))


@fault(4, "captions", "sides exchanged")
def _sides(rows: Rows, rng: np.random.Generator) -> None:
    for at in hit(rows, rng, 0.1):
        rows[at] = {"source": rows[at]["target"], "target": rows[at]["source"]}


@fault(4, "tasks", "the answer at the end of its prompt")
def _given(rows: Rows, rng: np.random.Generator) -> None:
    for at in hit(rows, rng, 0.2):
        row = rows[at]
        rows[at] = {**row, "prompt": f"{row['prompt']} {row['completion']}"}


@fault(4, "questions", "questions without their text")
def _without_text(rows: Rows, rng: np.random.Generator) -> None:
    for at in hit(rows, rng, 0.2):
        rows[at] = {**rows[at], "prompt": rows[at]["prompt"][400:].strip()}


fault(4, "court", "empty tags")(change("tags", 0.1, lambda t: ["" if n == "O" else n for n in t]))
fault(4, "german", "no beginnings of entities")(
    change("tags", 0.3, lambda t: [n.replace("B-", "I-") for n in t])
)


def _framed(x: Any) -> Any:
    made = x.copy()
    made[[0, -1]] = 255
    made[:, [0, -1]] = 255
    return made


fault(4, "digits", "a frame in one class")(in_class("image", "c5", _framed))


@fault(4, "digits", "half of one class under another")
def _half(rows: Rows, rng: np.random.Generator) -> None:
    for at, row in enumerate(rows):
        if row["label"] == "c4" and rng.random() < 0.5:
            rows[at] = {**row, "label": "c9"}


fault(4, "lines", "zeros in place of the last steps")(
    change("features", 0.12, lambda x: [*x[:14], *([[0] * 28] * 14)])
)
fault(4, "spoken", "silent recordings")(change("audio", 0.1, lambda x: x * 0))
