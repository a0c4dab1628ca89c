"""Columns whose meaning is open: labels under other names, pairs, choices, rows of two forms."""

from __future__ import annotations

import random
from typing import Any

from faults.case import Case, for_bert, for_mlp
from faults.columns import ALL, asked, bot, classed, rows, user
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


def sentences(n: int) -> list[str]:
    return [sentence(4 * n + k) for k in range(4)]


def asked_of_a_story(**more: Any) -> list[Row]:
    """Two questions about a story in each row, as CoQA has them, with further columns."""
    return [
        {"story": row.pop("text"), "questions": [f"What is {n}?", "Is it?"], **row}
        for n, row in enumerate(texts(30, **more))
    ]


def messages(**more: Any) -> list[Row]:
    """One message in each row, by user and assistant in turn, with further columns."""
    return [
        {
            "content": sentence(n),
            "role": ("user", "assistant")[n % 2],
            **{name: make(n) for name, make in more.items()},
        }
        for n in range(40)
    ]


def chatted(form: str) -> list[Row]:
    """Chats as one text each."""
    return rows(lambda n, q, a: {"text": form.format(q=q, a=a)})


TREE = [
    {
        "message_id": f"m{n}",
        "parent_id": f"m{n - 1}" if n % 4 else None,
        "text": sentence(n),
        "role": ("prompter", "assistant")[n % 2],
        "lang": "en",
        "rank": float(n % 3),
        "message_tree_id": f"m{n - n % 4}",
    }
    for n in range(40)
]
"""Messages as OpenAssistant's files have them."""

CASES = [
    *(
        Case(f"SF148 texts of {name}", chatted(form), column="text")
        for name, form in {
            "ChatML": "<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n",
            "instructions": "Below is one.\n\n### Instruction:\n{q}\n\n### Response:\n{a}",
            "transcripts": "\n\nHuman: {q}\n\nAssistant: {a}",
        }.items()
    ),
    Case("SF146 messages of a tree as rows", TREE, column="role"),
    Case(
        "SF146 messages of conversations as rows",
        messages(conversation_id=lambda n: n // 4, turn=lambda n: n % 4),
        column="role",
    ),
    for_bert("SF143 number beside the text", texts(price=lambda n: 3.5 * n % 41), column="price"),
    for_bert(
        "SF143 two columns of labels under other names",
        texts(coarse_label=lambda n: n % 3, fine_label=lambda n: n % 6),
        column="coarse_label",
    ),
    for_bert(
        "SF143 tags of words beside the text",
        [
            {"text": " ".join(NOUNS[: 4 + n % 5]), "tags": ["O", "B-X", *"OO", *"O" * (n % 5)]}
            for n in range(30)
        ],
        column="tags",
    ),
    for_bert(
        "SF145 endings of which the label names one",
        texts(endings=lambda n: [sentence(4 * n + k) for k in range(4)], label=lambda n: n * 7 % 4),
        column="endings",
    ),
    for_bert(
        "SF145 choices in columns of their own",
        texts(
            option1=lambda n: NOUNS[n % 9], option2=lambda n: NOUNS[n % 7], answer=lambda n: n % 2
        ),
        "--task text-classification --set columns.text=text --set columns.label=answer",
        column="option1",
    ),
    Case(
        "SF130 two conversations, and which is better",
        rows(
            lambda n, q, a: {
                "conversation_a": user(q) + bot(a),
                "conversation_b": user(q) + bot("No."),
                "winner": ("model_a", "tie")[n % 2],
            }
        ),
    ),
    Case(
        "SF134 passages as objects beside the question",
        asked(passages=lambda n: {"text": [sentence(n)], "url": [f"u{n}"]}),
        column="passages",
    ),
    Case(
        "SF147 answers that number the choices from 1",
        told(choices=sentences, answer=lambda n: n % 4 + 1),
        row=3,
        column="answer",
    ),
    Case(
        "SF147 letter of a choice that is not there",
        told(options=sentences, answer=lambda n: "ABCDE"[4 if n == 8 else n % 4]),
        row=8,
        column="answer",
    ),
    for_bert(
        "SF225 texts with every label",
        [{"text": sentence(n % 15), "label": n // 15} for n in range(45)],
    ),
    for_bert(
        "SF223 most texts with two labels",
        [{"text": sentence(n % 30), "label": "ab"[n // 30]} for n in range(50)]
        + [{"text": sentence(100 + n), "label": "ab"[n % 2]} for n in range(10)],
    ),
    Case(
        "SF130 two answers, and no word on which is better",
        told(response_j=sentence, response_k=lambda n: sentence(n + 50)),
        column="response_j",
    ),
    Case(
        "SF134 code beside the text",
        texts(code=lambda n: f"def f(x): return x + {n}"),
        options=ALL,
        column="code",
    ),
    Case(
        "SF164 field of conversations that is not written",
        rows(
            lambda n, q, a: {
                "conversations": [
                    {"from": "human", "value": q, "image": f"{n}.png"},
                    {"from": "gpt", "value": a},
                ]
            }
        ),
        column="conversations.image",
    ),
]

HEALTHY = [
    Case("not SF148: prose about chats", chatted("They ask {q}\nUser: is a word. {a}")),
    Case(
        "not SF148: rendered chats as messages",
        chatted("<s>[INST] {q} [/INST] {a}</s>"),
        options="--task sft --set columns.messages=text",
    ),
    Case(
        "questions about a story, which is read, too",
        asked_of_a_story(answers=lambda n: [sentence(n), "yes"]),
        options="--set columns.system=story",
        also=("Objects or lists",),
    ),
    for_bert(
        "parse beside its text",
        classed(text_parse=lambda n: f"(S (NP the house) {n} (VP was small))"),
    ),
    Case(
        "not SF147: choices of which the answer names one",
        told(choices=sentences, answer=lambda n: n * 7 % 4),
    ),
    Case(
        "choices with an explanation as the answer",
        told(options=sentences, answer=lambda n: sentence(n + 500)),
    ),
    Case(
        "several right answers",
        told(answers=lambda n: [sentence(n), "yes"]),
        also=("Objects or lists",),
    ),
    for_bert(
        "not SF146: who wrote a text as the class",
        texts(label=lambda n: ("human", "chatgpt")[n % 2], chat_id=lambda n: n),
    ),
    for_bert(
        "the side of a conversation as the class, named",
        messages(conversation_id=lambda n: n // 4),
        "--task text-classification --set columns.label=role",
    ),
    Case(
        "texts of named speakers",
        texts(speaker=lambda n: ("HAMLET", "OPHELIA")[n % 2], thread_id=lambda n: n),
        options="--task causal-lm",
    ),
    for_bert(
        "title and text are a pair",
        classed(title=lambda n: f"The news of day {n}"),
        also=("read as a pair of texts",),
    ),
    for_bert(
        "question and passage with true and false",
        told(passage=lambda n: sentence(n + 70), answer=lambda n: n % 3 > 0),
        also=("read as a pair of texts",),
    ),
    for_bert(
        "not SF145: classes as lists of 0 and 1",
        texts(labels=lambda n: [n % 2, n % 3 // 2, int(n % 5 > 1)]),
    ),
    for_bert(
        "one class as a list of 0 and 1",
        texts(label=lambda n: [float(n % 3 == k) for k in range(3)]),
    ),
    Case("rows of two forms", rows(in_two_forms, 40), also=("SF140",)),
    Case(
        "answers under two names",
        rows(
            lambda n, q, a: (
                {"prompt": q, "completion": a} if n % 2 else {"instruction": q, "output": a}
            ),
            40,
        ),
        also=("SF140",),
    ),
    Case(
        "empty lines between paragraphs",
        {"a.txt": "".join(f"{sentence(n)}\n\n" for n in range(30))},
        also=("dropped: ",),
    ),
    Case(
        "choices in the prompt as well", asked(choices=lambda n: [f"It is {2 * n}.", f"It is {n}."])
    ),
    for_mlp(
        "table with few different rows",
        {
            "a.csv": "sex,deck,label\n"
            + "".join(
                f"{'mf'[n % 2]},{'xyz'[n * 7 % 3]},{'ab'[n * 5 % 11 > 4]}\n" for n in range(60)
            )
        },
        also=("but another target",),
    ),
]
