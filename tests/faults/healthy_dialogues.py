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
END_AFTER_MARKS = LOOP + (
    "{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
CASES = [
    Case(
        "not SF159: many turns without tools",
        rows("messages", lambda n: said(f"a {n}", "b", "c", "d", "e", "f")),
        tokenizer=Chat("llama3"),
    ),
    Case(
        "not SF165: template that writes tools and calls",
        rows("conversations", sharegpt_calls, tools=json.dumps([TOOL])),
        tokenizer=Chat("marked"),
        template=WRITES_ALL,
    ),
    Case(
        "not SF161 SF162: template that writes reasoning",
        rows(
            "messages",
            lambda n: [
                {"role": "user", "content": f"Hello {n}"},
                {"role": "assistant", "content": "Paris.", "reasoning_content": "Hm"},
            ],
        ),
        tokenizer=Chat("marked"),
        template=WRITES_REASONING,
    ),
    Case(
        "not SF157: no tools in any row",
        rows("messages", lambda n: said(f"a {n}", "b"), tools="[]"),
    ),
    Case(
        "not SF166: calls in a template of surefit",
        rows("messages", openai_calls),
        options="--set template=alpaca",
    ),
    Case(
        "system and history of instructions",
        alpaca(system="Be kind.", history=[["Hello", "Hi"]]),
        options="--set template=alpaca",
    ),
    Case("history that is empty", alpaca(system="", history=[])),
    Case(
        "an answer that is a Python dict",
        [*alpaca(), {"instruction": "Show a dict", "output": "{'a': 1, 'b': 2}"}],
    ),
    Case(
        "not SF167: answers that are Python dicts",
        [{**row, "output": str({"n": n})} for n, row in enumerate(alpaca())],
    ),
    Case(
        "messages as JSON text", [{"messages": json.dumps(said(f"a {n}", "b"))} for n in range(20)]
    ),
    Case(
        "prompts and completions as messages",
        [
            {"prompt": said(f"a {n}"), "completion": [{"role": "assistant", "content": "b"}]}
            for n in range(20)
        ],
    ),
    Case(
        "not SF151 SF155: padding that is eos, and eos is learned",
        [
            {**row, "labels": [*row["labels"][:6], -100, -100], "attention_mask": [1] * 6 + [0] * 2}
            for row in answers(EOS, EOS, EOS)
        ],
        tokenizer=Chat("chatml"),
    ),
    Case(
        "padding without labels",
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
        "not SF154: end after the generation marks",
        rows("messages", lambda n: said(f"Hello {n}", "Hi.")),
        tokenizer=Chat("chatml"),
        template=END_AFTER_MARKS,
    ),
    Case(
        "not SF164: messages with a field that is always null",
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
        [{"text": f"Say {n} and more", "meta": {"set": n % 3}} for n in range(20)],
    ),
    Case(
        "texts with an empty column",
        [{"text": f"Say {n} and more", "meta": None} for n in range(20)],
    ),
]
