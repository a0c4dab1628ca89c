"""Prompts and answers that are messages rather than texts, and answers that contain their prompt.

TRL has lists of messages in both columns, LLaMA-Factory a dialogue and one message as its answer,
OpenAI an object with `messages` and `tools` as the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surefit.encode.text.messages import is_answer

Turns = list[Any]
"""Messages as the data has them."""


def has_messages(*values: Any) -> bool:
    """Whether one of the values is a message, a list of them, or an object that has some."""
    for value in values:
        if type(value) is not str and isinstance(value, Mapping | list | tuple):  # str: the usual
            return True
    return False


def join_turns(prompt: Any, answer: Any) -> Turns:
    """The dialogue of a prompt and its answer, each a text or messages.

    An answer that begins with another message than an assistant's contains its prompt. Answers in
    the prompt are context and get the weight 0: only the answer has labels.

    >>> join_turns([{"role": "user", "content": "Hi"}], "Hello")
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}]
    """
    answers = _turns(answer, "assistant")
    if answers and not is_answer(answers[0]):
        return answers
    asked = _turns(prompt, "user")
    if answers:
        asked = [{**turn, "weight": 0} if is_answer(turn) else turn for turn in asked]
    return [*asked, *answers]


def tools_in(prompt: Any) -> Any:
    """The tools in a prompt that is an object with messages; None otherwise."""
    return prompt.get("tools") if isinstance(prompt, Mapping) else None


def _turns(value: Any, role: str) -> Turns:
    if isinstance(value, Mapping):
        return list(value["messages"] or ()) if "messages" in value else [value]
    if isinstance(value, list | tuple):
        return list(value)
    return [] if value is None else [{"role": role, "content": value}]


def split_answer(text: str | None, rejected: str | None) -> tuple[str, str]:
    """The prompt and the answer in one text: the rejected text begins with the same prompt.

    >>> split_answer("What is 2 + 2? It is 4.", "What is 2 + 2? Red.")
    ('What is 2 + 2?', 'It is 4.')
    """
    chosen, start = text or "", 0
    for place, (letter, other) in enumerate(zip(chosen, rejected or "", strict=False), 1):
        if letter != other:
            break
        start = place if letter.isspace() else start
    return chosen[:start].strip(), chosen[start:].strip()
