"""Chats that were rendered as one text, by a chat template or as a transcript: one table of Styles.

To add a style, add a row: the pattern of the marks that begin a message.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from surefit.config import set_option
from surefit.data.table import Table
from surefit.findings import Finding, rule

RENDERED_CHATS = rule(
    "SF148",
    "warning",
    "chats that were rendered as text",
    why=(
        "All of the text is trained on, the prompts as well as the answers, and the marks of the "
        "template are plain text to a tokenizer that does not have them."
    ),
    fix="Read them as messages: --task sft --set columns.messages=COLUMN.",
    accept="The rendered texts are trained on as they are.",
)


@dataclass(frozen=True)
class Style:
    """How a template or a transcript marks its messages."""

    name: str
    marks: re.Pattern[str]
    """What begins a message; its group names the speaker."""
    may_follow: bool = True
    """Whether other text may stand before the first mark."""


STYLES = (
    Style("ChatML", re.compile(r"<\|im_start\|>(\w+)\n")),
    Style("Llama 3", re.compile(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>")),
    Style("Llama 2", re.compile(r"(\[/?INST\]|<</?SYS>>)")),
    Style("Gemma", re.compile(r"<start_of_turn>(\w+)\n")),
    Style("Zephyr", re.compile(r"<\|(system|user|assistant)\|>")),
    Style("Alpaca", re.compile(r"^### ?(Instruction|Input|Human|Response|Assistant):", re.M)),
    Style(
        "a transcript",
        re.compile(r"^ *(Human|Assistant|User|USER|ASSISTANT|AI|Bot|System): ?", re.M),
        may_follow=False,
    ),
)
ROLE_NAMES = {
    "system": ("system", "developer"),
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "model", "bot", "chatgpt"),
    "tool": (
        *("tool", "function", "observation", "function_response", "tool_response", "tool_result"),
        *("function_result", "ipython"),
    ),
}
"""A role of messages, and its names in the data."""
SPEAKERS = {
    **{name: role for role, names in ROLE_NAMES.items() for name in names},
    **dict.fromkeys(("instruction", "input", "[inst]", "<</sys>>"), "user"),
    "response": "assistant",
    "ai": "assistant",
    "[/inst]": "assistant",
    "<<sys>>": "system",
}
"""The role of a speaker, by the group of a mark in lower case."""
ENDS = re.compile(
    r"<\|(?:im_end|eot_id|end|endoftext|begin_of_text|end_of_text)\|>|</?s>|<end_of_turn>|<[be]os>"
)
"""Marks behind a message, or around the whole text."""


def read_rendered(text: str) -> list[dict[str, str]] | None:
    r"""Return the messages of a rendered chat; None if the text is none.

    >>> read_rendered("\n\nHuman: Hi\n\nAssistant: Hello")
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}]
    """
    found = _read(text)
    return None if found is None else found[1]


def check_rendered(
    table: Table, roles: Mapping[str, str], chosen: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the column of texts read alone that are mostly chats, unless the user names it."""
    column = roles.get("text", "")
    if column not in table.columns or "text" in chosen or "label" in roles:
        return
    texts, styles = _styles(table, column)
    count = styles.total()
    if 2 * count > len(texts):
        as_messages = f"--task sft {set_option('columns.messages', column)}"
        yield RENDERED_CHATS.finding(
            f"column {column!r}: {count} of the first {len(texts)} texts are chats as "
            f"{styles.most_common(1)[0][0]} writes them, and would be trained on as plain text.",
            fix=f"Train on their answers, in the template of the model: {as_messages}. To train on "
            f"the texts as they are: {set_option('accept', [RENDERED_CHATS.code])}.",
            file=table.sources[0].file,
            column=column,
        )


def are_rendered(table: Table, column: str) -> bool:
    """Return whether most texts of a column are chats, whose marks are read or reported as such."""
    texts, styles = _styles(table, column)
    return 2 * styles.total() > len(texts)


def _styles(table: Table, column: str) -> tuple[list[str], Counter[str]]:
    """Return the first texts of a column, and how many are chats of each style."""
    texts = [text for text in table.profile(column).first if isinstance(text, str) and text.strip()]
    return texts, Counter(found[0].name for found in map(_read, texts) if found is not None)


def _read(text: str) -> tuple[Style, list[dict[str, str]]] | None:
    for style in STYLES:
        before, *parts = style.marks.split(text)
        if not parts or (before.strip() and not style.may_follow):
            continue
        turns: list[dict[str, str]] = []
        for mark, content in zip(parts[::2], parts[1::2], strict=True):
            said, role = ENDS.sub("", content).strip(), SPEAKERS.get(mark.lower(), mark)
            if turns and turns[-1]["role"] == role == "user":  # an instruction and its input
                turns[-1]["content"] += f"\n{said}"
            elif said:
                turns.append({"role": role, "content": said})
        roles = [turn["role"] for turn in turns if turn["role"] != "system"]
        if roles[:1] == ["user"] and "assistant" in roles:
            return style, turns
    return None
