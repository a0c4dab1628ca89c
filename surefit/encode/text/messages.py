"""Dialogues in any form (OpenAI's `messages`, ShareGPT's turns) to messages of one form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from surefit.data.stored_messages import JSON
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Remark, SkipRowError
from surefit.findings import rule

EMPTY_PROMPT_OR_ANSWER = rule(
    "SF270",
    "warning",
    "answer or prompt missing",
    why="A row without a prompt or an answer cannot be trained on; it is dropped.",
    fix="Add the missing text to the named row, or delete the row.",
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
)

UNREADABLE_MESSAGE = rule(
    "SF272",
    "warning",
    "invalid message",
    why="A message needs a known role, and text as its content. Other rows are dropped.",
    fix="Correct the named message.",
)


Message = dict[str, Any]
"""`role` and `content`, both text, and other keys that a template may read (`tool_calls`)."""

ROLE_NAMES = {
    "system": ("system", "developer"),
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "model", "bot", "chatgpt", "function_call"),
    "tool": ("tool", "function", "observation", "function_response"),
}
"""A role, and its names in the data."""

_ROLES = {name: role for role, names in ROLE_NAMES.items() for name in names}
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

    With `predicting`, up to the message to answer.
    """
    if turns is None or len(turns) == 0:
        raise SkipRowError(
            DropReason.EMPTY, Remark(EMPTY_PROMPT_OR_ANSWER, "there are no messages", column)
        )
    messages: list[Message] = []
    before = ""
    for place, turn in enumerate(turns):
        message = _read_message(turn)
        if isinstance(message, str):
            raise SkipRowError(
                DropReason.BAD_MESSAGES,
                Remark(UNREADABLE_MESSAGE, f"message {place} {message}", column),
            )
        role = message["role"]
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


def is_answer(turn: Any) -> bool:
    """Whether a message of the data is an assistant's."""
    return _role_of(turn) == "assistant"


def is_prompt(turn: Any) -> bool:
    """Whether a message of the data is a user's."""
    return _role_of(turn) == "user"


def _role_of(turn: Any) -> str | None:
    name = turn.get("role") or turn.get("from") if isinstance(turn, Mapping) else None
    return _ROLES.get(name.lower()) if isinstance(name, str) else None


def _read_message(turn: Any) -> Message | str:
    """One message with `role` and `content` as text, or a text that says what is wrong with it."""
    if not isinstance(turn, Mapping):
        return f"is {_shown(turn)}; expected an object with role and content"
    values = _without_missing(turn)
    name = values.pop("role", None) or values.pop("from", None)
    values.pop("from", None)
    if name is None:
        return "has no role"
    role = _ROLES.get(name.lower()) if isinstance(name, str) else None
    if role is None:
        return f"has the role {_shown(name)}; known are {', '.join(_ROLES)}"
    content = values.pop("content", None)
    content = values.pop("value", None) if content is None else content
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = _joined(content)
    calls = values.get("tool_calls")
    if content is None and not calls:
        return f"({role}) has no content"
    if content is not None and not isinstance(content, str):
        return f"({role}) has the content {_shown(content)}; expected text"
    if role == "user" and not (content or "").strip():
        return "(user) is empty"
    if calls:
        values["tool_calls"] = [_read_call(call) for call in calls]
    return {"role": role, "content": content or "", **values}


def _without_missing(value: Any) -> Any:
    """The value without keys that only other rows have, and with its JSON parsed."""
    if isinstance(value, Mapping):
        return {
            name.removesuffix(JSON): _parsed(inner)
            if name.endswith(JSON)
            else _without_missing(inner)
            for name, inner in value.items()
            if inner is not None
        }
    return [_without_missing(inner) for inner in value] if isinstance(value, list) else value


def _parsed(text: Any) -> Any:
    """The value of a JSON text; anything else unchanged."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _joined(parts: Sequence[Any]) -> Any:
    """The text of content in parts; the parts unchanged if one is not text."""
    given = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    texts = [text for text in given if isinstance(text, str)]
    return "".join(texts) if texts and len(texts) == len(parts) else parts


def _read_call(call: Any) -> Any:
    """A tool call with its arguments as an object, as templates expect, instead of JSON text."""
    if not isinstance(call, Mapping):
        return call
    inner = call.get("function", call)
    if isinstance(inner, Mapping) and isinstance(inner.get("arguments"), str):
        inner = {**inner, "arguments": _parsed(inner["arguments"])}
    return {**call, "function": inner} if "function" in call else inner


def read_tools(value: Any, column: str) -> list[Any] | None:
    """The tools of a row, given as a list of objects or as JSON; None if there are none."""
    tools = _without_missing(_parsed(value) if isinstance(value, str) and value.strip() else value)
    if not tools:
        return None
    if isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools):
        return tools
    fault = f"the tools are {_shown(tools)}; expected a list of objects"
    raise SkipRowError(DropReason.BAD_MESSAGES, Remark(UNREADABLE_MESSAGE, fault, column))


def _has_content(message: Message) -> bool:
    return bool(message["content"].strip() or message.get("tool_calls"))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
