"""Where answers start after the message before them, for dialogues of one structure.

A template writes the same text between a message and the answer to it, such as
`<|im_end|>\\n<|im_start|>assistant\\n`. Once it is known for a structure, the prompt of each answer
need not be rendered again: that is most of the time for dialogues with tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from surefit.encode.text.messages import Message

Marks = Mapping[int, tuple[int | None, int | None]]
"""Start and end of contents in a text, by the place of their message."""
Openings = tuple[str, ...]
"""The text from the end of the previous content to the start of each answer."""

_REASONING = re.compile(r"[<\[]\|?/?(?:think|thinking|reasoning|thought)\|?[>\]]", re.I)
_NO_TAGS: frozenset[str] = frozenset()
_KNOWN_KEYS = {"role", "content", "tool_calls", "tool_call_id", "name"}


def structure_of(messages: Sequence[Message], tools: Any, generation: bool) -> Any:
    """What a template decides by; None if messages have fields that it may decide by otherwise."""
    if any(message.keys() - _KNOWN_KEYS for message in messages):
        return None
    keys = ((*(name for name in m if m[name]), message_kind(m)) for m in messages)
    return (generation, bool(tools), *keys)


def message_kind(message: Message) -> tuple[str, frozenset[str]]:
    """The role, and the tags of reasoning in the content: templates write such answers otherwise.

    >>> message_kind({"role": "assistant", "content": "<think>Hm.</think> Yes."})[1] == {
    ...     "<think>", "</think>"}
    True
    """
    content = message["content"]
    tagged = "<" in content or "[" in content
    return message["role"], frozenset(_REASONING.findall(content)) if tagged else _NO_TAGS


def without_calls(messages: Sequence[Message]) -> list[int]:
    """Places of the messages whose content can be marked: those that call no tool."""
    return [place for place, message in enumerate(messages) if not message.get("tool_calls")]


def learn_openings(
    text: str, starts: Sequence[int], answers: Sequence[int], marks: Marks
) -> Openings | None:
    """The openings of a text whose answers are known; None if an answer has no fixed one.

    >>> learn_openings("hi|A:yes", [5], [1], {0: (0, 2), 1: (5, 8)})
    ('|A:',)
    """
    ends = [marks.get(place - 1, (None, None))[1] for place in answers]
    found = [
        text[end:start]
        for end, start in zip(ends, starts, strict=True)
        if end is not None and end <= start
    ]
    return tuple(found) if len(found) == len(answers) else None


def starts_after(
    text: str, openings: Openings, answers: Sequence[int], marks: Marks
) -> list[int] | None:
    """Where the answers of a text start; None if it has other openings.

    >>> starts_after("hello|A:yes", ("|A:",), [1], {0: (0, 5), 1: (8, 11)})
    [8]
    """
    starts: list[int] = []
    for opening, place in zip(openings, answers, strict=True):
        end = marks.get(place - 1, (None, None))[1]
        if end is None or not text.startswith(opening, end):
            return None
        starts.append(end + len(opening))
    return starts
