"""Faults of dialogues: what a template does not write, and forms that are easily misread."""

from __future__ import annotations

import json
from typing import Any

from chats import said
from faults.case import Case, Chat

ALL = "--set eval_share=0"
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


def unwritten(title: str, given: Any, chat: str = "", template: str = "", **more: Any) -> Case:
    """Dialogues for a tokenizer in the manner of `chat`, perhaps with a template of one's own.

    The first row is at fault unless `more` says otherwise.
    """
    more |= {"tokenizer": Chat(chat) if chat else None, "template": template}
    return Case(title, given, options=ALL, **{"row": 0, **more})


CASES = [
    unwritten(
        "SF157 tool definitions the template does not write",
        rows("conversations", sharegpt_calls, tools=json.dumps([TOOL])),
        chat="llama3",
        column="tools",
    ),
    unwritten(
        "SF157 tools in a list the plain template does not write",
        rows("messages", openai_calls, tools=[{"type": "function", "function": TOOL}]),
    ),
    unwritten(
        "SF157 parameters of tools the template does not write",
        rows("messages", openai_calls, tools=json.dumps([TOOL])),
        chat="chatml",
        template=TOOL_NAMES,
        row=None,
    ),
    unwritten(
        "SF159 system message the template leaves out",
        rows("messages", lambda n: said(f"a {n}", "b", "c", "d", system="Be kind.")),
        chat="chatml",
        template=NO_SYSTEM,
    ),
    unwritten(
        "SF159 results of tools the template leaves out",
        rows("conversations", sharegpt_calls),
        chat="chatml",
        template=NO_TOOL_ROLE,
        column="conversations",
    ),
    unwritten(
        "SF159 history the template leaves out",
        alpaca(history=[["Hello", "Hi"]]),
        chat="chatml",
        template=LAST_ONLY,
        column="history",
    ),
    unwritten(
        "SF159 second tool call the template leaves out",
        rows("messages", lambda n: openai_calls(n, calls=2)),
        chat="llama3",
    ),
    unwritten(
        "SF159 arguments of calls the template leaves out",
        rows("conversations", sharegpt_calls),
        chat="chatml",
        template=NAMES_ONLY,
    ),
    unwritten(
        "SF161 reasoning_content no template of surefit writes", reasoned("reasoning_content")
    ),
    unwritten(
        "SF161 thinking the chat template does not write", reasoned("thinking"), chat="llama3"
    ),
    unwritten(
        "SF162 empty reasoning the template adds",
        rows("messages", lambda n: said(f"a {n}", "b")),
        chat="qwen",
    ),
    unwritten(
        "SF162 empty reasoning the template adds to instructions",
        alpaca(system="Be kind."),
        chat="qwen",
    ),
    unwritten(
        "names of speakers that are not written",
        rows("messages", lambda n: [{**m, "name": "Ann"} for m in said(f"a {n}", "b")]),
        row=None,
        note="the field ",
    ),
    unwritten(
        "SF164 images of messages",
        rows(
            "messages",
            lambda n: [
                {"role": "user", "content": f"What is {n}?", "images": ["a.png"]},
                {"role": "assistant", "content": "A cat."},
            ],
        ),
    ),
    unwritten(
        "SF165 tool calls the template cannot write", rows("messages", openai_calls), chat="chatml"
    ),
    unwritten(
        "SF165 ShareGPT calls the template cannot write",
        rows("conversations", sharegpt_calls),
        chat="marked",
    ),
    unwritten(
        "SF166 tool calls that are no JSON",
        rows("conversations", lambda n: sharegpt_calls(n, "find_hotel(city='Paris')")),
    ),
    unwritten(
        "SF166 arguments of OpenAI calls that are no JSON",
        rows("messages", lambda n: openai_calls(n, given="city=Paris")),
    ),
    unwritten(
        "SF167 messages as Python text",
        [{"messages": str(said(f"a {n}", "b"))} for n in range(20)],
        column="messages",
    ),
    unwritten(
        "SF167 tools as Python text",
        rows("messages", openai_calls, tools=str([TOOL])),
        column="tools",
    ),
]
