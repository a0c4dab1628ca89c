"""What is said of dialogues that cannot be read."""

from __future__ import annotations

from typing import Any

from surefit.data.stored_messages import is_python_text
from surefit.encode.encoded_row import RowFaultError
from surefit.findings import rule

UNREADABLE_MESSAGE = rule(
    "SF272",
    "warning",
    "invalid message",
    why="A message needs a known role, and text as its content. Other rows are dropped.",
    fix="Correct the named message.",
    accept="The rows are dropped.",
)

PYTHON_TEXT = rule(
    "SF167",
    "error",
    "dialogue stored as Python text",
    why=(
        "The column holds what Python prints for a list of dicts. It is not JSON, so reading it "
        "would take guessing, and training on it as text would teach Python syntax."
    ),
    fix="Store lists, or JSON: row[column] = json.dumps(ast.literal_eval(row[column])).",
)


def refuse_python_text(value: Any, column: str) -> None:
    """Raise the fault of a dialogue that is Python text."""
    if is_python_text(value):
        message = f"{shown(value)} is a list as Python prints it, not JSON"
        raise RowFaultError(PYTHON_TEXT, message, column)


def shown(value: Any) -> str:
    """A value for a message, cut to 60 characters."""
    text = value if isinstance(value, str) and is_python_text(value) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
