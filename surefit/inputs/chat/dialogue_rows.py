"""The dialogue of an sft row, whatever form it has: messages, prompt and answer, their history.

Prompts and answers may be messages rather than texts: TRL has lists of messages in both columns,
LLaMA-Factory a dialogue and one message as its answer, OpenAI an object with `messages` and `tools`
as the prompt. Answers may contain their prompt, or name one of several choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from string import ascii_uppercase
from typing import Any

import pyarrow as pa

from surefit.data.column_types import fields_of, is_object, is_text, is_text_list
from surefit.data.data_rules import WRONG_TYPE
from surefit.data.roles import Role
from surefit.data.stored_messages import as_messages, holds_messages, parse_json
from surefit.findings import rule
from surefit.inputs.chat.messages import (
    EMPTY_PROMPT_OR_ANSWER,
    UNREADABLE_MESSAGE,
    Dialogue,
    Message,
    is_answer,
    read_dialogue,
    read_tools,
    shown,
)
from surefit.inputs.encoded_row import DropReason, RowFaultError, drop_row
from surefit.inputs.encoder import Encoder
from surefit.inputs.text.text_reading import read_text


def read_row(row: Mapping[str, Any], encoder: Encoder) -> Dialogue:
    """Return the row's messages and tools; prompt and answer are a user's and an assistant's.

    A system text comes first, and the turns of the history before the prompt.
    """
    predicting = encoder.predicting
    given = row.get("tools") or tools_in(row.get("prompt"))
    tools = read_tools(given, encoder.column_of("tools"))
    system = (read_text(row, "system", encoder) or "").strip()
    asked_for = (encoder.settings.system or "").strip()
    system = "\n\n".join(text for text in (asked_for, system) if text)
    earlier = list(_history(row.get("history"), encoder.column_of("history")))
    role, turns = turns_of(row)
    if turns is not None:
        for name in ("prompt", "answer"):
            _refuse_object(row.get(name), encoder.column_of(name))
        turns = [*earlier, *turns] if earlier and not isinstance(turns, str) else turns
        read = read_dialogue(turns, encoder.column_of(role), predicting)
        return replace(read, messages=with_system(system, read.messages), tools=tools)
    asked, answer = _asked(row, encoder)
    messages = [*earlier, asked]
    if not predicting:
        if not (answer or "").strip():
            raise _missing("answer")
        messages.append({"role": "assistant", "content": answer})
    return Dialogue(with_system(system, messages), tools)


def turns_of(row: Mapping[str, Any]) -> tuple[str, Any]:
    """The role and the messages of a row that has some; None if its prompt and answer are texts."""
    prompt, answer = row.get("prompt"), row.get("answer")
    if "messages" in row and (row["messages"] is not None or prompt is None):
        turns = as_messages(row["messages"])
        return "messages", turns if answer is None else join_turns(turns, answer)
    return "prompt", join_turns(prompt, answer) if has_messages(prompt, answer) else None


def divide_row(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what comes before the last answer of a row of texts or messages, and the rest."""
    before = [row[role] for role in ("system", "history", "choices") if row.get(role)]
    if "rejected" in row:
        prompt, target = split_answer(row.get("answer"), row["rejected"])
        return [prompt, *before], target
    if row.get("messages") is None:
        return [row.get("prompt"), row.get("input"), *before], row.get("answer")
    messages = as_messages(row["messages"])
    if "answer" in row or isinstance(messages, str):
        return [messages, row.get("tools"), *before], row.get("answer")
    messages = list(messages)
    answers = [place for place, message in enumerate(messages) if is_answer(message)]
    last = answers[-1] if answers else len(messages)
    return [messages[:last], row.get("tools"), *before], messages[last:]


def with_system(system: str, messages: Sequence[Message]) -> Sequence[Message]:
    r"""Return the messages after a system text, which is put before a system message of their own.

    >>> with_system("Be brief", [{"role": "system", "content": "Be kind"}])
    [{'role': 'system', 'content': 'Be brief\n\nBe kind'}]
    """
    if not system:
        return messages
    first, rest = messages[0], messages
    if first["role"] == "system":
        own, rest = first["content"].strip(), messages[1:]
        system = system if own in ("", system) else f"{system}\n\n{own}"
    return [{"role": "system", "content": system}, *rest]


def _refuse_object(value: Any, column: str) -> None:
    """Raise if a prompt or an answer is an object or a list without any message in it."""
    parts = value if isinstance(value, list | tuple) else [value]
    if not parts or isinstance(value, str) or not isinstance(value, Mapping | list | tuple):
        return
    if not any(
        isinstance(part, Mapping) and {"role", "from", "messages"} & {*part} for part in parts
    ):
        kind = "an object" if isinstance(value, Mapping) else "a list"
        fix = f"Write it as text, such as JSON: row[{column!r}] = json.dumps(row[{column!r}])."
        raise RowFaultError(WRONG_TYPE, f"{kind} without messages is not text", column, fix)


def _asked(row: Mapping[str, Any], encoder: Encoder) -> tuple[Message, str | None]:
    """Return the message of the user, and the text of the answer."""
    row = with_choices(row, encoder.column_of("answer")) if "choices" in row else row
    prompt, answer = read_text(row, "prompt", encoder), read_text(row, "answer", encoder)
    if "rejected" in row:
        prompt, answer = split_answer(answer, read_text(row, "rejected", encoder))
    context = read_text(row, "input", encoder)
    if not (prompt or "").strip():
        raise _missing("prompt")
    asked: Message = {"role": "user", "content": f"{prompt}\n{context}" if context else prompt}
    if context:  # a template may tell the input of instruction, input and output apart
        asked |= {"instruction": prompt, "input": context}
    return asked, answer


def _missing(role: str) -> RowFaultError:
    what = f"the {role} is missing or empty"
    return drop_row(DropReason.EMPTY, EMPTY_PROMPT_OR_ANSWER, what, role)


def _history(value: Any, column: str) -> Iterator[Message]:
    """Earlier turns: pairs of what the user and the assistant said, or messages."""
    turns = parse_json(value) if isinstance(value, str) and value.strip() else value
    if turns is None or len(turns) == 0:
        return
    if holds_messages(as_messages(turns)):
        yield from read_dialogue(turns, column).messages
        return
    for place, pair in enumerate(turns if isinstance(turns, list) else [turns]):
        texts = list(pair) if isinstance(pair, list | tuple) else [pair]
        if len(texts) != 2 or not all(isinstance(text, str) and text.strip() for text in texts):
            fault = f"turn {place} of the history is {shown(pair)}; expected two texts"
            raise drop_row(DropReason.BAD_MESSAGES, UNREADABLE_MESSAGE, fault, column)
        yield {"role": "user", "content": texts[0]}
        yield {"role": "assistant", "content": texts[1]}


Turns = list[Any]
"""Messages as the data has them."""


def has_messages(*values: Any) -> bool:
    """Return whether one of the values is a message, a list of them, or an object that has some."""
    for value in values:
        if type(value) is not str and isinstance(value, Mapping | list | tuple):  # str: the usual
            return True
    return False


def join_turns(prompt: Any, answer: Any) -> Turns:
    """Return the dialogue of a prompt and its answer, each a text or messages.

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
    """Return the tools in a prompt that is an object with messages; None otherwise."""
    return prompt.get("tools") if isinstance(prompt, Mapping) else None


def _turns(value: Any, role: str) -> Turns:
    if isinstance(value, Mapping):
        return list(value["messages"] or ()) if "messages" in value else [value]
    if isinstance(value, list | tuple):
        return list(value)
    return [] if value is None else [{"role": role, "content": value}]


def split_answer(text: str | None, rejected: str | None) -> tuple[str, str]:
    """Return the prompt and the answer in one text: the rejected text begins with the same prompt.

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
    fields = fields_of(kind)
    by_letter = len(fields) > 1 and all(len(n) == 1 and is_text(t) for n, t in fields.items())
    return by_letter or ("text" in fields and is_text_list(fields["text"]))


CHOICES = Role("choices", ("choices", "options", "endings"), _holds_choices)
"""The texts that an answer names one of: a list, ARC's object with `text` and `label`, or an object
with a text for each letter."""


def with_choices(row: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    r"""Return the row with its choices in the prompt, and with the right one as its answer.

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
    """Return the texts of the choices, and the letters that name them."""
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
    """Return the number of the choice that an answer names by number, letter or text.

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
