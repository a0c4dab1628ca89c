"""Healthy dialogues in many forms: neither error nor warning may come."""

from __future__ import annotations

import json

from chats import said
from faults.case import Case, Chat
from faults.tokens import EOS, answers, filled
from faults.unrendered import LOOP, NAMES_ONLY, TOOL, alpaca, openai_calls, rows, sharegpt_calls

WRITES_ALL = "{{ tools | tojson if tools else '' }}" + NAMES_ONLY.replace(
    "c.function.name", "c | tojson"
)
WRITES_REASONING = WRITES_ALL.replace(
    LOOP, LOOP + "{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}"
)
OWN = "--tokenizer tok --set template=t.jinja"
END_AFTER_MARKS = LOOP + (
    "{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
CASES = [
    Case(
        "many turns without tools",
        None,
        {
            "a.jsonl": rows("messages", lambda n: said(f"a {n}", "b", "c", "d", "e", "f")),
            "tok": Chat("llama3"),
        },
        options="--tokenizer tok",
    ),
    Case(
        "template that writes tools and calls",
        None,
        {
            "a.jsonl": rows("conversations", sharegpt_calls, tools=json.dumps([TOOL])),
            "tok": Chat("marked"),
            "t.jinja": WRITES_ALL,
        },
        options=OWN,
    ),
    Case(
        "template that writes reasoning",
        None,
        {
            "a.jsonl": rows(
                "messages",
                lambda n: [
                    {"role": "user", "content": f"Hello {n}"},
                    {"role": "assistant", "content": "Paris.", "reasoning_content": "Hm"},
                ],
            ),
            "tok": Chat("marked"),
            "t.jinja": WRITES_REASONING,
        },
        options=OWN,
    ),
    Case("no tools in any row", None, rows("messages", lambda n: said(f"a {n}", "b"), tools="[]")),
    Case(
        "calls in a template of surefit",
        None,
        rows("messages", openai_calls),
        options="--set template=alpaca",
    ),
    Case(
        "system and history of instructions",
        None,
        alpaca(system="Be kind.", history=[["Hello", "Hi"]]),
        options="--set template=alpaca",
    ),
    Case("history that is empty", None, alpaca(system="", history=[])),
    Case(
        "an answer that is a Python dict",
        None,
        [*alpaca(), {"instruction": "Show a dict", "output": "{'a': 1, 'b': 2}"}],
    ),
    Case(
        "answers that are Python dicts",
        None,
        [{**row, "output": str({"n": n})} for n, row in enumerate(alpaca())],
    ),
    Case(
        "messages as JSON text",
        None,
        [{"messages": json.dumps(said(f"a {n}", "b"))} for n in range(20)],
    ),
    Case(
        "prompts and completions as messages",
        None,
        [
            {"prompt": said(f"a {n}"), "completion": [{"role": "assistant", "content": "b"}]}
            for n in range(20)
        ],
    ),
    Case(
        "padding that is eos, and eos is learned",
        None,
        {
            "a.jsonl": [
                {
                    **row,
                    "labels": [*row["labels"][:6], -100, -100],
                    "attention_mask": [1] * 6 + [0] * 2,
                }
                for row in answers(EOS, EOS, EOS)
            ],
            "tok": Chat("chatml"),
        },
        options="--tokenizer tok",
    ),
    Case(
        "padding without labels",
        None,
        [
            {
                **row,
                "labels": [
                    i if m else -100
                    for i, m in zip(row["labels"], row["attention_mask"], strict=True)
                ],
            }
            for row in filled(12, 0, mask=True)
        ],
    ),
    Case(
        "end after the generation marks",
        None,
        {
            "a.jsonl": rows("messages", lambda n: said(f"Hello {n}", "Hi.")),
            "tok": Chat("chatml"),
            "t.jinja": END_AFTER_MARKS,
        },
        options=OWN,
    ),
    Case(
        "messages with a field that is always null",
        None,
        rows(
            "conversations",
            lambda n: [
                {"from": "human", "value": f"Hello {n}", "weight": None},
                {"from": "gpt", "value": f"Good day {n}", "weight": None},
            ],
        ),
    ),
    Case(
        "messages that get a field late, another always null",
        None,
        [
            {
                "messages": [
                    {"role": "user", "content": f"Hello {n}", "name": None},
                    {"role": "assistant", "content": f"Good day {n}", "name": None, **more},
                ]
            }
            for n, more in enumerate([{}] * 3000 + [{"weight": 1}] * 20)
        ],
    ),
    Case(
        "texts with an object of metadata",
        None,
        [{"text": f"Say {n} and more", "meta": {"set": n % 3}} for n in range(20)],
    ),
    Case(
        "texts with an empty column",
        None,
        [{"text": f"Say {n} and more", "meta": None} for n in range(20)],
    ),
]
