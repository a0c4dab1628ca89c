"""Tool definitions and tool calls in any form (OpenAI's, ShareGPT's) to the form templates expect.

A template gets tools and calls as OpenAI has them: `{"type": "function", "function": {…}}`, with
arguments as an object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from surefit.data.stored_messages import parse_json, without_missing
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Remark, SkipRowError
from surefit.encode.text.unreadable_messages import UNREADABLE_MESSAGE, refuse_python_text, shown
from surefit.findings import rule

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

FUNCTION = "function"


def read_tools(value: Any, column: str) -> list[Any] | None:
    """The tools of a row, given as objects or as JSON; None if there are none."""
    refuse_python_text(value, column)
    tools = without_missing(parse_json(value) if isinstance(value, str) else value)
    if not tools or (isinstance(tools, str) and not tools.strip()):
        return None
    listed = [tools] if isinstance(tools, Mapping) and _is_definition(tools) else tools
    if isinstance(listed, list) and all(isinstance(tool, Mapping) for tool in listed):
        return [_wrapped(tool) if _is_definition(tool) else tool for tool in listed]
    fault = f"the tools are {shown(tools)}; expected a list of objects"
    raise SkipRowError(DropReason.BAD_MESSAGES, Remark(UNREADABLE_MESSAGE, fault, column))


def _is_definition(tool: Mapping[str, Any]) -> bool:
    return "name" in tool or isinstance(tool.get(FUNCTION), Mapping)


def _wrapped(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool if FUNCTION in tool or "type" in tool else {"type": FUNCTION, FUNCTION: tool}


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
    return {"type": FUNCTION, FUNCTION: inner} if is_call(inner) else inner


def is_call(value: Any) -> bool:
    """Whether a value has the name and the arguments of a call."""
    return (
        isinstance(value, Mapping) and isinstance(value.get("name"), str) and "arguments" in value
    )


def are_named(calls: list[Any]) -> bool:
    """Whether each call has a name; a template cannot write any other."""
    functions = [_function(call) for call in calls]
    return all(isinstance(f, Mapping) and isinstance(f.get("name"), str) for f in functions)


def are_json(calls: list[Any]) -> bool:
    """Whether each call has a name, and its arguments, if it has any, were JSON."""
    if not are_named(calls):
        return False
    arguments = (_function(call).get("arguments") for call in calls)
    return not any(isinstance(given, str) and given.strip() for given in arguments)


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
    """The calls that a ShareGPT turn `function_call` has as its text; None if it has none.

    >>> calls_in('{"name": "f", "arguments": "{\\\\"x\\\\": 1}"}')
    [{'type': 'function', 'function': {'name': 'f', 'arguments': {'x': 1}}}]
    """
    calls = read_calls(text)
    return calls if calls and all(is_call(_function(call)) for call in calls) else None


def _function(call: Any) -> Any:
    return call.get(FUNCTION, call) if isinstance(call, Mapping) else call


def calls_as_text(calls: list[Any]) -> str:
    """Calls as JSON text, for templates that write none.

    >>> calls_as_text([{"type": "function", "function": {"name": "f", "arguments": {}}}])
    '{"name": "f", "arguments": {}}'
    """
    shown = [_function(call) for call in calls]
    return json.dumps(shown[0] if len(shown) == 1 else shown, ensure_ascii=False)
