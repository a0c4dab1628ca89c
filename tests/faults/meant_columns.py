"""Columns whose meaning is open: labels under other names, pairs, choices, rows of two forms."""

from __future__ import annotations

import random
from typing import Any

from faults.case import Case
from faults.columns import ALL, BERT, asked, bot, classed, rows, user
from faults.misread import NOUNS

Row = dict[str, Any]


def texts(count: int = 40, seed: int = 3, **more: Any) -> list[Row]:
    """Texts of rare words, with further columns as functions of the row's number."""
    choose = random.Random(seed)
    return [
        {
            "text": " ".join(choose.choices(NOUNS, k=12)),
            **{name: make(n) for name, make in more.items()},
        }
        for n in range(count)
    ]


def told(**more: Any) -> list[Row]:
    """Questions of rare words, with further columns."""
    return [
        {"question": row.pop("text"), **row} for row in texts(**{**more, "seed": 5, "count": 30})
    ]


def sentence(n: int) -> str:
    return " ".join(random.Random(n).choices(NOUNS, k=9))


def in_two_forms(n: int, q: str, a: str) -> Row:
    return {"prompt": q, "completion": a} if n % 2 else {"messages": user(q) + bot(a)}


CASES = [
    Case(
        "number beside the text",
        "SF143",
        {"a.jsonl": texts(price=lambda n: 3.5 * n % 41)},
        BERT,
        column="price",
    ),
    Case(
        "two columns of labels under other names",
        "SF143",
        {"a.jsonl": texts(coarse_label=lambda n: n % 3, fine_label=lambda n: n % 6)},
        BERT,
        column="coarse_label",
    ),
    Case(
        "tags of words beside the text",
        "SF143",
        {
            "a.jsonl": [
                {"text": " ".join(NOUNS[: 4 + n % 5]), "tags": ["O", "B-X", *"OO", *"O" * (n % 5)]}
                for n in range(30)
            ]
        },
        BERT,
        column="tags",
    ),
    Case(
        "endings of which the label names one",
        "SF145",
        {
            "a.jsonl": texts(
                endings=lambda n: [sentence(4 * n + k) for k in range(4)],
                label=lambda n: n * 7 % 4,
            )
        },
        BERT,
        column="endings",
    ),
    Case(
        "choices of which the answer names one",
        "SF145",
        {
            "a.jsonl": asked(
                choices=lambda n: [f"{n}", f"{2 * n}", f"{3 * n}"], answer=lambda n: "ABC"[n % 3]
            )
        },
        options="--set columns.answer=answer --set ignore=completion",
        column="choices",
    ),
    Case(
        "texts with every label",
        "SF225",
        {"a.jsonl": [{"text": sentence(n % 15), "label": n // 15} for n in range(45)]},
        BERT,
    ),
    Case(
        "most texts with two labels",
        "SF223",
        {
            "a.jsonl": [{"text": sentence(n % 30), "label": "ab"[n // 30]} for n in range(50)]
            + [{"text": sentence(100 + n), "label": "ab"[n % 2]} for n in range(10)]
        },
        BERT,
        exits=0,
    ),
    Case(
        "two answers, and no word on which is better",
        "SF130",
        {"a.jsonl": told(response_j=sentence, response_k=lambda n: sentence(n + 50))},
        column="response_j",
    ),
    Case(
        "answers all empty",
        "SF401",
        {"a.jsonl": rows(lambda n, q, a: {"prompt": q, "completion": ""})},
    ),
    Case(
        "code beside the text",
        "SF134",
        {"a.jsonl": texts(code=lambda n: f"def f(x): return x + {n}")},
        options=ALL,
        column="code",
        exits=0,
    ),
    Case(
        "field of conversations that is not written",
        "SF164",
        {
            "a.jsonl": rows(
                lambda n, q, a: {
                    "conversations": [
                        {"from": "human", "value": q, "image": f"{n}.png"},
                        {"from": "gpt", "value": a},
                    ]
                }
            )
        },
        column="conversations.image",
        exits=0,
    ),
    Case(
        "summaries for a model without a decoder of its own",
        "SF202",
        {"a.jsonl": [{"document": sentence(n), "summary": sentence(n + 60)} for n in range(30)]},
    ),
]

HEALTHY = [
    Case(
        "title and text are a pair",
        None,
        {"a.jsonl": classed(title=lambda n: f"The news of day {n}")},
        BERT,
        also=("SF144",),
    ),
    Case(
        "question and passage with true and false",
        None,
        {"a.jsonl": told(passage=lambda n: sentence(n + 70), answer=lambda n: n % 3 > 0)},
        BERT,
        also=("SF144",),
    ),
    Case(
        "classes as lists of 0 and 1",
        None,
        {"a.jsonl": texts(labels=lambda n: [n % 2, n % 3 // 2, int(n % 5 > 1)])},
        BERT,
    ),
    Case(
        "one class as a list of 0 and 1",
        None,
        {"a.jsonl": texts(label=lambda n: [float(n % 3 == k) for k in range(3)])},
        BERT,
    ),
    Case(
        "tags of texts",
        None,
        {"a.jsonl": texts(tags=lambda n: [["sql"], ["sql", "linux"], ["python"]][n % 3])},
        BERT,
    ),
    *(
        Case(f"text with {name}", None, {"a.jsonl": texts(**{name: make})})
        for name, make in {
            "token_count": lambda n: 40 + 7 * n % 31,
            "source": lambda n: "web",
            "timestamp": lambda n: f"2024-03-{1 + n % 28:02d}T10:00:00Z",
            "meta": lambda n: f'{{"page": {n}}}',
            "title": lambda n: sentence(n)[:20],
        }.items()
    ),
    Case(
        "rows of two forms",
        None,
        {"a.jsonl": rows(in_two_forms, 40)},
        also=("SF140",),
    ),
    Case(
        "answers under two names",
        None,
        {
            "a.jsonl": rows(
                lambda n, q, a: (
                    {"prompt": q, "completion": a} if n % 2 else {"instruction": q, "output": a}
                ),
                40,
            )
        },
        also=("SF140",),
    ),
    Case(
        "empty lines between paragraphs",
        None,
        {"a.txt": "".join(f"{sentence(n)}\n\n" for n in range(30))},
        also=("SF203",),
    ),
    Case(
        "choices in the prompt as well",
        None,
        {
            "a.jsonl": asked(
                choices=lambda n: [f"It is {2 * n}.", f"It is {n}."],
            )
        },
    ),
    Case(
        "table with few different rows",
        None,
        {
            "a.csv": "sex,deck,label\n"
            + "".join(
                f"{'mf'[n % 2]},{'xyz'[n * 7 % 3]},{'ab'[n * 5 % 11 > 4]}\n" for n in range(60)
            )
        },
        "tiny:mlp",
        also=("SF224",),
    ),
]
