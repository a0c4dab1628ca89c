"""Faults of dialogues: what a template does not write, and forms that are easily misread."""

from __future__ import annotations

import json
from typing import Any

from chats import said
from faults.case import Case, Chat

ALL = "--set eval_share=0"
TOK = f"--tokenizer tok {ALL}"
FILE = f"{TOK} --set template=t.jinja"
TOOL = {
    "name": "find_hotel",
    "description": "Finds hotels",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = {"name": "find_hotel", "arguments": {"city": "Paris"}}


def openai_calls(
    number: int, calls: int = 1, given: str = '{"city": "Paris"}'
) -> list[dict[str, Any]]:
    """A dialogue with calls of a tool, as OpenAI has them."""
    called = [
        {"id": f"c{n}", "type": "function", "function": {**CALL, "arguments": given}}
        for n in range(calls)
    ]
    return [
        {"role": "user", "content": f"A hotel for {number}?"},
        {"role": "assistant", "content": None, "tool_calls": called},
        {"role": "tool", "content": f"Ritz {number}"},
        {"role": "assistant", "content": "The Ritz."},
    ]


def sharegpt_calls(number: int, call: str = json.dumps(CALL)) -> list[dict[str, Any]]:
    """The same as ShareGPT has it."""
    values = (f"A hotel for {number}?", call, f"Ritz {number}", "The Ritz.")
    names = ("human", "function_call", "observation", "gpt")
    return [{"from": name, "value": value} for name, value in zip(names, values, strict=True)]


def rows(name: str, make: Any, **columns: Any) -> list[dict[str, Any]]:
    """Twenty rows of a dialogue each, and further columns."""
    return [{name: make(number), **columns} for number in range(20)]


def reasoned(field: str) -> list[dict[str, Any]]:
    """Dialogues whose answer has its reasoning in a field of its own."""
    answer = {"role": "assistant", "content": "Paris.", field: "It is the capital."}
    return rows("messages", lambda n: [{"role": "user", "content": f"Hello {n}"}, answer])


def alpaca(**more: Any) -> list[dict[str, Any]]:
    """Instructions with answers, and further columns."""
    return [{"instruction": f"Say {n}", "output": f"It is {n}.", **more} for n in range(20)]


LOOP = "{% for m in messages %}"
END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
WRITTEN = "{{ m.role }}: {{ m.content }}"
NO_SYSTEM = LOOP + (
    "{% if m.role != 'system' or messages | length < 4 %}" + WRITTEN + "{% endif %}" + END
)
NO_TOOL_ROLE = LOOP + (
    "{{ m.role }}: {% if m.role != 'tool' %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{% endif %}" + END
)
LAST_ONLY = LOOP + (
    "{{ m.role }}: {% if m.role == 'assistant' or loop.revindex < 3 %}{{ m.content }}{% endif %}"
    + END
)
NAMES_ONLY = LOOP + (
    WRITTEN + "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}" + END
)
TOOL_NAMES = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + NAMES_ONLY.replace(
    "c.function.name", "c | tojson"
)
CASES = [
    Case(
        "tool definitions the template does not write",
        "SF157",
        {
            "a.jsonl": rows("conversations", sharegpt_calls, tools=json.dumps([TOOL])),
            "tok": Chat("llama3"),
        },
        options=TOK,
        row=0,
        column="tools",
        process=False,
    ),
    Case(
        "tools in a list the plain template does not write",
        "SF157",
        {"a.jsonl": rows("messages", openai_calls, tools=[{"type": "function", "function": TOOL}])},
        options=ALL,
        row=0,
    ),
    Case(
        "parameters of tools the template does not write",
        "SF157",
        {
            "a.jsonl": rows("messages", openai_calls, tools=json.dumps([TOOL])),
            "tok": Chat("chatml"),
            "t.jinja": TOOL_NAMES,
        },
        options=FILE,
    ),
    Case(
        "system message the template leaves out",
        "SF158",
        {
            "a.jsonl": rows("messages", lambda n: said(f"a {n}", "b", "c", "d", system="Be kind.")),
            "tok": Chat("chatml"),
            "t.jinja": NO_SYSTEM,
        },
        options=FILE,
        row=0,
    ),
    Case(
        "system column the template leaves out",
        "SF158",
        {
            "a.jsonl": alpaca(system="Be kind.", history=[["Hello", "Hi"]]),
            "tok": Chat("chatml"),
            "t.jinja": NO_SYSTEM,
        },
        options=FILE,
        row=0,
        column="system",
    ),
    Case(
        "results of tools the template leaves out",
        "SF159",
        {
            "a.jsonl": rows("conversations", sharegpt_calls),
            "tok": Chat("chatml"),
            "t.jinja": NO_TOOL_ROLE,
        },
        options=FILE,
        row=0,
        column="conversations",
    ),
    Case(
        "history the template leaves out",
        "SF159",
        {"a.jsonl": alpaca(history=[["Hello", "Hi"]]), "tok": Chat("chatml"), "t.jinja": LAST_ONLY},
        options=FILE,
        row=0,
        column="history",
    ),
    Case(
        "second tool call the template leaves out",
        "SF160",
        {"a.jsonl": rows("messages", lambda n: openai_calls(n, calls=2)), "tok": Chat("llama3")},
        options=TOK,
        row=0,
    ),
    Case(
        "arguments of calls the template leaves out",
        "SF160",
        {
            "a.jsonl": rows("conversations", sharegpt_calls),
            "tok": Chat("chatml"),
            "t.jinja": NAMES_ONLY,
        },
        options=FILE,
        row=0,
    ),
    Case(
        "reasoning_content no template of surefit writes",
        "SF161",
        {"a.jsonl": reasoned("reasoning_content")},
        options=ALL,
        row=0,
    ),
    Case(
        "thinking the chat template does not write",
        "SF161",
        {"a.jsonl": reasoned("thinking"), "tok": Chat("llama3")},
        options=TOK,
        row=0,
    ),
    Case(
        "empty reasoning the template adds",
        "SF162",
        {"a.jsonl": rows("messages", lambda n: said(f"a {n}", "b")), "tok": Chat("qwen")},
        options=TOK,
        row=0,
        exits=0,
    ),
    Case(
        "empty reasoning the template adds to instructions",
        "SF162",
        {"a.jsonl": alpaca(system="Be kind."), "tok": Chat("qwen")},
        options=TOK,
        row=0,
        exits=0,
    ),
    Case(
        "names of speakers that are not written",
        "SF163",
        {
            "a.jsonl": rows(
                "messages", lambda n: [{**m, "name": "Ann"} for m in said(f"a {n}", "b")]
            )
        },
        options=ALL,
        exits=0,
    ),
    Case(
        "images of messages",
        "SF164",
        {
            "a.jsonl": rows(
                "messages",
                lambda n: [
                    {"role": "user", "content": f"What is {n}?", "images": ["a.png"]},
                    {"role": "assistant", "content": "A cat."},
                ],
            )
        },
        options=ALL,
        row=0,
        exits=0,
    ),
    Case(
        "feelings of ShareGPT turns that are not written",
        "SF163",
        {
            "a.jsonl": rows(
                "conversations",
                lambda n: [
                    {"from": "human", "value": f"Hello {n}", "feeling": "glad"},
                    {"from": "gpt", "value": "Hi."},
                ],
            ),
            "tok": Chat("chatml"),
        },
        options=TOK,
        exits=0,
    ),
    Case(
        "sound of ShareGPT turns",
        "SF164",
        {
            "a.jsonl": rows(
                "conversations",
                lambda n: [
                    {"from": "human", "value": f"Who speaks in {n}?", "audio": f"{n}.wav"},
                    {"from": "gpt", "value": "Ann."},
                ],
            ),
            "tok": Chat("chatml"),
        },
        options=TOK,
        row=0,
        exits=0,
    ),
    Case(
        "tool calls the template cannot write",
        "SF165",
        {"a.jsonl": rows("messages", openai_calls), "tok": Chat("chatml")},
        options=TOK,
        row=0,
        exits=0,
    ),
    Case(
        "ShareGPT calls the template cannot write",
        "SF165",
        {"a.jsonl": rows("conversations", sharegpt_calls), "tok": Chat("marked")},
        options=TOK,
        row=0,
        exits=0,
    ),
    Case(
        "tool calls that are no JSON",
        "SF166",
        {"a.jsonl": rows("conversations", lambda n: sharegpt_calls(n, "find_hotel(city='Paris')"))},
        options=ALL,
        row=0,
        exits=0,
    ),
    Case(
        "arguments of OpenAI calls that are no JSON",
        "SF166",
        {"a.jsonl": rows("messages", lambda n: openai_calls(n, given="city=Paris"))},
        options=ALL,
        row=0,
        exits=0,
    ),
    Case(
        "OpenAI calls that are text",
        "SF166",
        {
            "a.jsonl": rows(
                "messages",
                lambda n: [
                    {**message, "tool_calls": "find_hotel(city='Paris')"}
                    if message.get("tool_calls")
                    else message
                    for message in openai_calls(n)
                ],
            ),
            "tok": Chat("llama3"),
        },
        options=TOK,
        row=0,
        exits=0,
    ),
    Case(
        "messages as Python text",
        "SF167",
        {"a.jsonl": [{"messages": str(said(f"a {n}", "b"))} for n in range(20)]},
        options=ALL,
        row=0,
        column="messages",
    ),
    Case(
        "tools as Python text",
        "SF167",
        {"a.jsonl": rows("messages", openai_calls, tools=str([TOOL]))},
        options=ALL,
        row=0,
        column="tools",
    ),
]
