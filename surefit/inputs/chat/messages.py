"""Dialogues in any form (OpenAI's `messages`, ShareGPT's turns) to messages of one form.

A template gets tools and calls as OpenAI has them: `{"type": "function", "function": {…}}`, with
arguments as an object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefit.config import set_option
from surefit.data.rendered_chats import ROLE_NAMES
from surefit.data.stored_messages import (
    as_messages,
    is_python_text,
    parse_json,
    without_missing,
)
from surefit.findings import rule
from surefit.inputs.encoded_row import DropReason, RowFaultError, drop_row

EMPTY_PROMPT_OR_ANSWER = rule(
    "SF270",
    "warning",
    "answer or prompt missing",
    why="A row without a prompt or an answer cannot be trained on; it is dropped.",
    fix="Add the missing text to the named row, or delete the row.",
    accept="The rows are dropped.",
)

UNREADABLE_MESSAGE = rule(
    "SF272",
    "warning",
    "invalid messages",
    why="A message needs a known role, and text as its content. Templates expect one system "
    "message, then users and assistants, and tool messages after an assistant. Other rows are "
    "dropped.",
    fix="Correct the named message, or the order of the messages.",
    accept="The rows are dropped.",
)

CALL_KEPT_AS_TEXT = rule(
    "SF166",
    "warning",
    "tool call that is not JSON",
    why=(
        "A template cannot write a call without a name, or arguments that are no JSON object. "
        "They are trained on as the text that they are."
    ),
    fix='Write the call as JSON: {"name": …, "arguments": {…}}, or a list of such objects.',
    accept="The calls are trained on as text.",
)

Message = dict[str, Any]
"""`role` and `content`, both text, and other keys that a template may read (`tool_calls`)."""

FUNCTION = "function"
CALLS = ("function_call", "tool_call", "tool_calls", "function-call")
"""Names of turns in which an assistant calls a tool: the call is the text of the turn."""
CALL_FIELDS = ("tool_calls", "function_call")
"""Fields of messages that hold calls, the usual one first."""

_ROLES = {name: role for role, names in ROLE_NAMES.items() for name in names}
_ROLES |= dict.fromkeys(CALLS, "assistant")
_NEXT = {
    "": ("system", "user", "assistant"),
    "system": ("user", "assistant"),
    "user": ("assistant", "user"),
    "assistant": ("user", "tool"),
    "tool": ("tool", "assistant"),
}
"""The roles that may follow each role."""


@dataclass(frozen=True)
class Dialogue:
    """The messages of a row up to its last answer, and the tools offered in them."""

    messages: Sequence[Message]
    tools: Any = None
    num_left_out: int = 0
    """Messages behind the last answer."""
    has_unread_call: bool = False
    """Whether a tool call is no JSON with a name and arguments, so that it stays text."""


def read_dialogue(turns: Any, column: str, predicting: bool = False) -> Dialogue:
    """Return the messages of a row, up to its last answer; a row with faulty ones is skipped.

    With `predicting`, up to the message to answer. A call of a tool belongs to the answer before
    it, if there is one.
    """
    messages: list[Message] = []
    before, has_unread = "", False
    for place, turn in enumerate(_read_turns(turns, column)):
        try:
            message, is_unread = _read_message(turn)
        except ValueError as fault:
            raise _unreadable(f"message {place} {fault}", column) from None
        role, has_unread = message["role"], has_unread or is_unread
        if before == "assistant" and _name_of(turn) in CALLS:
            answer = messages[-1]
            content = "\n".join(text for text in (answer["content"], message["content"]) if text)
            joined = [*answer.get("tool_calls", ()), *message.get("tool_calls", ())]
            more = {"tool_calls": joined} if joined else {}
            messages[-1] = {**answer, "content": content, **more}
            continue
        if role not in _NEXT[before]:
            after = f"comes after {before}" if before else "comes first"
            wrong = f"message {place} ({role}) {after}; expected {' or '.join(_NEXT[before])}"
            raise _unreadable(wrong, column)
        if role == "assistant" and before in ("", "system"):  # it answers nothing
            message = {**message, "weight": 0}
        messages.append(message)
        before = role
    if predicting and before == "system":
        raise _empty("there is nothing to answer", column)
    if predicting:
        return Dialogue(messages[:-1] if before == "assistant" else messages)
    roles = [message["role"] for message in messages]
    asked = roles.index("user") if "user" in roles else 0
    answers = [place for place, role in enumerate(roles) if role == "assistant"]
    if not answers:
        raise _empty("no message is an assistant's", column)
    if answers[-1] <= asked:
        wrong = f"message {answers[0]} (assistant) comes first, and no answer after a user"
        raise _unreadable(wrong, column)
    for place in answers:
        if not messages[place]["content"].strip() and not messages[place].get("tool_calls"):
            raise _empty(f"message {place} (assistant) is empty", column)
    kept = messages[: answers[-1] + 1]
    return Dialogue(kept, None, len(messages) - len(kept), has_unread)


def _read_turns(value: Any, column: str) -> Sequence[Any]:
    """Return the messages as the data has them; a row without a list of messages is skipped."""
    turns: Sequence[Any] | None = as_messages(value)
    if turns is None or len(turns) == 0:
        raise _empty("there are no messages", column)
    if isinstance(turns, str):
        raise _unreadable(f"{shown(turns)} is not a list of messages", column)
    return turns


def _empty(what: str, column: str) -> RowFaultError:
    return drop_row(DropReason.EMPTY, EMPTY_PROMPT_OR_ANSWER, what, column)


def _unreadable(fault: str, column: str) -> RowFaultError:
    return drop_row(DropReason.BAD_MESSAGES, UNREADABLE_MESSAGE, fault, column)


def _name_of(turn: Any) -> str:
    """Return the role of a message of the data, under the name that the data has for it."""
    name = turn.get("role") or turn.get("from") if isinstance(turn, Mapping) else None
    return name.lower() if isinstance(name, str) else ""


def is_answer(turn: Any) -> bool:
    """Return whether a message of the data is an assistant's."""
    return _ROLES.get(_name_of(turn)) == "assistant"


def is_prompt(turn: Any) -> bool:
    """Return whether a message of the data is a user's."""
    return _ROLES.get(_name_of(turn)) == "user"


def _read_message(turn: Any) -> tuple[Message, bool]:
    """Return one message with `role` and `content` as text, and whether a call in it stays text.

    Raises ValueError with what is wrong with it.
    """
    if not isinstance(turn, Mapping):
        raise ValueError(f"is {shown(turn)}; expected an object with role and content")
    values = without_missing(turn)
    name = values.pop("role", None) or values.pop("from", None)
    values.pop("from", None)
    if name is None:
        raise ValueError("has no role")
    role = _ROLES.get(name.lower()) if isinstance(name, str) else None
    if role is None:
        known = f"known are {', '.join(_ROLES)}"
        own = f" (or say what it is: {set_option(f'read.roles.{name}', 'user')})"
        raise ValueError(f"has the role {shown(name)}; {known}{own * isinstance(name, str)}")
    content = values.pop("content", None)
    content = values.pop("value", None) if content is None else content
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = _joined(content)
    tool_calls, function_call = (values.pop(name, None) for name in CALL_FIELDS)
    calls = tool_calls or function_call
    is_unread = False
    if name.lower() in CALLS and isinstance(content, str) and not calls:
        calls = calls_in(content)
        is_unread = not calls and bool(content)
        content = "" if calls else content
    if calls:
        calls = read_calls(calls)
        is_unread = not all(map(_has_arguments, calls))
    if calls and not all(map(has_name, calls)) and not isinstance(content, list | Mapping):
        content, calls = "\n".join(filter(None, (content, text_of(calls)))), None
    if content is None and not calls:
        raise ValueError(f"({role}) has no content")
    if content is not None and not isinstance(content, str):
        raise ValueError(f"({role}) has the content {shown(content)}; expected text")
    if role == "user" and not (content or "").strip():
        raise ValueError("(user) is empty")
    if "loss_weight" in values:  # as LLaMA-Factory calls it
        values["weight"] = values.pop("loss_weight")
    if values.get("weight") not in (None, 0, 1):
        raise ValueError(f"({role}) has the weight {shown(values['weight'])}; expected 0 or 1")
    if calls:
        values["tool_calls"] = calls
    return {"role": role, "content": content or "", **values}, is_unread


def _joined(parts: Sequence[Any]) -> Any:
    """Return the text of content in parts; the parts unchanged if one is not text."""
    texts = [text for text in map(_text_of_part, parts) if isinstance(text, str)]
    return "".join(texts) if texts and len(texts) == len(parts) else parts


def _text_of_part(part: Any) -> Any:
    """Return the text of a part, which OpenAI calls `text` and LLaMA-Factory `value`."""
    if not isinstance(part, Mapping):
        return part
    return part.get("text", part.get("value") if part.get("type") == "text" else None)


def shown(value: Any) -> str:
    """Return a value for a message, cut to 60 characters."""
    text = value if isinstance(value, str) and is_python_text(value) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def read_tools(value: Any, column: str) -> list[Any] | None:
    """Return the tools of a row, given as objects or as JSON; None if there are none."""
    tools = without_missing(parse_json(value) if isinstance(value, str) else value)
    if not tools or (isinstance(tools, str) and not tools.strip()):
        return None
    listed = [tools] if isinstance(tools, Mapping) and _is_definition(tools) else tools
    if isinstance(listed, list) and all(isinstance(tool, Mapping) for tool in listed):
        return [
            {"type": FUNCTION, FUNCTION: tool}
            if _is_definition(tool) and FUNCTION not in tool and "type" not in tool
            else tool
            for tool in listed
        ]
    raise _unreadable(f"the tools are {shown(tools)}; expected a list of objects", column)


def _is_definition(tool: Mapping[str, Any]) -> bool:
    return "name" in tool or isinstance(tool.get(FUNCTION), Mapping)


def read_calls(calls: Any) -> list[Any]:
    """Tool calls with their arguments as objects instead of JSON text."""
    parsed = parse_json(calls) if isinstance(calls, str) else calls
    listed = [parsed] if isinstance(parsed, Mapping) else parsed
    return [_read_call(call) for call in listed] if isinstance(listed, list) else [parsed]


def _read_call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    inner = call.get(FUNCTION, call)
    if isinstance(inner, str) and "arguments" in call:  # {"function": "name", "arguments": …}
        inner = {"name": inner, "arguments": call["arguments"]}
        call = {name: value for name, value in call.items() if name not in (FUNCTION, "arguments")}
        call = {**call, FUNCTION: inner}
    if not isinstance(inner, Mapping):
        return call
    if (
        "name" in inner
        and "arguments" not in inner
        and isinstance(inner.get("parameters"), Mapping)
    ):
        kept = {name: value for name, value in inner.items() if name != "parameters"}
        inner = {**kept, "arguments": inner["parameters"]}
    if isinstance(inner.get("arguments"), str):
        inner = {**inner, "arguments": parse_json(inner["arguments"])}
    if FUNCTION in call:
        return {"type": FUNCTION, **call, FUNCTION: inner}
    is_call = isinstance(inner.get("name"), str) and "arguments" in inner
    return {"type": FUNCTION, FUNCTION: inner} if is_call else inner


def has_name(value: Any) -> bool:
    """Return whether a call or a tool has a name; a template cannot write any other."""
    inner = _function(value)
    return isinstance(inner, Mapping) and isinstance(inner.get("name"), str)


def _has_arguments(call: Any) -> bool:
    """Return whether a call has a name, and arguments that are no text."""
    given = _function(call).get("arguments") if has_name(call) else "unnamed"
    return not (isinstance(given, str) and given.strip())


def text_of(calls: list[Any]) -> str:
    """Calls that have no name, as the text that the data has.

    >>> text_of(["find(Paris)", {"city": "Rome"}])
    'find(Paris)\\n{"city": "Rome"}'
    """
    return "\n".join(
        call if isinstance(call, str) else json.dumps(call, ensure_ascii=False, default=str)
        for call in calls
    )


def calls_in(text: str) -> list[Any] | None:
    """Return the calls that a ShareGPT turn `function_call` has as its text; None if it has none.

    >>> calls_in('{"name": "f", "arguments": "{\\\\"x\\\\": 1}"}')
    [{'type': 'function', 'function': {'name': 'f', 'arguments': {'x': 1}}}]
    """
    calls = read_calls(text)
    is_read = all(has_name(call) and "arguments" in _function(call) for call in calls)
    return calls if calls and is_read else None


def _function(call: Any) -> Any:
    return call.get(FUNCTION, call) if isinstance(call, Mapping) else call


def calls_as_text(calls: list[Any]) -> str:
    """Calls as JSON text, for templates that write none.

    >>> calls_as_text([{"type": "function", "function": {"name": "f", "arguments": {}}}])
    '{"name": "f", "arguments": {}}'
    """
    shown = [_function(call) for call in calls]
    return json.dumps(shown[0] if len(shown) == 1 else shown, ensure_ascii=False)
