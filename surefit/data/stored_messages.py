"""Dialogues as data has them: lists that Arrow stores, JSON text, and forms that are not read.

Arrow stores every value of a message as text. Forms that are not read are single messages as rows,
as OpenAssistant's flat files have them, and lists as Python prints them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from surefit.config import set_option
from surefit.data.column_types import is_text
from surefit.data.column_values import has_words, is_identifier, word_set, words_of
from surefit.data.rendered_chats import ROLE_NAMES, read_rendered
from surefit.data.table import Table
from surefit.findings import Finding, rule

JSON = ".json"
"""The suffix of the name under which a value that is not text is stored as JSON."""
PYTHON_OBJECTS = r"^\s*\[?\s*(\{\s*'|OrderedDict\()"
"""How a list of objects begins as Python prints it."""


def storable(value: Any) -> Any:
    """Return a dialogue with every value of its messages as text, so that Arrow needs one type.

    A value that is not text is stored as JSON under `<name>.json`, and a list of tools as JSON. An
    object with messages, such as OpenAI's `input`, is converted value by value.
    Marked places (`[[0, 3, "PER"]]`) become objects. Anything else is returned unchanged.

    >>> storable([{"role": "user", "content": 5}])
    [{'role': 'user', 'content.json': '5'}]
    >>> storable([[0, 3, "PER"]])
    [{'start': 0, 'end': 3, 'label': 'PER'}]
    """
    if isinstance(value, Mapping) and isinstance(value.get("messages"), list):
        return {name: storable(inner) or None for name, inner in value.items()}
    if not isinstance(value, list) or not value:
        return value
    if all(_is_tool(item) for item in value):
        return json.dumps(value, ensure_ascii=False)
    if all(isinstance(item, list) and [*map(type, item)] == [int, int, str] for item in value):
        return [dict(zip(("start", "end", "label"), item, strict=True)) for item in value]
    if not any(is_message(item) for item in value):
        return value
    return [_texts(item if isinstance(item, Mapping) else {"content": [item]}) for item in value]


def is_message(item: Any) -> bool:
    """Return whether a value is a message in the format of OpenAI or ShareGPT."""
    return isinstance(item, Mapping) and (
        ("role" in item and ("content" in item or "tool_calls" in item or f"content{JSON}" in item))
        or ("from" in item and "value" in item)
    )


def _is_tool(item: Any) -> bool:
    """Return whether a value describes a tool in the format of OpenAI and chat templates."""
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
    """Return the value without keys that only other rows have, and with its JSON parsed."""
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
    """Return the value of a JSON text; anything else unchanged."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def as_messages(value: Any) -> Any:
    """Return a dialogue as a list of messages: one message alone, JSON text or a rendered chat
    becomes a list.

    Anything else is returned unchanged.

    >>> as_messages('[{"role": "user", "content": "Hi"}]')
    [{'role': 'user', 'content': 'Hi'}]
    """
    parsed = value
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        parsed = parse_json(value)
    if is_message(parsed):
        return [parsed]
    if isinstance(value, str) and not holds_messages(parsed):
        return read_rendered(value) or value
    return parsed


def holds_messages(value: Any) -> bool:
    """Return whether a value is a list of messages; an empty list is not."""
    return isinstance(value, list) and bool(value) and any(is_message(item) for item in value)


def is_python_text(value: Any) -> bool:
    """Return whether a text is a list of objects as Python prints it, which JSON does not allow.

    >>> is_python_text("[{'role': 'user'}]"), is_python_text('[{"role": "user"}]')
    (True, False)
    """
    return isinstance(value, str) and re.match(PYTHON_OBJECTS, value) is not None


def are_dialogues(values: Sequence[Any]) -> bool:
    """Return whether values are dialogues: lists, messages, or texts that mostly hold messages."""
    objects = [value for value in values if isinstance(value, Mapping)]
    if not all(is_message(value) for value in objects):
        return False
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    if not texts:
        return True
    dialogues = sum(holds_messages(as_messages(text)) or is_python_text(text) for text in texts)
    return 2 * dialogues > len(texts)


MESSAGE_ROWS = rule(
    "SF146",
    "error",
    "rows are single messages",
    why=(
        "Each message would be learned without the ones before it, prompts as well as answers, and "
        "the model would not learn to answer."
    ),
    fix="Write one row for each conversation, with its messages as a list in a column 'messages'.",
    accept="Each message is trained on as a row of its own.",
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
    accept="Prompts and answers are trained on as the text they are. Rows whose messages, history "
    "or tools cannot be read are dropped.",
)

_MESSAGES = r"^\s*\[\s*(\{|OrderedDict\(\[\()\s*'(role|from|content|value)'"
PYTHON_TEXTS = {
    **dict.fromkeys(("messages", "history", "tools"), PYTHON_OBJECTS),
    **dict.fromkeys(("prompt", "answer", "chosen", "rejected"), _MESSAGES),
}
"""How Python text begins in a column of a role. An answer may well be code: only a list of messages
counts there."""

SPEAKERS = word_set("role roles speaker sender participant from")
"""Words in the name of a column that says who wrote a message."""
ANSWERING = frozenset(ROLE_NAMES["assistant"])
ASKING = frozenset((*ROLE_NAMES["user"], "prompter", "customer", "client"))
GROUPS = word_set("conversation conversations conv convo dialogue dialog thread tree session chat")
"""Words in the name of a column that says which conversation a message belongs to."""
PARENT = word_set("parent reply replyto")
"""Words in the name of a column with the message that a message answers."""


def check_message_rows(
    table: Table, roles: Mapping[str, str], chosen: Mapping[str, str]
) -> Iterator[Finding]:
    """Rows that are messages, where a text is read alone; `chosen` are columns the user names."""
    text = roles.get("text")
    if text is None or "text" in chosen or "label" in chosen:
        return
    speaker = next((name for name in table.columns if _names_speakers(table, name)), None)
    links = _links(table)
    if speaker is None or not (links or words_of(speaker) in (("role",), ("from",))):
        return
    counts = table.profile(speaker).counts or {}
    shown = ", ".join(f"{value!r} in {count:,}" for value, count in counts.items())
    joined = f", which {' and '.join(map(repr, links))} join to conversations" if links else ""
    yield MESSAGE_ROWS.finding(
        f"Column {text!r} has one message in each of {table.num_rows:,} rows{joined}; column "
        f"{speaker!r} says who wrote it ({shown} rows).",
        fix=_fix(text, speaker, links, "--task causal-lm " * ("label" in roles)),
        file=table.sources[0].file,
        column=speaker,
    )


def check_python_text(table: Table, roles: Mapping[str, str]) -> Iterator[Finding]:
    """Yield columns of dialogues of which most texts are lists as Python prints them."""
    for role, pattern in PYTHON_TEXTS.items():
        column = roles.get(role, "")
        if column not in table.columns or not is_text(table.column_type(column)):
            continue
        cells = table.arrow[column]
        begins = pc.match_substring_regex(cells, pattern)
        filled = int(pc.sum(pc.greater(pc.binary_length(cells), 0)).as_py() or 0)
        count = int(pc.sum(begins).as_py() or 0)
        if 2 * count > filled:
            row = int(pc.index(begins, True).as_py())
            text = str(cells[row])
            yield PYTHON_TEXT.finding(
                f"column {column!r}: {count:,} of {filled:,} texts are lists or objects as Python "
                f"prints them, not JSON: {text[:57]}{'…' * (len(text) > 57)}",
                table.where(row),
                fix=f"{PYTHON_TEXT.fix} If the texts are meant to be as they are: "
                f"{set_option('accept', [PYTHON_TEXT.code])}.",
                column=column,
            )


def _names_speakers(table: Table, column: str) -> bool:
    """Return whether a column has the names of both sides of a conversation, and nothing else."""
    if not has_words(column, SPEAKERS) or not is_text(table.column_type(column)):
        return False
    names = {str(value).strip().lower() for value in table.profile(column).counts or ()}
    known = names <= ASKING | {"agent"}.union(*ROLE_NAMES.values())
    return known and not names.isdisjoint(ASKING) and not names <= ASKING


def _links(table: Table) -> list[str]:
    """Return the columns that join messages: the conversation's, and that of the message before."""
    groups = [n for n in table.columns if has_words(n, GROUPS) and is_identifier(n)]
    parents = [n for n in table.columns if has_words(n, PARENT)]
    return [*groups[:1], *(name for name in parents[:1] if name not in groups[:1])]


def _fix(text: str, speaker: str, links: list[str], task: str) -> str:
    how = f"Write all messages of one {links[0]} as one row" if links else "Write them as one row"
    if links and has_words(links[-1], PARENT):
        how = (
            f"A message may have several replies: follow {links[-1]} from a last answer back to "
            "the first message, and write them as one row"
        )
    return (
        f'{how}: {{"messages": [{{"role": {speaker}, "content": {text}}}, …]}}. To train on single '
        f"messages as text: {task}--set accept=SF146."
    )
