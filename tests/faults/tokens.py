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


PADS = [number % 3 for number in range(20)]
FILLED = np.array([[0] * n + [5, 6, 7, *[9] * (5 - n)] for n in PADS])
LEFT = {
    "input_ids": FILLED,
    "labels": FILLED,
    "attention_mask": np.array([[0] * n + [1] * (8 - n) for n in PADS]),
}
"""Rows that are filled up on the left, with labels everywhere."""


def tokenized(title: str, rows: Any, **more: Any) -> Case:
    """Tokenized rows, all of them trained on, up to 900 tokens."""
    return Case(title, rows, options=LONG, **more)


def labelled(title: str, rows: Any, options: str = ALL, row: int | None = 0, **more: Any) -> Case:
    """Tokenized rows with labels, all of them trained on, the first of which is at fault."""
    return Case(title, rows, options=options, row=row, **more)


LABELS = [
    labelled(
        "SF150 labels shifted already",
        answers(labels=lambda ids: [*ids[1:], -100]),
        column="labels",
    ),
    labelled(
        "SF150 labels shifted already, prompts masked",
        answers(EOS, labels=lambda ids: [-100, *ids[2:], -100]),
        tokenizer=Chat("chatml"),
    ),
    labelled("SF150 labels shifted the other way", answers(labels=lambda ids: [-100, *ids[:-1]])),
    labelled(
        "SF156 labels of another text",
        answers(labels=lambda ids: [-100, -100, 30, 31, 32]),
        column="labels",
    ),
    labelled("SF156 labels of another text in one row", tokens(8, [5, 6, 7], [-100, 9, 8]), row=8),
    labelled("SF151 labels on padding", filled(12, 0)),
    labelled("SF151 labels on padding that is eos", filled(12, EOS), tokenizer=Chat("chatml")),
    labelled(
        "SF152 labels of tokens with a mask of 0",
        [{**row, "attention_mask": [1, 1, 1, 0, 1]} for row in answers()],
        column="labels",
    ),
    labelled(
        "SF152 attention_mask used as the mask of the loss",
        {
            "a.npz": {
                "input_ids": np.array(TEXTS),
                "labels": np.array(TEXTS),
                "attention_mask": np.array([[0, 0, 1, 1, 1]] * len(TEXTS)),
            }
        },
        column="labels",
    ),
    labelled("SF153 labels on padding with a mask of 0", filled(12, 0, mask=True), row=None),
    labelled("SF153 labels on padding on the left", {"a.npz": LEFT}, row=None),
    labelled("SF155 answers without their end", answers(), tokenizer=Chat("chatml")),
    labelled(
        "SF154 end of every answer masked",
        answers(EOS, labels=lambda ids: [-100, *ids[1:-1], -100]),
        tokenizer=Chat("chatml"),
        row=None,
    ),
    labelled(
        "SF154 ends masked as if they were padding",
        [
            {
                "input_ids": [*ids, *[7] * (n % 3), *[EOS] * (4 - n % 3)],
                "labels": [*ids, *[7] * (n % 3), *[-100] * (4 - n % 3)],
                "attention_mask": [1] * (6 + n % 3) + [0] * (3 - n % 3),
            }
            for n, ids in enumerate(TEXTS)
        ],
        tokenizer=Chat("chatml"),
    ),
    labelled(
        "SF155 texts of one length by padding without their end",
        [
            {**row, "labels": [-100 if token == EOS else token for token in row["labels"]]}
            for row in filled(12, EOS, mask=True)
        ],
        tokenizer=Chat("chatml"),
    ),
    labelled(
        "SF155 texts without their end",
        [{"input_ids": [5, 6, *range(9, 10 + n)]} for n in range(20)],
        options=f"--task causal-lm {ALL}",
        tokenizer=Chat("chatml"),
        row=None,
    ),
]
CASES = [
    tokenized(
        "SF302 id beyond the vocabulary",
        tokens(17, [5, 99_999], [5, 6]),
        row=17,
        column="input_ids",
    ),
    tokenized(
        "SF302 label that is negative and not -100",
        tokens(3, [5, 6], [5, -1]),
        row=3,
        column="labels",
    ),
    tokenized("SF201 labels longer than ids", tokens(8, [5, 6], [5, 6, 7]), row=8, column="labels"),
    tokenized(
        "SF201 mask longer than ids",
        tokens(
            8, [5, 6], [5, 6], attention_mask=lambda n: [1] * (2 if n == 8 else 4 if n == 5 else 3)
        ),
        row=5,
        column="attention_mask",
    ),
    tokenized("SF207 null among ids", tokens(8, [5, None], [5, 6]), row=8, column="input_ids"),
    tokenized("null instead of ids", tokens(8, None, [5, 6]), row=8, note="dropped: "),
    tokenized("SF213 fractions as ids", tokens(8, [5.5, 6], [5, 6]), row=8, column="input_ids"),
    tokenized(
        "SF208 ids in a list too many",
        [{"input_ids": [[5, n]], "labels": [[5, n]]} for n in range(20)],
        row=0,
        column="input_ids",
    ),
    tokenized(
        "SF103 ids nested in one row", tokens(8, [[5, 6]], [5, 6]), row=8, column="input_ids"
    ),
    tokenized("SF304 longer than the positions", tokens(8, [5] * 600, [5] * 600), row=8),
    Case(
        "SF212 longer than asked",
        tokens(8, [5] * 60, [5] * 60),
        options=f"--max-seq-length 50 --set overlong=error {ALL}",
        row=8,
    ),
    Case("SF401 every label masked", MASKED, row=0),
    Case(
        "every label of a row masked",
        tokens(6, [5, 6], [-100, -100]),
        options=ALL,
        row=6,
        note="dropped: ",
    ),
    Case(
        "SF401 truncation deletes every label",
        LATE,
        options=f"--task causal-lm --max-seq-length 8 --set overlong=truncate {ALL}",
    ),
    Case(
        "SF215 truncation that would delete the answer", LATE, options=f"--max-seq-length 8 {ALL}"
    ),
    Case(
        "SF401 only the first token labelled",
        [{"input_ids": [5, n + 6], "labels": [5, -100]} for n in range(20)],
        options=ALL,
    ),
]
