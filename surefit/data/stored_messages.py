"""Dialogues as Arrow can store them: every value of a message is text.

A whole dialogue may be stored as JSON text, too, as tables and databases do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

JSON = ".json"
"""The suffix of the name under which a value that is not text is stored as JSON."""
PYTHON_OBJECTS = r"^\s*\[?\s*(\{\s*'|OrderedDict\()"
"""How a list of objects begins as Python prints it."""


def storable(value: Any) -> Any:
    """A dialogue with every value of its messages as text, so that Arrow needs one type.

    A value that is not text is stored as JSON under `<name>.json`, and a list of tools as JSON. An
    object with messages, such as OpenAI's `input`, is converted value by value.
    Anything else is returned unchanged.

    >>> storable([{"role": "user", "content": 5}])
    [{'role': 'user', 'content.json': '5'}]
    """
    if isinstance(value, Mapping) and isinstance(value.get("messages"), list):
        return {name: storable(inner) or None for name, inner in value.items()}
    if not isinstance(value, list) or not value:
        return value
    if all(_is_tool(item) for item in value):
        return json.dumps(value, ensure_ascii=False)
    if not any(is_message(item) for item in value):
        return value
    return [_texts(item if isinstance(item, Mapping) else {"content": [item]}) for item in value]


def is_message(item: Any) -> bool:
    """Whether a value is a message in the format of OpenAI or ShareGPT."""
    return isinstance(item, Mapping) and (
        ("role" in item and ("content" in item or "tool_calls" in item or f"content{JSON}" in item))
        or ("from" in item and "value" in item)
    )


def _is_tool(item: Any) -> bool:
    """Whether a value describes a tool in the format of OpenAI and chat templates."""
    inner = item.get("function", item) if isinstance(item, Mapping) else None
    return isinstance(inner, Mapping) and "name" in inner and "parameters" in inner


def _texts(message: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {
            str(name) if _is_plain(value) else f"{name}{JSON}": value
            if _is_plain(value)
            else json.dumps(value, ensure_ascii=False)
            for name, value in message.items()
        }
    except (TypeError, ValueError):
        return dict(message)  # no JSON: left for Arrow to refuse


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str)


def without_missing(value: Any) -> Any:
    """The value without keys that only other rows have, and with its JSON parsed."""
    if isinstance(value, Mapping):
        return {
            name.removesuffix(JSON): parse_json(inner)
            if name.endswith(JSON)
            else without_missing(inner)
            for name, inner in value.items()
            if inner is not None
        }
    return [without_missing(inner) for inner in value] if isinstance(value, list) else value


def parse_json(text: Any) -> Any:
    """The value of a JSON text; anything else unchanged."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def as_messages(value: Any) -> Any:
    """A dialogue as a list of messages: one message alone, or JSON text, becomes a list.

    Anything else is returned unchanged.

    >>> as_messages('[{"role": "user", "content": "Hi"}]')
    [{'role': 'user', 'content': 'Hi'}]
    """
    parsed = value
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        parsed = parse_json(value)
    if is_message(parsed):
        return [parsed]
    is_text = isinstance(parsed, str) or (isinstance(value, str) and not holds_messages(parsed))
    return value if is_text else parsed


def holds_messages(value: Any) -> bool:
    """Whether a value is a list of messages; an empty list is not."""
    return isinstance(value, list) and bool(value) and any(is_message(item) for item in value)


def is_python_text(value: Any) -> bool:
    """Whether a text is a list of objects as Python prints it, which JSON does not allow.

    >>> is_python_text("[{'role': 'user'}]"), is_python_text('[{"role": "user"}]')
    (True, False)
    """
    return isinstance(value, str) and re.match(PYTHON_OBJECTS, value) is not None
