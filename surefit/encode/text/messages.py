"""Dialogues in any form (OpenAI's `messages`, ShareGPT's turns) to messages of one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from surefit.data.stored_messages import JSON, as_messages, without_missing
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Remark, SkipRowError
from surefit.encode.text.tool_messages import are_json, are_named, calls_in, read_calls, text_of
from surefit.encode.text.unreadable_messages import (
    UNREADABLE_MESSAGE,
    refuse_python_text,
    shown,
)
from surefit.findings import rule

EMPTY_PROMPT_OR_ANSWER = rule(
    "SF270",
    "warning",
    "answer or prompt missing",
    why="A row without a prompt or an answer cannot be trained on; it is dropped.",
    fix="Add the missing text to the named row, or delete the row.",
    accept="The rows are dropped.",
)

WRONG_MESSAGE_ORDER = rule(
    "SF271",
    "warning",
    "messages in the wrong order",
    why=(
        "Templates expect one system message, then user and assistant in turn, and tool messages "
        "after an assistant. Other rows are dropped."
    ),
    fix="Correct the order of the messages in the named row.",
    accept="The rows are dropped.",
)

Message = dict[str, Any]
"""`role` and `content`, both text, and other keys that a template may read (`tool_calls`)."""

ROLE_NAMES = {
    "system": ("system", "developer"),
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "model", "bot", "chatgpt"),
    "tool": (
        *("tool", "function", "observation", "function_response", "tool_response", "tool_result"),
        *("function_result", "ipython"),
    ),
}
"""A role, and its names in the data."""
CALLS = ("function_call", "tool_call", "tool_calls", "function-call")
"""Names of turns in which an assistant calls a tool: the call is the text of the turn."""
CALL_FIELDS = ("tool_calls", "function_call")
"""Fields of messages that hold calls, the usual one first."""

_ROLES = {name: role for role, names in ROLE_NAMES.items() for name in names}
_ROLES |= dict.fromkeys(CALLS, "assistant")
_NEXT = {
    "": ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("tool", "assistant"),
}
"""The roles that may follow each role."""


def read_dialogue(turns: Any, column: str, predicting: bool = False) -> list[Message]:
    """The messages of a row, up to its last answer; a row with faulty ones is skipped.

    With `predicting`, up to the message to answer. A call of a tool belongs to the answer before
    it, if there is one.
    """
    messages: list[Message] = []
    before = ""
    for place, turn in enumerate(_read_turns(turns, column)):
        message = _read_message(turn)
        if isinstance(message, str):
            raise SkipRowError(
                DropReason.BAD_MESSAGES,
                Remark(UNREADABLE_MESSAGE, f"message {place} {message}", column),
            )
        role = message["role"]
        if before == "assistant" and is_call_turn(turn):
            messages[-1] = _with_calls(messages[-1], message)
            continue
        if role not in _NEXT[before]:
            after = f"comes after {before}" if before else "comes first"
            fault = f"message {place} ({role}) {after}; expected {' or '.join(_NEXT[before])}"
            raise SkipRowError(DropReason.BAD_MESSAGES, Remark(WRONG_MESSAGE_ORDER, fault, column))
        messages.append(message)
        before = role
    if predicting and before == "system":
        raise SkipRowError(
            DropReason.EMPTY, Remark(EMPTY_PROMPT_OR_ANSWER, "there is nothing to answer", column)
        )
    if predicting:
        return messages[:-1] if before == "assistant" else messages
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        raise SkipRowError(
            DropReason.EMPTY, Remark(EMPTY_PROMPT_OR_ANSWER, "no message is an assistant's", column)
        )
    empty = next((p for p in answers if not _has_content(messages[p])), None)
    if empty is not None:
        raise SkipRowError(
            DropReason.EMPTY,
            Remark(EMPTY_PROMPT_OR_ANSWER, f"message {empty} (assistant) is empty", column),
        )
    return messages[: answers[-1] + 1]


def _read_turns(value: Any, column: str) -> Sequence[Any]:
    """The messages as the data has them; a row without a list of messages is skipped."""
    refuse_python_text(value, column)
    turns: Sequence[Any] | None = as_messages(value)
    if turns is None or len(turns) == 0:
        raise SkipRowError(
            DropReason.EMPTY, Remark(EMPTY_PROMPT_OR_ANSWER, "there are no messages", column)
        )
    if isinstance(turns, str):
        remark = Remark(UNREADABLE_MESSAGE, f"{shown(turns)} is not a list of messages", column)
        raise SkipRowError(DropReason.BAD_MESSAGES, remark)
    return turns


def is_answer(turn: Any) -> bool:
    """Whether a message of the data is an assistant's."""
    return _role_of(turn) == "assistant"


def is_prompt(turn: Any) -> bool:
    """Whether a message of the data is a user's."""
    return _role_of(turn) == "user"


def _role_of(turn: Any) -> str | None:
    name = turn.get("role") or turn.get("from") if isinstance(turn, Mapping) else None
    return _ROLES.get(name.lower()) if isinstance(name, str) else None


def is_call_turn(turn: Any) -> bool:
    """Whether a message of the data is a call of a tool, by its role."""
    name = turn.get("role") or turn.get("from") if isinstance(turn, Mapping) else None
    return isinstance(name, str) and name.lower() in CALLS


def has_unread_call(turns: Any) -> bool:
    """Whether a call of a tool is no JSON with a name and arguments, so that it stays text."""
    for turn in turns:
        calls = _calls_of(turn)
        if not calls and is_call_turn(turn):
            text = turn.get("value") or turn.get("content") or ""
            calls = calls_in(text) or text if isinstance(text, str) else None
        if calls and not are_json(read_calls(calls)):
            return True
    return False


def _calls_of(turn: Mapping[str, Any]) -> Any:
    """The calls in a field of a message of the data, which may be stored as JSON."""
    names = [
        name for name, value in turn.items() if value and name.removesuffix(JSON) in CALL_FIELDS
    ]
    return next(iter(without_missing({names[0]: turn[names[0]]}).values())) if names else None


def _with_calls(answer: Message, call: Message) -> Message:
    content = "\n".join(text for text in (answer["content"], call["content"]) if text)
    calls = [*answer.get("tool_calls", ()), *call.get("tool_calls", ())]
    return {**answer, "content": content, **({"tool_calls": calls} if calls else {})}


def _read_message(turn: Any) -> Message | str:
    """One message with `role` and `content` as text, or a text that says what is wrong with it."""
    if not isinstance(turn, Mapping):
        return f"is {shown(turn)}; expected an object with role and content"
    values = without_missing(turn)
    name = values.pop("role", None) or values.pop("from", None)
    values.pop("from", None)
    if name is None:
        return "has no role"
    role = _ROLES.get(name.lower()) if isinstance(name, str) else None
    if role is None:
        return f"has the role {shown(name)}; known are {', '.join(_ROLES)}"
    content = values.pop("content", None)
    content = values.pop("value", None) if content is None else content
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = _joined(content)
    tool_calls, function_call = (values.pop(name, None) for name in CALL_FIELDS)
    calls = tool_calls or function_call
    if is_call_turn(turn) and isinstance(content, str) and not calls:
        calls = calls_in(content)
        content = "" if calls else content
    calls = read_calls(calls) if calls else None
    if calls and not are_named(calls) and not isinstance(content, list | Mapping):
        content, calls = "\n".join(filter(None, (content, text_of(calls)))), None
    if content is None and not calls:
        return f"({role}) has no content"
    if content is not None and not isinstance(content, str):
        return f"({role}) has the content {shown(content)}; expected text"
    if role == "user" and not (content or "").strip():
        return "(user) is empty"
    if calls:
        values["tool_calls"] = calls
    return {"role": role, "content": content or "", **values}


def _joined(parts: Sequence[Any]) -> Any:
    """The text of content in parts; the parts unchanged if one is not text."""
    given = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    texts = [text for text in given if isinstance(text, str)]
    return "".join(texts) if texts and len(texts) == len(parts) else parts


def _has_content(message: Message) -> bool:
    return bool(message["content"].strip() or message.get("tool_calls"))
