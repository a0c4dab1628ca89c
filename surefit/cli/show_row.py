"""One row as the model sees it, with what is learned, special and cut: colours, or brackets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

STYLES = {
    "prompt": "",
    "learned": "bold green",
    "special": "cyan",
    "learned special": "bold black on green",
    "truncated": "strike red",
}
BRACKETS = {
    "prompt": "{}",
    "learned": "⟦{}⟧",
    "special": "‹{}›",
    "learned special": "⟦‹{}›⟧",
    "truncated": "⟨cut: {}⟩",
}


def show_tokens(shown: Mapping[str, Any], console: Console) -> None:
    """The row's figures, a legend, and its text in parts of one kind."""
    tokens: Sequence[Mapping[str, Any]] = shown["tokens"]
    count = {kind: sum(token["kind"] == kind for token in tokens) for kind in ("learned", "prompt")}
    special = sum(token["special"] for token in tokens)
    cut = sum(token["kind"] == "truncated" for token in tokens)
    side = f", {shown['side']} side" if shown["side"] else ""
    console.print(
        Text(
            f"row {shown['row']}{side}: {len(tokens) - cut} tokens ({count['prompt']} prompt, "
            f"{count['learned']} learned; {special} of them special), {cut} truncated"
        )
    )
    legend = Text("legend: ")
    for kind in STYLES:
        legend.append(_written(kind, kind, console)).append(" ")
    console.print(legend, "")
    text = Text()
    for part in shown["parts"]:
        text.append(_written(part["kind"], part["text"], console))
    console.print(text)


def show_values(shown: Mapping[str, Any], console: Console) -> None:
    """A row without tokens, or one that is dropped: name and value, line by line."""
    for name, value in shown.items():
        console.print(Text(f"{name}: {value}"))


def _written(kind: str, text: str, console: Console) -> Text:
    if console.is_terminal:
        return Text(text, style=STYLES[kind])
    return Text(BRACKETS[kind].format(text))
