"""Answers of dialogues with tools: found by the openings of their structure, or by rendering."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from chats import STYLES, chat_tokenizer, coder_for, said
from surefit.encode.text.template_rendering import Template, TemplateError

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
ODD = [
    *("", " ", "x", " Paris\n", "<think>\nhm\n</think>\n\nHello", "<think>\nhm", "user\nHi"),
    *("\ufdd0", "a b", "assistant\n", '{"a": "b"}', "<|im_end|>\n<|im_start|>assistant\n"),
]


def _called(user: str, before: str, result: str, answer: str, calls: int = 1) -> list[Any]:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": result}}}
    return [
        *said(user),
        {"role": "assistant", "content": before, "tool_calls": [call] * calls},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": answer},
    ]


def _drawn(choose: random.Random) -> list[Any]:
    """One or two questions, each answered at once or with the help of a tool."""
    messages: list[Any] = []
    for _ in range(choose.choice([1, 2])):
        texts = choose.choices(ODD, k=4)
        messages += choose.choice([said(*texts[:2]), _called(*texts, choose.choice([1, 2]))])
    return messages


def _found(template: Template, dialogue: list[Any], tools: Any, generation: bool) -> Any:
    try:
        return template.find_answers(template.prepared(dialogue), tools, generation)
    except TemplateError as error:
        return error.message


@pytest.mark.parametrize("style", [*STYLES, "template plain", "template alpaca"])
def test_dialogues_with_tools_are_found_as_if_each_were_the_first(style: str) -> None:
    _, _, named = style.partition(" ")
    tokenizer = chat_tokenizer("qwen" if named else style)
    known = coder_for(tokenizer, named or None).template
    choose = random.Random(0)
    for _ in range(60):
        asked = _drawn(choose), choose.choice([None, TOOLS]), choose.choice([False, True])
        assert _found(known, *asked) == _found(replace(known), *asked)


def test_prompts_of_a_known_structure_are_not_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    template = coder_for(chat_tokenizer("qwen")).template
    template.find_answers(_called("1 + 1?", "", "2", "Two."), TOOLS)
    rendered: list[Any] = []
    render = Template.render
    monkeypatch.setattr(Template, "render", lambda *a: rendered.append(a) or render(*a))
    template.find_answers(_called("1 + 2?", "", "3", "Three."), TOOLS)
    assert len(rendered) == 2  # with and without marks
