"""Faults of tokenized rows: ids, labels and masks that do not suit each other or the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from faults.case import Case, Chat


def tokens(place: int, ids: Any, labels: Any, **more: Any) -> list[dict[str, Any]]:
    """Tokenized rows, one of them odd; `more` are functions of the row's number."""
    rows: list[dict[str, Any]] = [
        {"input_ids": [5, 6, 7 + n], "labels": [-100, 6, 7 + n]} for n in range(20)
    ]
    rows[place] = {"input_ids": ids, "labels": labels}
    for name, value in more.items():
        rows = [{**row, name: value(number)} for number, row in enumerate(rows)]
    return rows


LONG = "--max-seq-length 900 --set eval_share=0"
ALL = "--set eval_share=0"
LATE = [{"input_ids": [5] * 8 + [n + 5], "labels": [-100] * 8 + [n + 5]} for n in range(20)]
MASKED = [{"input_ids": [5, n], "labels": [-100, -100]} for n in range(20)]
TEXTS = [[5, 6 + n, 7 + n % 3, 9, 8 + n % 5] for n in range(20)]
EOS = 0
"""The end token of the tokenizer that `Chat("chatml")` stands for; it pads as well."""


def answers(*tail: int, labels: Any = None) -> list[dict[str, Any]]:
    """Tokenized rows of a prompt of two tokens, an answer of three, and a tail with labels."""
    rows = []
    for ids in TEXTS:
        own = [*ids, *tail]
        learned = [-100, -100, *own[2:]] if labels is None else labels(own)
        rows.append({"input_ids": own, "labels": learned})
    return rows


def filled(length: int, pad: int, mask: bool = False) -> list[dict[str, Any]]:
    """Tokenized rows of different lengths, filled up to one length, with labels everywhere."""
    rows = []
    for number, text in enumerate(TEXTS):
        ids = [*text, *[7] * (number % 3)]
        row = ids + [pad] * (length - len(ids))
        rows.append({"input_ids": row, "labels": row})
        if mask:
            rows[-1]["attention_mask"] = [int(place < len(ids)) for place in range(length)]
    return rows


TOK = "--tokenizer tok --set eval_share=0"
PADS = [number % 3 for number in range(20)]
FILLED = np.array([[0] * n + [5, 6, 7, *[9] * (5 - n)] for n in PADS])
LEFT = {
    "input_ids": FILLED,
    "labels": FILLED,
    "attention_mask": np.array([[0] * n + [1] * (8 - n) for n in PADS]),
}
"""Rows that are filled up on the left, with labels everywhere."""


def tokenized(name: str, code: str, rows: Any, **more: Any) -> Case:
    """Tokenized rows, all of them trained on, up to 900 tokens."""
    return Case(name, code, rows, options=LONG, **more)


def labelled(
    name: str, code: str, rows: Any, options: str = ALL, row: int | None = 0, **more: Any
) -> Case:
    """Tokenized rows with labels, all of them trained on, the first of which is at fault."""
    return Case(name, code, rows, options=options, row=row, **more)


LABELS = [
    labelled(
        "labels shifted already",
        "SF150",
        answers(labels=lambda ids: [*ids[1:], -100]),
        column="labels",
    ),
    labelled(
        "labels shifted already, prompts masked",
        "SF150",
        {"a.jsonl": answers(EOS, labels=lambda ids: [-100, *ids[2:], -100]), "tok": Chat("chatml")},
        options=TOK,
    ),
    labelled(
        "labels shifted the other way", "SF150", answers(labels=lambda ids: [-100, *ids[:-1]])
    ),
    labelled(
        "labels of another text",
        "SF156",
        answers(labels=lambda ids: [-100, -100, 30, 31, 32]),
        column="labels",
    ),
    labelled(
        "labels of another text in one row", "SF156", tokens(8, [5, 6, 7], [-100, 9, 8]), row=8
    ),
    labelled("labels on padding", "SF151", filled(12, 0)),
    labelled(
        "labels on padding that is eos",
        "SF151",
        {"a.jsonl": filled(12, EOS), "tok": Chat("chatml")},
        options=TOK,
    ),
    labelled(
        "labels of tokens with a mask of 0",
        "SF152",
        [{**row, "attention_mask": [1, 1, 1, 0, 1]} for row in answers()],
        column="labels",
    ),
    labelled(
        "attention_mask used as the mask of the loss",
        "SF152",
        {
            "a.npz": {
                "input_ids": np.array(TEXTS),
                "labels": np.array(TEXTS),
                "attention_mask": np.array([[0, 0, 1, 1, 1]] * len(TEXTS)),
            }
        },
        column="labels",
    ),
    labelled("labels on padding with a mask of 0", "SF153", filled(12, 0, mask=True), row=None),
    labelled("labels on padding on the left", "SF153", {"a.npz": LEFT}, row=None),
    labelled(
        "answers without their end",
        "SF155",
        {"a.jsonl": answers(), "tok": Chat("chatml")},
        options=TOK,
    ),
    labelled(
        "end of every answer masked",
        "SF154",
        {
            "a.jsonl": answers(EOS, labels=lambda ids: [-100, *ids[1:-1], -100]),
            "tok": Chat("chatml"),
        },
        options=TOK,
        row=None,
    ),
    labelled(
        "ends masked as if they were padding",
        "SF154",
        {
            "a.jsonl": [
                {
                    "input_ids": [*ids, *[7] * (n % 3), *[EOS] * (4 - n % 3)],
                    "labels": [*ids, *[7] * (n % 3), *[-100] * (4 - n % 3)],
                    "attention_mask": [1] * (6 + n % 3) + [0] * (3 - n % 3),
                }
                for n, ids in enumerate(TEXTS)
            ],
            "tok": Chat("chatml"),
        },
        options=TOK,
    ),
    labelled(
        "texts of one length by padding without their end",
        "SF155",
        {
            "a.jsonl": [
                {**row, "labels": [-100 if token == EOS else token for token in row["labels"]]}
                for row in filled(12, EOS, mask=True)
            ],
            "tok": Chat("chatml"),
        },
        options=TOK,
    ),
    labelled(
        "texts without their end",
        "SF155",
        {
            "a.jsonl": [{"input_ids": [5, 6, *range(9, 10 + n)]} for n in range(20)],
            "tok": Chat("chatml"),
        },
        options=f"--task causal-lm {TOK}",
        row=None,
    ),
]
CASES = [
    tokenized(
        "id beyond the vocabulary",
        "SF302",
        tokens(17, [5, 99_999], [5, 6]),
        row=17,
        column="input_ids",
        process=True,
    ),
    tokenized(
        "label that is negative and not -100",
        "SF302",
        tokens(3, [5, 6], [5, -1]),
        row=3,
        column="labels",
    ),
    tokenized(
        "labels longer than ids", "SF201", tokens(8, [5, 6], [5, 6, 7]), row=8, column="labels"
    ),
    tokenized(
        "mask longer than ids",
        "SF201",
        tokens(
            8, [5, 6], [5, 6], attention_mask=lambda n: [1] * (2 if n == 8 else 4 if n == 5 else 3)
        ),
        row=5,
        column="attention_mask",
    ),
    tokenized("null among ids", "SF207", tokens(8, [5, None], [5, 6]), row=8, column="input_ids"),
    tokenized("null instead of ids", "dropped: ", tokens(8, None, [5, 6]), row=8),
    tokenized("fractions as ids", "SF213", tokens(8, [5.5, 6], [5, 6]), row=8, column="input_ids"),
    tokenized(
        "ids in a list too many",
        "SF208",
        [{"input_ids": [[5, n]], "labels": [[5, n]]} for n in range(20)],
        row=0,
        column="input_ids",
    ),
    tokenized(
        "ids nested in one row", "SF103", tokens(8, [[5, 6]], [5, 6]), row=8, column="input_ids"
    ),
    tokenized(
        "one label for a row of tokens",
        "SF208",
        [{"input_ids": [5, n], "labels": n % 2} for n in range(20)],
        row=0,
        column="labels",
    ),
    tokenized("longer than the positions", "SF304", tokens(8, [5] * 600, [5] * 600), row=8),
    Case(
        "longer than asked",
        "SF212",
        tokens(8, [5] * 60, [5] * 60),
        options=f"--max-seq-length 50 --set overlong=error {ALL}",
        row=8,
    ),
    Case("every label masked", "SF401", MASKED, row=0, process=True),
    Case(
        "every label of a row masked",
        "dropped: ",
        tokens(6, [5, 6], [-100, -100]),
        options=ALL,
        row=6,
    ),
    Case(
        "truncation deletes every label",
        "SF401",
        LATE,
        options=f"--task causal-lm --max-seq-length 8 --set overlong=truncate {ALL}",
    ),
    Case(
        "truncation that would delete the answer",
        "SF216",
        LATE,
        options=f"--max-seq-length 8 {ALL}",
    ),
    Case(
        "only the first token labelled",
        "SF401",
        [{"input_ids": [5, n + 6], "labels": [5, -100]} for n in range(20)],
        options=ALL,
    ),
]
