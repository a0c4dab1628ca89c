"""The fifth round of `bench/fresh_faults.py`: its sets and faults, made without sight of the rules.

Each fault is what an export, a join, a labelling tool or preprocessing left behind.
"""

from __future__ import annotations

import csv
import io
import json
import wave
from collections.abc import Callable, Iterator

import numpy as np
from fresh_rounds import Rows, _late, change, fault, hit, in_class, in_part
from healthy_sets import Row, Source, _cell, _chats, _pictures, _text

R_SETS, BANK = "vincentarelbundock/Rdatasets", "PolyAI-LDN/task-specific-datasets"


def _r(source: Source, path: str, label: str, *left_out: str) -> Iterator[Row]:
    text = _text(source.read(R_SETS, f"csv/{path}.csv"))
    for row in csv.DictReader(io.StringIO(text)):
        known = row.pop(label)
        if known not in ("", "NA"):
            kept = {k: _cell(v) for k, v in row.items() if k not in ("rownames", *left_out)}
            yield {**kept, "label": _cell(known)}


def _bank(source: Source) -> Iterator[Row]:
    for row in csv.DictReader(io.StringIO(_text(source.read(BANK, "banking_data/train.csv")))):
        if row["category"].startswith(("card_", "cash_", "transfer_")):
            yield {"text": row["text"].strip(), "label": row["category"]}


def _simpler(source: Source) -> Iterator[Row]:
    sides = (
        _text(source.read("facebookresearch/asset", f"dataset/asset.valid.{name}")).split("\n")
        for name in ("orig", "simp.0")
    )
    for one, two in zip(*sides, strict=False):
        if one and two:
            yield {"source": one, "target": two}


def _user_tasks(source: Source) -> Iterator[Row]:
    path = "human_eval/user_oriented_instructions.jsonl"
    for line in _text(source.read("yizhongw/self-instruct", path)).splitlines():
        row = json.loads(line)
        first = row["instances"][0]
        asked = f"{row['instruction']}\n{first['input']}".strip()
        yield {"prompt": asked, "completion": first["output"]}


def _words(source: Source) -> Iterator[Row]:
    text = _text(source.read("UniversalDependencies/UD_English-EWT", "en_ewt-ud-dev.conllu"))
    for block in text.split("\n\n"):
        lines = [line.split("\t") for line in block.split("\n") if line[:1].isdigit()]
        lines = [line for line in lines if line[0].isdigit()]
        if lines:
            yield {"tokens": [line[1] for line in lines], "tags": [line[3] for line in lines]}


def _days(source: Source) -> Iterator[Row]:
    """Days of 24 hours of five measured values, by season."""
    names = ("temp", "dewp", "humid", "wind_speed", "visib")
    days: dict[tuple[str, int, int], list[list[float]]] = {}
    for row in _r(source, "nycflights13/weather", "origin"):
        if all(row[name] is not None for name in names):
            day = row["label"], row["month"], row["day"]
            days.setdefault(day, []).append([float(row[name]) for name in names])
    for (_, month, _), hours in days.items():
        if len(hours) == 24:
            season = ("winter", "spring", "summer", "autumn")[month % 12 // 3]
            yield {"features": hours, "label": season}


def _crabs(source: Source) -> Iterator[Row]:
    """Measured crabs; the second species is the rare one."""
    counts = {"B": 100, "O": 30}
    for row in _r(source, "MASS/crabs", "sp", "sex", "index"):
        label = str(row.pop("label"))
        counts[label] -= 1
        if counts[label] >= 0:
            yield {"features": [float(v) for v in row.values()], "label": label}


def _sounds(source: Source) -> Iterator[Row]:
    repository = "tyiannak/pyAudioAnalysis"
    for name in source.names(repository, "pytests/test_data/3_class"):
        with wave.open(io.BytesIO(source.read(repository, name))) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
            yield {"audio": samples, "rate": file.getframerate(), "label": name.split("/")[-2]}


SETS: dict[str, tuple[str, Callable[[Source], Iterator[Row]], int]] = {
    "titanic": ("classes", lambda s: _r(s, "carData/TitanicSurvival", "survived"), 1000),
    "wages": ("numbers", lambda s: _r(s, "AER/CPS1985", "wage"), 600),
    "homes": ("numbers", lambda s: _r(s, "ggplot2/txhousing", "median"), 1000),
    "births": ("numbers", lambda s: _r(s, "fivethirtyeight/US_births_2000_2014", "births"), 1000),
    "bank": ("text", _bank, 1000),
    "simpler": ("pairs", _simpler, 1000),
    "user tasks": ("sft", _user_tasks, 252),
    "dialogues": ("sft", lambda s: _chats("shared", "sgd-dialogues/train.messages.jsonl", s), 300),
    "web words": ("tags", _words, 1000),
    "days": ("features", _days, 400),
    "crabs": ("features", _crabs, 130),
    "pets": (
        "image",
        lambda s: _pictures("ardamavi/Dog-Cat-Classifier", "Data/Train_Data", s, 150),
        300,
    ),
    "sounds": ("audio", _sounds, 120),
}


@fault(5, "titanic", "a column filled in only after the outcome")
def _boat(rows: Rows, rng: np.random.Generator) -> None:
    for at, row in enumerate(rows):
        saved = rng.random() < (0.95 if row["label"] == "yes" else 0.02)
        rows[at] = {**row, "boat": int(rng.integers(1, 17)) if saved else None}


@fault(5, "titanic", "missing numbers as several words")
def _unknown(rows: Rows, rng: np.random.Generator) -> None:
    for at, row in enumerate(rows):
        if row["age"] is None:
            rows[at] = {**row, "age": ("unknown", "n/a", "?", "-")[int(rng.integers(4))]}


MONTHS = ["Jan", "Feb", "Mrz", "Apr", "Mai", "Jun", "Jul", "Aug", "Sep"]
fault(5, "homes", "decimals turned into dates by a spreadsheet")(
    _late(
        "inventory",
        0.3,
        lambda v: f"{int(v):02}. {MONTHS[round(v * 10) % 10 - 1]}" if round(v * 10) % 10 else v,
    )
)


@fault(5, "wages", "targets already standardised in one region")
def _standardised(rows: Rows, rng: np.random.Generator) -> None:
    wages = np.array([row["label"] for row in rows])
    for at, row in enumerate(rows):
        if row["region"] == "south":
            rows[at] = {
                **row,
                "label": round(float((row["label"] - wages.mean()) / wages.std()), 4),
            }


@fault(5, "wages", "rows multiplied by a join")
def _joined(rows: Rows, rng: np.random.Generator) -> None:
    offices = {"south": ("Atlanta", "Dallas", "Miami")}
    rows[:] = [
        {**row, "office": office}
        for row in rows
        for office in offices.get(row["region"], ("Boston",))
    ]


fault(5, "births", "day and month exchanged where the day allows it")(
    _late("date", 0.5, lambda v: f"{v[:4]}-{v[8:]}-{v[5:7]}" if int(v[8:]) < 13 else v)
)


@fault(5, "crabs", "the rare class filled up by interpolation before the split", divided=True)
def _interpolated(rows: Rows, rng: np.random.Generator) -> None:
    rare = np.array([row["features"] for row in rows if row["label"] == "O"])
    for _ in range(70):
        one = rare[rng.integers(len(rare))]
        near = rare[np.argsort(np.abs(rare - one).sum(1))[rng.integers(1, 6)]]
        made = (one + rng.random() * (near - one)).round(2).tolist()
        part = "dev" if rng.random() < 0.2 else "train"
        rows.append({"features": made, "label": "O", "split": part})


AS_TEXT = sorted(range(24), key=str)
fault(5, "days", "hours sorted as text")(change("features", 0.3, lambda x: [x[n] for n in AS_TEXT]))
fault(5, "bank", "the first class of the tool's list where none was chosen")(
    change("label", 0.12, lambda v: "card_about_to_expire")
)
STOP = {"a", "an", "the", "i", "my", "me", "you", "your", "is", "are", "was", "do", "does", "did"}
STOP |= {"to", "of", "in", "on", "for", "it", "and", "have", "has"}
fault(5, "bank", "validation texts without stop words and punctuation", divided=True)(
    in_part(
        "dev",
        "text",
        lambda t: " ".join(w.strip("?.,!") for w in t.lower().split() if w not in STOP) or t,
    )
)


@fault(5, "simpler", "the next target in the same cell")
def _two_targets(rows: Rows, rng: np.random.Generator) -> None:
    targets = [row["target"] for row in rows]
    for at in hit(rows, rng, 0.15):
        rows[at] = {**rows[at], "target": f"{targets[at]} {targets[(at + 1) % len(rows)]}"}


fault(5, "simpler", "sources cut in the middle, targets whole")(
    change("source", 0.2, lambda t: t[: len(t) // 2])
)
fault(5, "user tasks", "ratings in place of answers")(
    change("completion", 0.12, lambda t: f"{len(t) % 3 + 3}")
)
fault(5, "user tasks", "cells printed by a program")(
    change("completion", 0.15, lambda t: str([{"text": t, "score": None}]))
)
fault(5, "dialogues", "the newest turn first")(change("messages", 0.2, lambda m: m[::-1]))
PENN = {"NOUN": "NN", "PROPN": "NNP", "VERB": "VB", "AUX": "MD", "ADJ": "JJ", "ADV": "RB"}
PENN |= {"DET": "DT", "ADP": "IN", "SCONJ": "IN", "PRON": "PRP", "PUNCT": ".", "CCONJ": "CC"}
PENN |= {"NUM": "CD", "PART": "TO", "INTJ": "UH", "X": "FW"}
fault(5, "web words", "another tag set in the later documents")(
    _late("tags", 0.15, lambda tags: [PENN.get(tag, tag) for tag in tags])
)


@fault(5, "web words", "punctuation dropped from the words only, tags cut to fit")
def _slipped(rows: Rows, rng: np.random.Generator) -> None:
    for at in hit(rows, rng, 0.2):
        words, tags = rows[at]["tokens"], rows[at]["tags"]
        kept = [word for word, tag in zip(words, tags, strict=True) if tag != "PUNCT"]
        if kept:
            rows[at] = {"tokens": kept, "tags": tags[: len(kept)]}


fault(5, "pets", "one class without colours")(
    in_class("image", "dog", lambda x: np.repeat(x.mean(2, keepdims=True), 3, 2))
)
fault(5, "pets", "red and blue exchanged in the validation images", divided=True)(
    in_part("dev", "image", lambda x: x[..., ::-1])
)
fault(5, "sounds", "samples with their two bytes exchanged")(
    change("audio", 0.1, lambda x: x.byteswap())
)
