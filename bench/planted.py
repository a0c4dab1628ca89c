"""False alarms on healthy data sets, and how many planted faults `surefit check` finds.

    python bench/planted.py healthy [--half fit|judge] [--only WORDS]
    python bench/planted.py planted [--shares 0.02 0.1 0.5] [--only WORDS]
    python bench/planted.py page         # docs/evidence.md from the results of both

Every second set of a kind is the half that thresholds are fitted on, the others judge. A fault is
found if a warning or error has a code or column that the healthy set has not; it is hinted at if
only a new note appears. Results go to `--out`, one JSON object per check.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from healthy_sets import MODELS, HealthySet, Row, Source, all_sets

PAGE = Path(__file__).parents[1] / "docs" / "evidence.md"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
TASKS = {
    "text": "--task text-classification",
    "sft": "--task sft",
    "pairs": "--task seq2seq",
    "tags": "--task token-classification",
    "classes": "--task tabular-classification",
    "numbers": "--task regression",
    "features": "--task feature-classification",
    "image": "--task image-classification",
    "audio": "--task audio-classification",
    "plain": "--task causal-lm",
}
LOUD = ("error", "warning")
COMMAND = os.environ.get("PLANTED_COMMAND", "check")
"""`encode` plans as `check` does up to the model, and is faster."""
TIMINGS = ["--timings"] * (COMMAND == "check")
Change = Callable[[list[Row], Sequence[int], random.Random], list[Row] | None]


def write_rows(rows: Sequence[Row], kind: str, folder: Path) -> Path:
    """Write rows as JSON lines; pictures and recordings as files beside them."""
    path = folder / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for at, row in enumerate(rows):
            file.write(json.dumps(_stored(row, at, kind, folder)) + "\n")
    return path


def _stored(row: Row, at: int, kind: str, folder: Path) -> Row:
    if kind == "image":
        from PIL import Image

        name = row.get("name", f"{at:05d}.png")
        Image.fromarray(np.asarray(row["image"]).clip(0, 255).astype(np.uint8)).save(folder / name)
        return {**row, "image": name}
    if kind == "audio":
        import wave

        name = f"{at:05d}.wav"
        with wave.open(str(folder / name), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(row["rate"])
            file.writeframes(np.asarray(row["audio"]).clip(-32768, 32767).astype("<i2").tobytes())
        return {"audio": name, **{n: v for n, v in row.items() if n not in ("audio", "rate")}}
    return row


def check(rows: Sequence[Row], kind: str) -> dict[str, Any]:
    """Return what `surefit check --json` prints for the rows, and how long it took."""
    from surefit.cli import run

    before, out = Path.cwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as name:
        path = write_rows(rows, kind, Path(name))
        is_series = kind == "features" and isinstance(rows[0]["features"][0], list)
        model = "tiny:bert" if is_series else MODELS[kind]
        command = [COMMAND, "--json", "--data", path.name, "--model", model]
        os.chdir(name)
        began = time.perf_counter()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                run([*command, *TASKS[kind].split(), *TIMINGS, "--set", "cache=cache"])
        finally:
            os.chdir(before)
    answer = json.loads(out.getvalue() or "{}")
    seconds = {n: round(s, 2) for n, s in answer.get("timings", {}).items() if s > 0.05}
    found = [
        [f["code"], f["severity"], f["where"].get("column"), f["message"]]
        for f in answer.get("findings", ())
        if f["severity"] != "info"
    ]
    if "error" in answer:
        found.append(["refused", "error", None, str(answer["error"])])
    wall = round(time.perf_counter() - began, 1)
    notes = answer.get("notes", [])
    return {"command": COMMAND, "found": found, "notes": notes, "seconds": seconds, "wall": wall}


@dataclass(frozen=True)
class Fault:
    """A change of rows that keeps their shapes and breaks what they mean."""

    name: str
    kinds: tuple[str, ...]
    change: Change
    whole: bool = False
    """Whether it concerns all rows, so that there is no strength to vary."""


FAULTS: list[Fault] = []


def fault(name: str, kinds: str, whole: bool = False) -> Callable[[Change], Change]:
    """Register a fault for kinds of rows."""

    def register(change: Change) -> Change:
        FAULTS.append(Fault(name, (*kinds.split(),), change, whole))
        return change

    return register


def text_key(row: Row) -> str:
    """Return the column of the text that is learned or read."""
    return _first(("text", "target", "completion", "output", "answer"), row)


def asked_key(row: Row) -> str:
    """Return the column that the text belongs to."""
    return _first(("source", "prompt", "instruction", "question"), row)


def _first(names: Sequence[str], row: Row) -> str:
    """Return the first name that a row has; LookupError for none."""
    for name in names:
        if name in row:
            return name
    raise LookupError(names)


def each_text(rows: list[Row], hit: Sequence[int], make: Callable[[str], str]) -> None:
    """Change the text of the rows that are hit."""
    for at in hit:
        key = text_key(rows[at])
        rows[at] = {**rows[at], key: make(str(rows[at][key]))}


TEXTS = "text sft pairs plain"
PLANTED_TEXTS: dict[str, Callable[[str], str]] = {
    "chat tokens left in": lambda t: f"<|im_start|>assistant\n{t}<|im_end|>",
    "end of text tokens left in": lambda t: f"{t}<|endoftext|>",
    "placeholders not filled": lambda t: f"Dear {{{{first_name}}}}, {t}",
    "tags of a web page": lambda t: f'<div class="c">{t}<br/></div>',
    "entities of a web page": lambda t: f"&quot;{t}&quot;&nbsp;&amp; more",
    "wrong encoding": lambda t: f"{t} – it’s “fine” for José’s café".encode().decode(
        "cp1252", "replace"
    ),
    "service errors": lambda t: "Error 429: Too Many Requests. Rate limit exceeded.",
    "refusals": lambda t: "I'm sorry, but as an AI language model I cannot help with that.",
    "marks of truncation": lambda t: f"{t[: max(10, len(t) // 3)]}... [truncated]",
    "encoded blobs": lambda t: f"data:image/png;base64,{'iVBORw0KGgoAAAANSUhEUgAA' * 12}",
    "notes to do": lambda t: "TODO: fill in later",
    "stack traces": lambda t: (
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\nKeyError: 0'
    ),
    "repeated words": lambda t: "the the the the the the the the the the the the the the the the",
    "escaped line breaks": lambda t: f"{t}\\n\\n{t[:20]}\\t{t[:9]}\\n",
    "prompt format left in": lambda t: f"### Instruction:\nAnswer.\n\n### Response:\n{t}",
    "control characters": lambda t: f"\x00\x08{t[:30]}\x1b[0m{t[30:]}",
}
for _name, _make in PLANTED_TEXTS.items():
    fault(_name, TEXTS)(
        lambda rows, hit, rng, make=_make: each_text(rows, hit, make)  # type: ignore[misc]
    )


@fault("cut at one length", TEXTS)
def _cut_texts(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    sizes = sorted(len(str(row[text_key(row)])) for row in rows)
    limit = max(8, sizes[int(len(sizes) * (1 - len(hit) / len(rows)))])
    each_text(rows, range(len(rows)), lambda t: t[:limit])


@fault("texts without content", TEXTS)
def _no_content(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    each_text(rows, hit, lambda t: rng.choice(("...", "-", ".", "?")))


@fault("partners shifted by one row", "sft pairs", whole=True)
def _shift(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    key = text_key(rows[0])
    values = [row[key] for row in rows]
    for at, row in enumerate(rows):
        rows[at] = {**row, key: values[at - 1]}


@fault("partners shifted in a part of the file", "sft pairs")
def _shift_part(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    key, start = text_key(rows[0]), len(rows) - len(hit)
    values = [row[key] for row in rows]
    for at in range(start, len(rows)):
        rows[at] = {**rows[at], key: values[at - 1]}


@fault("sides swapped", "sft pairs")
def _swap(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    for at in hit:
        one, two = asked_key(rows[at]), text_key(rows[at])
        rows[at] = {**rows[at], one: rows[at][two], two: rows[at][one]}


@fault("target equals the source", "sft pairs")
def _copy(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    for at in hit:
        rows[at] = {**rows[at], text_key(rows[at]): rows[at][asked_key(rows[at])]}


@fault("answer contains the prompt", "sft pairs")
def _contain(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    for at in hit:
        asked = rows[at][asked_key(rows[at])]
        rows[at] = {**rows[at], text_key(rows[at]): f"{asked} {rows[at][text_key(rows[at])]}"}


@fault("prompt contains the answer", "sft pairs")
def _leaks(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    for at in hit:
        key = asked_key(rows[at])
        rows[at] = {**rows[at], key: f"{rows[at][key]} {rows[at][text_key(rows[at])]}"}


@fault("one answer for many prompts", "sft pairs")
def _same(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    each_text(rows, hit, lambda t: "I hope this answers your question. Let me know!")


LABELLED = "text classes features image audio"


def classes_of(rows: Sequence[Row]) -> list[Any]:
    """Return the classes, the commonest first."""
    return [name for name, _ in Counter(row["label"] for row in rows).most_common()]


@fault("labels shuffled", LABELLED, whole=True)
def _shuffle(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    labels = [row["label"] for row in rows]
    rng.shuffle(labels)
    for at, label in enumerate(labels):
        rows[at] = {**rows[at], "label": label}


@fault("labels shuffled in the last part", LABELLED)
def _shuffle_part(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    start = len(rows) - len(hit)
    labels = [row["label"] for row in rows[start:]]
    rng.shuffle(labels)
    for at, label in enumerate(labels, start):
        rows[at] = {**rows[at], "label": label}


@fault("one class under two names", LABELLED, whole=True)
def _two_names(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    name = classes_of(rows)[0]
    for at, row in enumerate(rows):
        if row["label"] == name and rng.random() < 0.5:
            rows[at] = {**row, "label": f"{name}_b" if isinstance(name, str) else name + 77}


@fault("two classes exchanged in the last part", LABELLED)
def _exchange(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    one, two = classes_of(rows)[:2]
    for at in range(len(rows) - len(hit), len(rows)):
        label = rows[at]["label"]
        rows[at] = {**rows[at], "label": two if label == one else one if label == two else label}


@fault("a word per class", "text", whole=True)
def _word(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    codes = {name: f"ref{n}x" for n, name in enumerate(classes_of(rows))}
    for at, row in enumerate(rows):
        rows[at] = {**row, "text": f"{codes[row['label']]} {row['text']}"}


@fault("case tells one class", "text", whole=True)
def _case(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    name = classes_of(rows)[0]
    for at, row in enumerate(rows):
        made = row["text"].upper() if row["label"] == name else row["text"].lower()
        rows[at] = {**row, "text": made}


@fault("one class ends with a full stop", "text", whole=True)
def _stop(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    name = classes_of(rows)[-1]
    for at, row in enumerate(rows):
        text = row["text"].rstrip(" .!?")
        rows[at] = {**row, "text": text + " ." * (row["label"] == name)}


@fault("one class is cut shorter", "text", whole=True)
def _short(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    name = classes_of(rows)[0]
    for at, row in enumerate(rows):
        if row["label"] == name:
            rows[at] = {**row, "text": row["text"][:24]}


@fault("another language in one class", "text", whole=True)
def _language(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    name, words = (
        classes_of(rows)[0],
        ["дом", "мир", "свет", "вода", "книга", "город", "время", "слово", "день", "рука"],
    )
    for at, row in enumerate(rows):
        if row["label"] == name:
            rows[at] = {**row, "text": " ".join(rng.choices(words, k=len(row["text"].split())))}


TABLES = "classes numbers"


def number_column(rows: Sequence[Row], rng: random.Random) -> str | None:
    """Return a column of numbers with many values."""
    names = [
        name
        for name in rows[0]
        if name != "label"
        and len({row[name] for row in rows if isinstance(row[name], int | float)}) > len(rows) / 20
        and all(isinstance(row[name], int | float | None) for row in rows)
    ]
    return rng.choice(names) if names else None


def change_column(
    rows: list[Row], hit: Sequence[int], rng: random.Random, make: Callable[[float], float]
) -> list[Row] | None:
    """Change the numbers of a column; None where the table has none."""
    name = number_column(rows, rng)
    if name is None:
        return None
    for at in hit:
        if rows[at][name] is not None:
            rows[at] = {**rows[at], name: make(rows[at][name])}
    return rows


PLANTED_NUMBERS: dict[str, Callable[[float], float]] = {
    "-999 for missing": lambda v: -999,
    "9999 for missing": lambda v: 9999,
    "a unit 1000 times smaller": lambda v: v * 1000,
    "a unit 2.54 times smaller": lambda v: v * 2.54,
    "partly logarithms": lambda v: float(np.log1p(abs(v))),
    "sign turned": lambda v: -v,
    "missing as 0": lambda v: 0,
}
for _name, _change in PLANTED_NUMBERS.items():
    fault(f"column: {_name}", TABLES)(
        lambda rows, hit, rng, make=_change: change_column(rows, hit, rng, make)  # type: ignore[misc]
    )
    fault(f"target: {_name}", "numbers")(
        lambda rows, hit, rng, make=_change: [  # type: ignore[misc]
            {**row, "label": make(row["label"])}
            if at in {*hit} and row["label"] is not None
            else row
            for at, row in enumerate(rows)
        ]
    )


@fault("column cut off above", TABLES)
def _clip(rows: list[Row], hit: Sequence[int], rng: random.Random) -> list[Row] | None:
    name = number_column(rows, rng)
    if name is None:
        return None
    values = sorted(row[name] for row in rows if row[name] is not None)
    top = values[int(len(values) * (1 - len(hit) / len(rows)))]
    return [{**r, name: min(r[name], top) if r[name] is not None else None} for r in rows]


@fault("target cut off above", "numbers")
def _clip_target(rows: list[Row], hit: Sequence[int], rng: random.Random) -> list[Row]:
    values = sorted(row["label"] for row in rows if row["label"] is not None)
    top = values[int(len(values) * (1 - len(hit) / len(rows)))]
    return [{**r, "label": r["label"] and min(r["label"], top)} for r in rows]


@fault("missing filled with the mean", TABLES)
def _mean(rows: list[Row], hit: Sequence[int], rng: random.Random) -> list[Row] | None:
    name = number_column(rows, rng)
    if name is None:
        return None
    mean = float(np.mean([row[name] for row in rows if row[name] is not None]))
    for at in hit:
        rows[at] = {**rows[at], name: mean}
    return rows


@fault("column made from the target", "numbers", whole=True)
def _derived(rows: list[Row], hit: Sequence[int], rng: random.Random) -> list[Row]:
    return [{**r, "grade": round(float(np.sqrt(abs(r["label"] or 0))), 1)} for r in rows]


@fault("column made from the class, with noise", "classes", whole=True)
def _noisy(rows: list[Row], hit: Sequence[int], rng: random.Random) -> list[Row]:
    codes = {name: n for n, name in enumerate(classes_of(rows))}
    return [{**r, "score": round(codes[r["label"]] * 3 + rng.gauss(0, 0.4), 3)} for r in rows]


@fault("sorted by class, with the row number", "classes", whole=True)
def _sorted(rows: list[Row], hit: Sequence[int], rng: random.Random) -> list[Row]:
    made = sorted(rows, key=lambda row: str(row["label"]))
    return [{**row, "nr": n * 3 + 11} for n, row in enumerate(made)]


@fault("two columns exchanged", TABLES)
def _columns(rows: list[Row], hit: Sequence[int], rng: random.Random) -> list[Row] | None:
    one, two = number_column(rows, rng), number_column(rows, rng)
    if one is None or two is None or one == two:
        return None
    for at in hit:
        rows[at] = {**rows[at], one: rows[at][two], two: rows[at][one]}
    return rows


def change_features(
    rows: list[Row], hit: Sequence[int], make: Callable[[np.ndarray[Any, Any]], Any]
) -> None:
    """Change the features of the rows that are hit."""
    for at in hit:
        made = make(np.array(rows[at]["features"], np.float64))
        rows[at] = {**rows[at], "features": np.asarray(made).tolist()}


def frozen(x: np.ndarray[Any, Any]) -> Any:
    """Repeat the first step."""
    return np.broadcast_to(x[:1], x.shape) if x.ndim == 2 else np.full_like(x, x[0])


PLANTED_FEATURES: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "zeros": lambda x: x * 0,
    "frozen": frozen,
    "1000 times larger": lambda x: x * 1000,
    "padded with zeros": lambda x: np.concatenate([x[: len(x) // 2], x[len(x) // 2 :] * 0]),
    "clipped": lambda x: np.clip(x, -np.abs(x).max() / 8, np.abs(x).max() / 8),
    "-999 within": lambda x: np.where(np.arange(x.size).reshape(x.shape) % 17 == 3, -999.0, x),
    "one channel dead": lambda x: x * (np.arange(x.shape[-1]) > 0) if x.shape[-1] > 1 else x * 0,
    "an offset": lambda x: x + 20 * (np.abs(x).max() + 1),
}
for _name, _features in PLANTED_FEATURES.items():
    fault(f"features: {_name}", "features")(
        lambda rows, hit, rng, make=_features: change_features(rows, hit, make)  # type: ignore[misc]
    )


@fault("features: an offset in one class", "features", whole=True)
def _offset(rows: list[Row], hit: Sequence[int], rng: random.Random) -> None:
    name = classes_of(rows)[0]
    change_features(
        rows,
        [n for n, row in enumerate(rows) if row["label"] == name],
        lambda x: x + 9 * np.abs(x).max(),
    )


@fault("copies with noise", "features image audio")
def _copies(rows: list[Row], hit: Sequence[int], rng: random.Random) -> list[Row]:
    made, key = [*rows], next(n for n in ("features", "image", "audio") if n in rows[0])
    noise = np.random.default_rng(0)
    for at in hit:
        x = np.asarray(rows[at][key], np.float64)
        changed = x + noise.normal(0, 0.01 * (x.std() + 1e-9), x.shape)
        made.append({**rows[at], key: changed.tolist() if key == "features" else changed})
    rng.shuffle(made)
    return made


def change_media(rows: list[Row], hit: Sequence[int], make: Callable[[Any], Any]) -> None:
    """Change pictures or recordings."""
    for at in hit:
        key = "image" if "image" in rows[at] else "audio"
        rows[at] = {**rows[at], key: make(np.asarray(rows[at][key]))}


def mark_corner(x: Any) -> Any:
    """Draw a white square into the corner."""
    made = x.copy()
    made[-4:, -4:] = 255
    return made


PLANTED_PICTURES: dict[str, Callable[[Any], Any]] = {
    "black": lambda x: x * 0,
    "one grey": lambda x: x * 0 + 119,
    "inverted": lambda x: 255 - x,
    "turned": lambda x: np.rot90(x),
    "half black": lambda x: np.concatenate([x[: len(x) // 2], x[len(x) // 2 :] * 0]),
    "noise": lambda x: np.random.default_rng(x.sum()).integers(0, 256, x.shape),
    "too dark": lambda x: x // 16,
}
PLANTED_SOUNDS: dict[str, Callable[[Any], Any]] = {
    "silent": lambda x: x * 0,
    "clipped": lambda x: np.clip(x * 40.0, -32768, 32767),
    "half silent": lambda x: np.concatenate([x[: len(x) // 2], x[len(x) // 2 :] * 0]),
    "100 times softer": lambda x: x // 100,
    "an offset": lambda x: x // 2 + 9000,
    "noise": lambda x: np.random.default_rng(len(x)).normal(0, 3000, x.shape),
}
for _kind, _planted in (("image", PLANTED_PICTURES), ("audio", PLANTED_SOUNDS)):
    for _name, _media in _planted.items():
        fault(f"{_kind}: {_name}", _kind)(
            lambda rows, hit, rng, make=_media: change_media(rows, hit, make)  # type: ignore[misc]
        )
_IN_ONE_CLASS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("image", "a mark in the corner"): mark_corner,
    ("image", "brighter"): lambda x: np.clip(x * 0.5 + 128, 0, 255),
    ("image", "smaller"): lambda x: x[::2, ::2],
    ("audio", "softer"): lambda x: x // 20,
    ("audio", "longer"): lambda x: np.concatenate([x, x, x]),
    ("audio", "with an offset"): lambda x: x // 2 + 3000,
}
for (_kind, _name), _media in _IN_ONE_CLASS.items():
    fault(f"{_kind}: {_name} in one class", _kind, whole=True)(
        lambda rows, hit, rng, make=_media: change_media(  # type: ignore[misc]
            rows, [n for n, r in enumerate(rows) if r["label"] == classes_of(rows)[0]], make
        )
    )


def change_tags(
    rows: list[Row], hit: Sequence[int], make: Callable[[list[str]], list[str]]
) -> None:
    """Change the tags of the sentences that are hit."""
    for at in hit:
        rows[at] = {**rows[at], "tags": make(rows[at]["tags"])}


PLANTED_TAGS: dict[str, Callable[[list[str]], list[str]]] = {
    "moved by one": lambda t: [t[-1], *t[:-1]],
    "I for B": lambda t: [f"I{n[1:]}" if n.startswith("B-") else n for n in t],
    "B for I": lambda t: [f"B{n[1:]}" if n.startswith("I-") else n for n in t],
    "none in a document": lambda t: ["O"] * len(t),
    "prefixes dropped": lambda t: [n.split("-", 1)[-1] for n in t],
    "BILOU for BIO": lambda t: [
        n if n == "O" else f"{'U' if n[0] == 'B' else 'L'}{n[1:]}" if last else n
        for n, last in zip(
            t,
            [a != "O" and b[:1] != "I" for a, b in zip(t, [*t[1:], "O"], strict=True)],
            strict=True,
        )
    ],
}
for _name, _tags in PLANTED_TAGS.items():
    fault(f"tags: {_name}", "tags")(
        lambda rows, hit, rng, make=_tags: change_tags(rows, hit, make)  # type: ignore[misc]
    )


def plant(fault: Fault, rows: list[Row], share: float, seed: int = 0) -> list[Row] | None:
    """Return the rows with the fault in a share of them; None where they cannot have it."""
    rng = random.Random(seed)
    count = len(rows) if fault.whole else max(2, round(share * len(rows)))
    hit = sorted(rng.sample(range(len(rows)), count))
    changed = [*rows]
    try:
        made = fault.change(changed, hit, rng)
    except LookupError:  # a dialogue has no column of this kind
        return None
    if isinstance(made, list):
        return made
    return changed if any(a is not b for a, b in zip(rows, changed, strict=False)) else None


def halves(sets: Sequence[HealthySet], half: str) -> list[HealthySet]:
    """Return every second set of each kind."""
    seen: Counter[str] = Counter()
    chosen = []
    for each in sets:
        seen[each.kind] += 1
        if half == "all" or (half == "fit") == bool(seen[each.kind] % 2):
            chosen.append(each)
    return chosen


def kind_of(text: str) -> str:
    """Return a message without its quotations and numbers, so that two can be compared."""
    return re.sub(r"[\d.,%]+", "#", re.sub(r"'[^']*'|\"[^\"]*\"", "", text))[:160]


def judge(planted: dict[str, Any], healthy: dict[str, Any]) -> str:
    """Return found, hinted or missed."""
    known = {(code, column, kind_of(m)) for code, _, column, m in healthy["found"]}
    if any(
        (c, column, kind_of(m)) not in known for c, s, column, m in planted["found"] if s in LOUD
    ):
        return "found"
    notes = {kind_of(note)[:60] for note in healthy["notes"]}
    return "hinted" if any(kind_of(n)[:60] not in notes for n in planted["notes"]) else "missed"


def run_healthy(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Check each healthy set as it is."""
    source = Source(args.mirror, args.shared)
    for each in halves(all_sets(), args.half):
        if all(word in each.name for word in args.only):
            try:
                rows = each.rows(source, args.rows)
            except FileNotFoundError as gone:
                print(f"left out: {gone}")
                continue
            made = check(rows, each.kind)
            loud = [f for f in made["found"] if f[1] in LOUD]
            print(
                f"{each.name}: {len(rows)} rows, {made['wall']} s", *loud, sep="\n    ", flush=True
            )
            yield {"set": each.name, "kind": each.kind, "rows": len(rows), **made}


def run_planted(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Plant each fault into one set of each kind, at each strength."""
    source = Source(args.mirror, args.shared)
    by_kind = defaultdict(list)
    for each in halves(all_sets(), args.half):
        by_kind[each.kind].append(each)
    healthy: dict[str, dict[str, Any]] = {}
    for at, fault in enumerate(FAULTS):
        for kind in fault.kinds:
            chosen = by_kind[kind][(at + args.shift) % len(by_kind[kind])]
            title = f"{fault.name} / {chosen.name}"
            if not all(word in title for word in args.only):
                continue
            rows = chosen.rows(source, args.rows)
            if chosen.name not in healthy:
                healthy[chosen.name] = check(rows, kind)
            for share in args.shares if not fault.whole else (1.0,):
                changed = plant(fault, rows, share)
                if changed is None:
                    continue
                made = check(changed, kind)
                result = judge(made, healthy[chosen.name])
                codes = {f[0] for f in made["found"] if f[1] in LOUD}
                codes -= {f[0] for f in healthy[chosen.name]["found"]}
                print(f"{result:7} {share:5.0%} {title} {' '.join(sorted(codes))}", flush=True)
                facts = {"fault": fault.name, "kind": kind, "set": chosen.name, "share": share}
                kept = {name: made[name] for name in ("command", "found", "wall")}
                yield {**facts, "result": result, **kept}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("healthy", "planted", "page"))
    parser.add_argument("--mirror", type=Path, default=Path("mirror"), help="bare clones")
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--half", choices=("fit", "judge", "all"), default="fit")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--shift", type=int, default=0, help="take other sets for the faults")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--out", type=Path, default=Path("planted_results"))
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    if args.what == "page":
        from evidence_page import write_page

        write_page(args.out, PAGE)
        return
    run = run_healthy if args.what == "healthy" else run_planted
    path = args.out / f"{args.what}_{args.half}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for result in run(args):
            file.write(json.dumps(result) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
