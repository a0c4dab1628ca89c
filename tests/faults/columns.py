"""Columns that are not read although they mean something, and healthy ones that only look it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults.case import Case, for_bert, for_mlp

ALL = "--set eval_share=0"
Row = dict[str, Any]


def rows(make: Callable[[int, str, str], Row], count: int = 24) -> list[Row]:
    """Rows made from a number, a question and its answer."""
    return [make(n, f"What is {n} and {n}?", f"It is {2 * n}.") for n in range(count)]


def said(*turns: tuple[str, str]) -> list[dict[str, str]]:
    """Messages of a dialogue."""
    return [{"role": role, "content": content} for role, content in turns]


def user(text: str) -> list[dict[str, str]]:
    return said(("user", text))


def bot(text: str) -> list[dict[str, str]]:
    return said(("assistant", text))


def asked(**more: Callable[[int], Any]) -> list[Row]:
    """Prompts and answers with further columns, each a function of the row's number."""
    return rows(
        lambda n, q, a: {
            "prompt": q,
            "completion": a,
            **{name: make(n) for name, make in more.items()},
        }
    )


def classed(**more: Callable[[int], Any]) -> list[Row]:
    """Texts and classes with further columns."""
    return rows(
        lambda n, q, a: {
            "text": f"{q} {a}",
            "label": "ab"[n % 2],
            **{name: make(n) for name, make in more.items()},
        }
    )


PAIRS: dict[str, tuple[str, list[Row]]] = {
    "standard": ("chosen", rows(lambda n, q, a: {"prompt": q, "chosen": a, "rejected": "No."})),
    "dialogues with prompts": (
        "chosen",
        rows(lambda n, q, a: {"prompt": user(q), "chosen": bot(a), "rejected": bot("No.")}),
    ),
    "texts without prompts": (
        "chosen",
        rows(lambda n, q, a: {"chosen": f"{q} {a}", "rejected": f"{q} No."}),
    ),
    "dialogues without prompts": (
        "chosen",
        rows(lambda n, q, a: {"chosen": user(q) + bot(a), "rejected": user(q) + bot("No.")}),
    ),
    "ranked instructions": (
        "chosen",
        rows(lambda n, q, a: {"instruction": q, "input": "", "chosen": a, "rejected": "No."}),
    ),
    "ranked conversations": (
        "chosen",
        rows(
            lambda n, q, a: {
                "conversations": [{"from": "human", "value": q}],
                "chosen": {"from": "gpt", "value": a},
                "rejected": {"from": "gpt", "value": "No."},
            }
        ),
    ),
    "preferred outputs": (
        "preferred_output",
        rows(
            lambda n, q, a: {
                "input": {"messages": user(q), "tools": []},
                "preferred_output": bot(a),
                "non_preferred_output": bot("No."),
            }
        ),
    ),
    "with scores": (
        "chosen",
        rows(
            lambda n, q, a: {
                "prompt": q,
                "chosen": user(q) + bot(a),
                "rejected": user(q) + bot("No."),
                "messages": user(q) + bot(a),
                "score_chosen": 5.0 + n,
                "score_rejected": 1.0,
            }
        ),
    ),
}
"""Forms of preference pairs, and the column of the better answers."""

OTHERS = [
    {"instruction": f"Add {n} and 1.", "input": "", "output": f"{n + 1}"} for n in range(40, 60)
]
CHATS = rows(
    lambda n, q, a: {"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]}
)

CASES = [
    *(
        Case(f"SF130 preference pairs: {name}", data, column=column)
        for name, (column, data) in PAIRS.items()
    ),
    Case(
        "SF130 several answers with scores",
        rows(lambda n, q, a: {"prompt": q, "responses": [a, "No."], "scores": [1, 0]}),
    ),
    Case(
        "SF130 completions with ratings",
        rows(
            lambda n, q, a: {"instruction": q, "completions": [{"response": a, "overall_score": 4}]}
        ),
    ),
    Case(
        "SF130 two answers, and which is better",
        rows(
            lambda n, q, a: {
                "prompt": q,
                "response_0": a,
                "response_1": "No.",
                "better_response_id": n % 2,
            }
        ),
    ),
    Case(
        "SF131 dialogues judged good or bad",
        rows(lambda n, q, a: {"messages": user(q) + bot(a), "label": n % 2 == 0}),
        column="label",
    ),
    Case(
        "SF131 answers tagged as bad",
        rows(lambda n, q, a: {"instruction": q, "output": a, "kto_tag": n > 20}),
        column="kto_tag",
    ),
    Case(
        "SF131 answers judged by a word",
        asked(label=lambda n: ("desirable", "undesirable")[n % 2]),
        column="label",
    ),
    Case("SF132 answers with a score", asked(score=lambda n: n % 5)),
    Case("SF132 answers with a rating", asked(overall_rating=lambda n: n / 2)),
    Case("SF133 prompts alone", rows(lambda n, q, a: {"prompt": q})),
    Case(
        "SF133 instructions with an input and no answer",
        rows(lambda n, q, a: {"instruction": q, "input": a}),
    ),
    for_bert(
        "SF134 title and summary beside the text",
        classed(title=lambda n: f"The news of day {n}", summary=lambda n: f"On day {n} it rained."),
        column="title",
    ),
    Case(
        "SF134 documents beside the question",
        asked(documents=lambda n: [f"Document {n}", "Another one"]),
        column="documents",
    ),
    Case(
        "SF136 images beside dialogues",
        rows(lambda n, q, a: {"messages": user(f"<image>{q}") + bot(a), "images": [f"{n}.png"]}),
        column="images",
    ),
    Case("SF136 audio beside prompts", asked(audio=lambda n: f"{n}.wav")),
    Case(
        "SF137 dialogues that end with the user",
        rows(lambda n, q, a: {"messages": user(q) + bot(a) + user("And then?")}),
    ),
    Case(
        "SF137 conversations that wait for an answer",
        rows(
            lambda n, q, a: {
                "conversations": [
                    {"from": "human", "value": q},
                    {"from": "gpt", "value": a},
                    {"from": "human", "value": "Why?"},
                ]
            }
        ),
    ),
    for_bert(
        "SF138 column of training and test rows",
        classed(split=lambda n: ("train", "test")[n % 3 == 0]),
        "--set split.folds=3",
    ),
    for_mlp(
        "SF138 table with training and test rows",
        {
            "a.csv": "size,subset,label\n"
            + "".join(
                f"{n * 7 % 31},{('train', 'dev')[n % 4 == 0]},{'ab'[n % 2]}\n" for n in range(60)
            )
        },
        "--set split.folds=3",
    ),
    Case(
        "SF141 files of texts and of tokens",
        {
            "a.jsonl": rows(lambda n, q, a: {"text": q}),
            "b.jsonl": [{"input_ids": [5, 6, 7 + n]} for n in range(20)],
        },
        data="a.jsonl b.jsonl",
        options="--task causal-lm",
    ),
    Case(
        "SF141 validation file of tokens",
        {
            "a.jsonl": rows(lambda n, q, a: {"messages": user(q) + bot(a)}),
            "e.jsonl": [{"input_ids": [5, 6, 7 + n]} for n in range(20)],
        },
        options="--eval-data e.jsonl",
    ),
    Case(
        "SF140 files of instructions and of dialogues",
        {"a.jsonl": OTHERS, "b.jsonl": CHATS},
        data="a.jsonl b.jsonl",
    ),
    Case(
        "SF142 two columns of answers",
        asked(response=lambda n: f"My reply is number {n}."),
        column="response",
    ),
    for_bert(
        "SF142 two columns of classes",
        rows(lambda n, q, a: {"text": q, "category": "ab"[n % 2], "sentiment": "xyz"[n % 3]}),
        column="sentiment",
    ),
    Case("SF139 weights of rows", asked(weight=lambda n: 1 + n % 3)),
    for_bert("SF139 weights of samples", classed(sample_weight=lambda n: n / 10)),
]

HEALTHY = [
    Case(
        "not SF130: better answers of pairs: texts without prompts",
        PAIRS["texts without prompts"][1],
        options="--task sft --set columns.answer=chosen",
    ),
    Case(
        "good answers of judged ones",
        rows(lambda n, q, a: {"prompt": q, "completion": a, "label": n % 3 > 0}, count=60),
        options="--set accept=SF131",
        also=("SF131", "dropped: "),
    ),
    Case(
        "not SF141: validation file in another form",
        {
            "a.jsonl": asked(),
            "e.jsonl": [{"messages": user(f"Add {n} and 1.") + bot(f"{n + 1}.")} for n in range(9)],
        },
        options="--eval-data e.jsonl",
        also=("SF140",),
    ),
    for_bert(
        "texts under two names",
        {
            "a.jsonl": classed(),
            "b.jsonl": [{"sentence": f"Day {n} is nice", "label": "ab"[n % 2]} for n in range(20)],
        },
        data="a.jsonl b.jsonl",
        also=("SF140",),
    ),
    for_bert(
        "one of two columns of classes, named",
        rows(lambda n, q, a: {"text": q, "category": "ab"[n % 2], "sentiment": "xyz"[n % 3]}),
        "--set columns.label=category",
    ),
    for_bert(
        "not SF142: classes with their names",
        rows(lambda n, q, a: {"text": q, "category": "ab"[n % 2], "intent": ("go", "no")[n % 2]}),
    ),
    Case("not SF136: captions of images", asked(image_caption=lambda n: f"A house with {n} doors")),
    Case("not SF131: answers that are all good", asked(label=lambda n: True)),
    Case("not SF132: answers with one score", asked(score=lambda n: 5)),
    Case(
        "answers with metadata",
        asked(
            id=lambda n: n,
            source=lambda n: "web",
            url=lambda n: f"https://example.org/{n}",
            timestamp=lambda n: f"2024-01-{n + 1:02d}",
            category=lambda n: ("sports", "news")[n % 2],
            is_classification=lambda n: n % 2 == 0,
            model=lambda n: "A model of some kind",
            split=lambda n: "train",
            weight=lambda n: 1.0,
        ),
    ),
    Case(
        "whole text beside its parts",
        rows(
            lambda n, q, a: {
                "instruction": q,
                "input": "",
                "output": a,
                "text": f"Below is a task. {q} ### Response: {a}",
            }
        ),
    ),
    for_bert(
        "not SF134 SF138 SF143: texts with metadata",
        classed(
            author=lambda n: "Jane Q. Doe",
            url=lambda n: f"https://example.org/a/{n}",
            date=lambda n: f"2024-01-{n + 1:02d}",
            label_text=lambda n: ("bad", "good")[n % 2],
            file=lambda n: f"texts/{n}.txt",
        ),
    ),
    for_bert(
        "score as the target", rows(lambda n, q, a: {"text": f"{q} {a}", "score": n * 0.37 % 5})
    ),
    Case(
        "not SF133: prompts as text on purpose",
        rows(lambda n, q, a: {"prompt": q}),
        options="--task causal-lm --set columns.text=prompt",
    ),
    for_mlp(
        "not SF139: weight as a feature",
        {
            "a.csv": "weight,height,label\n"
            + "".join(f"{n * 7 % 31},{n * 11 % 23},{'ab'[n % 2]}\n" for n in range(60))
        },
    ),
]
