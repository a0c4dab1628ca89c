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


def unwritten(
    name: str, code: str, given: Any, chat: str = "", template: str = "", **more: Any
) -> Case:
    """Dialogues for a tokenizer in the manner of `chat`, perhaps with a template of one's own.

    The first row is at fault unless `more` says otherwise.
    """
    files = {"a.jsonl": given} | ({"tok": Chat(chat)} if chat else {})
    options = FILE if template else TOK if chat else ALL
    files |= {"t.jinja": template} if template else {}
    return Case(name, code, files, options=options, **{"row": 0, **more})


CASES = [
    unwritten(
        "tool definitions the template does not write",
        "SF157",
        rows("conversations", sharegpt_calls, tools=json.dumps([TOOL])),
        chat="llama3",
        column="tools",
    ),
    unwritten(
        "tools in a list the plain template does not write",
        "SF157",
        rows("messages", openai_calls, tools=[{"type": "function", "function": TOOL}]),
    ),
    unwritten(
        "parameters of tools the template does not write",
        "SF157",
        rows("messages", openai_calls, tools=json.dumps([TOOL])),
        chat="chatml",
        template=TOOL_NAMES,
        row=None,
    ),
    unwritten(
        "system message the template leaves out",
        "SF159",
        rows("messages", lambda n: said(f"a {n}", "b", "c", "d", system="Be kind.")),
        chat="chatml",
        template=NO_SYSTEM,
    ),
    unwritten(
        "results of tools the template leaves out",
        "SF159",
        rows("conversations", sharegpt_calls),
        chat="chatml",
        template=NO_TOOL_ROLE,
        column="conversations",
    ),
    unwritten(
        "history the template leaves out",
        "SF159",
        alpaca(history=[["Hello", "Hi"]]),
        chat="chatml",
        template=LAST_ONLY,
        column="history",
    ),
    unwritten(
        "second tool call the template leaves out",
        "SF159",
        rows("messages", lambda n: openai_calls(n, calls=2)),
        chat="llama3",
    ),
    unwritten(
        "arguments of calls the template leaves out",
        "SF159",
        rows("conversations", sharegpt_calls),
        chat="chatml",
        template=NAMES_ONLY,
    ),
    unwritten(
        "reasoning_content no template of surefit writes", "SF161", reasoned("reasoning_content")
    ),
    unwritten(
        "thinking the chat template does not write", "SF161", reasoned("thinking"), chat="llama3"
    ),
    unwritten(
        "empty reasoning the template adds",
        "SF162",
        rows("messages", lambda n: said(f"a {n}", "b")),
        chat="qwen",
    ),
    unwritten(
        "empty reasoning the template adds to instructions",
        "SF162",
        alpaca(system="Be kind."),
        chat="qwen",
    ),
    unwritten(
        "names of speakers that are not written",
        "the field ",
        rows("messages", lambda n: [{**m, "name": "Ann"} for m in said(f"a {n}", "b")]),
        row=None,
    ),
    unwritten(
        "images of messages",
        "SF164",
        rows(
            "messages",
            lambda n: [
                {"role": "user", "content": f"What is {n}?", "images": ["a.png"]},
                {"role": "assistant", "content": "A cat."},
            ],
        ),
    ),
    unwritten(
        "tool calls the template cannot write",
        "SF165",
        rows("messages", openai_calls),
        chat="chatml",
    ),
    unwritten(
        "ShareGPT calls the template cannot write",
        "SF165",
        rows("conversations", sharegpt_calls),
        chat="marked",
    ),
    unwritten(
        "tool calls that are no JSON",
        "SF166",
        rows("conversations", lambda n: sharegpt_calls(n, "find_hotel(city='Paris')")),
    ),
    unwritten(
        "arguments of OpenAI calls that are no JSON",
        "SF166",
        rows("messages", lambda n: openai_calls(n, given="city=Paris")),
    ),
    unwritten(
        "messages as Python text",
        "SF167",
        [{"messages": str(said(f"a {n}", "b"))} for n in range(20)],
        column="messages",
    ),
    unwritten(
        "tools as Python text",
        "SF167",
        rows("messages", openai_calls, tools=str([TOOL])),
        column="tools",
    ),
]
