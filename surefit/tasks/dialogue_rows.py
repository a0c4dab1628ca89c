"""The dialogue of an sft row, whatever form it has: messages, prompt and answer, their history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from surefit.data.stored_messages import as_messages, holds_messages, parse_json
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Remark, SkipRowError
from surefit.encode.encoder import Encoder
from surefit.encode.text.dialogues import Dialogue
from surefit.encode.text.messages import (
    EMPTY_PROMPT_OR_ANSWER,
    UNREADABLE_MESSAGE,
    Message,
    is_answer,
    read_dialogue,
    read_tools,
    shown,
)
from surefit.encode.text.prompt_and_answer import (
    has_messages,
    join_turns,
    split_answer,
    tools_in,
    with_choices,
)
from surefit.tasks.causal_text import read_text


def read_row(row: Mapping[str, Any], encoder: Encoder) -> Dialogue:
    """The row's messages and tools; prompt and answer are a user's and an assistant's.

    A system text comes first, and the turns of the history before the prompt.
    """
    predicting = bool(encoder.settings.get("predicting"))
    given = row.get("tools") or tools_in(row.get("prompt"))
    tools = read_tools(given, encoder.column_of("tools"))
    system = (read_text(row, "system", encoder) or "").strip()
    earlier = list(_history(row.get("history"), encoder.column_of("history")))
    role, turns = turns_of(row)
    column = encoder.column_of(role)
    if turns is not None:
        turns = [*earlier, *turns] if earlier and not isinstance(turns, str) else turns
        return with_system(system, read_dialogue(turns, column, predicting)), tools
    asked, answer = _asked(row, encoder)
    if predicting:
        return with_system(system, [*earlier, asked]), tools
    if not (answer or "").strip():
        raise _missing("answer")
    return with_system(system, [*earlier, asked, {"role": "assistant", "content": answer}]), tools


def turns_of(row: Mapping[str, Any]) -> tuple[str, Any]:
    """The role and the messages of a row that has some; None if its prompt and answer are texts."""
    prompt, answer = row.get("prompt"), row.get("answer")
    if "messages" in row and (row["messages"] is not None or prompt is None):
        turns = as_messages(row["messages"])
        return "messages", turns if answer is None else join_turns(turns, answer)
    return "prompt", join_turns(prompt, answer) if has_messages(prompt, answer) else None


def divide_row(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """What comes before the last answer of a row of texts or messages, and the rest."""
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


def with_system(system: str, messages: list[Message]) -> list[Message]:
    r"""The messages after a system text, which is put before a system message of their own.

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


def _asked(row: Mapping[str, Any], encoder: Encoder) -> tuple[Message, str | None]:
    """The message of the user, and the text of the answer."""
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


def _missing(role: str) -> SkipRowError:
    remark = Remark(EMPTY_PROMPT_OR_ANSWER, f"the {role} is missing or empty", role)
    return SkipRowError(DropReason.EMPTY, remark)


def _history(value: Any, column: str) -> Iterator[Message]:
    """Earlier turns: pairs of what the user and the assistant said, or messages."""
    turns = parse_json(value) if isinstance(value, str) and value.strip() else value
    if turns is None or len(turns) == 0:
        return
    if holds_messages(as_messages(turns)):
        yield from read_dialogue(turns, column)
        return
    for place, pair in enumerate(turns if isinstance(turns, list) else [turns]):
        texts = list(pair) if isinstance(pair, list | tuple) else [pair]
        if len(texts) != 2 or not all(isinstance(text, str) and text.strip() for text in texts):
            fault = f"turn {place} of the history is {shown(pair)}; expected two texts"
            raise SkipRowError(DropReason.BAD_MESSAGES, Remark(UNREADABLE_MESSAGE, fault, column))
        yield {"role": "user", "content": texts[0]}
        yield {"role": "assistant", "content": texts[1]}
