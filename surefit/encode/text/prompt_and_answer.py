"""Prompts and answers that are messages rather than texts, and answers that contain their prompt.

TRL has lists of messages in both columns, LLaMA-Factory a dialogue and one message as its answer,
OpenAI an object with `messages` and `tools` as the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

import pyarrow as pa

from surefit.data.column_types import is_object, is_text, is_text_list
from surefit.data.roles import Role
from surefit.encode.encoded_row import RowFaultError
from surefit.encode.text.messages import is_answer
from surefit.findings import rule

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


NO_SUCH_CHOICE = rule(
    "SF147",
    "error",
    "answer that names none of the choices",
    why="The answers number the choices from 0, or name them by letter; this one does neither.",
    fix="Correct the answer. If the answers count from 1, subtract 1 from each.",
)

LONGEST_LABEL = 2
"""Up to so many characters, an answer that is no choice's text is meant as its number or letter."""
_MARKED = re.compile(r"\(?[A-Za-z0-9][).:]\s")


def _holds_choices(kind: pa.DataType, named: bool) -> bool:
    if not is_object(kind):
        return is_text_list(kind)
    fields = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
    by_letter = len(fields) > 1 and all(len(n) == 1 and is_text(t) for n, t in fields.items())
    return by_letter or ("text" in fields and is_text_list(fields["text"]))


CHOICES = Role("choices", ("choices", "options", "endings"), _holds_choices)
"""The texts that an answer names one of: a list, ARC's object with `text` and `label`, or an object
with a text for each letter."""


def with_choices(row: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    r"""The row with its choices in the prompt, and with the right one as its answer.

    `column` is that of the answers, for messages.

    >>> row = {"prompt": "2 + 2?", "choices": ["3", "4"], "answer": 1}
    >>> with_choices(row, "answer")["prompt"], with_choices(row, "answer")["answer"]
    ('2 + 2?\nA. 3\nB. 4', 'B. 4')
    """
    texts, labels = _read(row.get("choices"))
    if not texts or not isinstance(row.get("prompt"), str):
        return row
    lines = texts
    if not all(_MARKED.match(text) for text in texts):
        lines = [f"{label}. {text}" for label, text in zip(labels, texts, strict=True)]
    made = {**row, "prompt": "\n".join([row["prompt"], *lines])}
    place = _place(row.get("answer"), texts, labels, column)
    return made if place is None else {**made, "answer": lines[place]}


def _read(choices: Any) -> tuple[list[str], list[str]]:
    """The texts of the choices, and the letters that name them."""
    if isinstance(choices, Mapping) and "text" not in choices:
        known_by = {str(name): text for name, text in choices.items() if text is not None}
        return list(known_by.values()), list(known_by)
    labels = choices.get("label") if isinstance(choices, Mapping) else None
    given = choices.get("text") if isinstance(choices, Mapping) else choices
    texts = [str(text) for text in given] if given is not None else []
    if labels is None or len(labels) != len(texts):
        labels = ascii_uppercase if len(texts) <= len(ascii_uppercase) else range(len(texts))
    return texts, [str(label) for label in labels[: len(texts)]]


def _place(answer: Any, texts: list[str], labels: list[str], column: str) -> int | None:
    """The number of the choice that an answer names by number, letter or text.

    None if there is no answer, or a text of its own, such as an explanation.
    """
    word = answer.strip() if isinstance(answer, str) else answer
    for known in (labels, texts if isinstance(word, str) else []):
        if str(word) in known:
            return known.index(str(word))
    place = int(word) if isinstance(word, str) and word.isdecimal() else word
    if isinstance(place, int) and 0 <= place < len(texts):
        return place
    if word is None or word == "" or (isinstance(word, str) and len(word) > LONGEST_LABEL):
        return None
    known_as = f"0 to {len(texts) - 1}, or {', '.join(labels)}"
    fault = f"the answer {answer!r} is none of the {len(texts)} choices ({known_as})"
    raise RowFaultError(NO_SUCH_CHOICE, fault, column)
