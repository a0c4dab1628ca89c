"""Text that the tokenizer does not know, and texts that it knows well enough."""

from __future__ import annotations

from typing import Any

from builders import echo_rows, sentiment_rows
from faults.case import Case, Latin, for_bert
from faults.scale import RUSSIAN

OWN = "--tokenizer tok"
T5 = "tiny:t5"
Files = dict[str, Any]


def texts(said: Any, count: int = 60) -> Files:
    """Texts of two classes, changed by a function of the text and the row's number."""
    rows = sentiment_rows(count)
    made = [{**row, "text": said(row["text"], n)} for n, row in enumerate(rows)]
    return {"a.jsonl": made, "tok": Latin()}


def answers(said: Any, source: str = "prompt", target: str = "completion") -> Files:
    """Prompts, and answers that are a function of the row's number and the true answer."""
    rows = [
        {source: f"{row['prompt']} {n}", target: said(n, row["completion"])}
        for n, row in enumerate(echo_rows(40))
    ]
    return {"a.jsonl": rows, "tok": Latin()}


def in_russian(n: int, _: str) -> str:
    return f"{RUSSIAN[n % len(RUSSIAN)]} {n}"


CASES = [
    for_bert(
        "SF294 texts in a script that the vocabulary lacks",
        texts(lambda text, n: f"{RUSSIAN[n % 4]} {RUSSIAN[n % 3]} {text[:4]}"),
        OWN,
        row=0,
    ),
    Case(
        "SF294 targets in a script that the vocabulary lacks",
        answers(in_russian, "source", "target"),
        T5,
        OWN,
    ),
    for_bert(
        "emoji that the vocabulary lacks",
        texts(lambda text, n: f"{text} \U0001f642"),
        OWN,
        row=0,
        note="unknown token",
    ),
    Case(
        "answers with a word that the vocabulary lacks",
        answers(lambda n, word: f"{word} and word and {'это' if n % 3 == 0 else 'this'}"),
        options=OWN,
        note="unknown token",
    ),
]

HEALTHY = [
    for_bert(
        "not SF294: one emoji among many texts",
        texts(lambda text, n: f"{text} \U0001f642" if n == 7 else text),
        OWN,
    ),
    for_bert(
        "Russian in a tokenizer made from the data",
        texts(lambda text, n: f"{RUSSIAN[n % 4]} {text} {n}")["a.jsonl"],
    ),
    Case(
        "tokens of one's own, with unknown ones",
        {
            "a.jsonl": [{"input_ids": [1, 5 + n, 1, 1, 9 + n % 7, 2]} for n in range(30)],
            "tok": Latin(),
        },
        options=f"--task causal-lm {OWN}",
    ),
]
