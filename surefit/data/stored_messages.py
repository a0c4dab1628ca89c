"""Dialogues as Arrow can store them: every value of a message is text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

JSON = ".json"
"""The suffix of the name under which a value that is not text is stored as JSON."""


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
    if not any(_is_message(item) for item in value):
        return value
    return [_texts(item if isinstance(item, Mapping) else {"content": [item]}) for item in value]


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) and (
        ("role" in item and ("content" in item or "tool_calls" in item))
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
