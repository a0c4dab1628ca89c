"""The dialogue of an sft row, whatever form it has: messages, prompt and answer, their history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from surefit.data.stored_messages import as_messages, holds_messages, parse_json
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Remark, SkipRowError
from surefit.encode.encoder import Encoder
from surefit.encode.text.dialogues import Dialogue
from surefit.encode.text.messages import EMPTY_PROMPT_OR_ANSWER, Message, is_answer, read_dialogue
from surefit.encode.text.tool_messages import read_tools
from surefit.encode.text.unreadable_messages import (
    UNREADABLE_MESSAGE,
    refuse_python_text,
    shown,
)
from surefit.tasks.causal_text import read_text


def read_row(row: Mapping[str, Any], encoder: Encoder) -> Dialogue:
    """The row's messages and tools; prompt and answer are a user's and an assistant's.

    A system text comes first, and the turns of the history before the prompt.
    """
    predicting = bool(encoder.settings.get("predicting"))
    tools = read_tools(row.get("tools"), encoder.column_of("tools"))
    system = (read_text(row, "system", encoder) or "").strip()
    if "messages" in row:
        column = encoder.column_of("messages")
        messages = read_dialogue(row["messages"], column, predicting)
        return with_system(system, messages), tools
    earlier = list(_history(row.get("history"), encoder.column_of("history")))
    if is_conversational(row):
        turns = [*earlier, *_conversation(row, predicting)]
        messages = read_dialogue(turns, encoder.column_of("prompt"), predicting)
        return with_system(system, messages), tools
    asked = _asked(row, encoder)
    if predicting:
        return with_system(system, [*earlier, asked]), tools
    answer = read_text(row, "answer", encoder)
    if not (answer or "").strip():
        raise _missing("answer")
    return with_system(system, [*earlier, asked, {"role": "assistant", "content": answer}]), tools


def with_system(system: str, messages: list[Message]) -> list[Message]:
    """The messages after a system text, which is put before a system message of their own.

    >>> with_system("Be brief", [{"role": "system", "content": "Be kind"}])
    [{'role': 'system', 'content': 'Be brief\\n\\nBe kind'}]
    """
    if not system:
        return messages
    first, rest = messages[0], messages
    if first["role"] == "system":
        own, rest = first["content"].strip(), messages[1:]
        system = system if own in ("", system) else f"{system}\n\n{own}"
    return [{"role": "system", "content": system}, *rest]


def is_conversational(row: Mapping[str, Any]) -> bool:
    """Whether prompt or answer are lists of messages, as TRL has them, or one message."""
    return any(holds_messages(as_messages(row.get(role))) for role in ("prompt", "answer"))


def divide_conversation(row: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """The messages of a conversational row up to its last answer, and the rest."""
    turns = list(_conversation(row, predicting=False))
    answers = [place for place, turn in enumerate(turns) if is_answer(turn)]
    last = answers[-1] if answers else len(turns)
    return turns[:last], turns[last:]


def _conversation(row: Mapping[str, Any], predicting: bool) -> Iterator[Any]:
    """The turns of prompt and answer. Answers in the prompt are context, without labels."""
    for turn in _turns(row.get("prompt"), "user"):
        yield {**turn, "weight": 0} if is_answer(turn) and not predicting else turn
    if not predicting:
        yield from _turns(row.get("answer"), "assistant")


def _turns(value: Any, role: str) -> list[Any]:
    turns = as_messages(value)
    if isinstance(turns, str):
        return [{"role": role, "content": turns}] if turns.strip() else []
    return list(turns) if turns is not None else []


def _asked(row: Mapping[str, Any], encoder: Encoder) -> Message:
    for role in ("prompt", "answer"):
        refuse_python_text(row.get(role), encoder.column_of(role))
    prompt, context = read_text(row, "prompt", encoder), read_text(row, "input", encoder)
    if not (prompt or "").strip():
        raise _missing("prompt")
    asked: Message = {"role": "user", "content": f"{prompt}\n{context}" if context else prompt}
    if context:  # a template may tell the input of instruction, input and output apart
        asked |= {"instruction": prompt, "input": context}
    return asked


def _missing(role: str) -> SkipRowError:
    remark = Remark(EMPTY_PROMPT_OR_ANSWER, f"the {role} is missing or empty", role)
    return SkipRowError(DropReason.EMPTY, remark)


def _history(value: Any, column: str) -> Iterator[Message]:
    """Earlier turns: pairs of what the user and the assistant said, or messages."""
    refuse_python_text(value, column)
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
