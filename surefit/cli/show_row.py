"""One row as the model sees it; colours or brackets mark labelled, special and cut tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from surefit.cli.guarded_console import as_line
from surefit.encode.drop_reasons import describe_rows
from surefit.printable import printable

STYLES = {
    "prompt": "",
    "learned": "bold green",
    "special": "cyan",
    "learned special": "bold black on green",
    "truncated": "strike red",
    "block": "bold magenta",
}
BRACKETS = {
    "prompt": "{}",
    "learned": "⟦{}⟧",
    "special": "‹{}›",
    "learned special": "⟦‹{}›⟧",
    "truncated": "⟨cut: {}⟩",
    "block": "⟨block {}⟩",
}
WORDS = {
    "prompt": "not labelled",
    "learned": "labelled",
    "special": "special",
    "learned special": "labelled special",
    "truncated": "truncated",
}
SETS = {"training": "training set", "evaluation": "validation set"}


def show_tokens(shown: Mapping[str, Any], console: Console) -> None:
    """The number of tokens, a legend, and the text in parts of one kind."""
    side = f", {SETS[shown['side']]}" if shown["side"] else ""
    side += f", {len(shown['blocks'])} blocks" if "blocks" in shown else ""
    label = f"; class {shown['class']!r}" if "class" in shown else ""
    console.print(as_line(f"row {shown['row']}{side}: {_count_tokens(shown['tokens'])}{label}"))
    legend = Text("legend: ")
    for kind in WORDS:
        legend.append(_written(kind, WORDS[kind], console)).append(" ")
    console.print(legend, "")
    text = Text()
    for part in shown["parts"]:
        text.append(_written(part["kind"], part["text"], console))
    console.print(text)


def _count_tokens(tokens: Sequence[Mapping[str, Any]]) -> str:
    """How many tokens are labelled, special and truncated."""
    cut = sum(token["kind"] == "truncated" for token in tokens)
    special = sum(token["special"] for token in tokens)
    counts = [f"{special} special"]
    if any(token["learned"] is not None for token in tokens):  # else the row has the label
        counts.insert(0, f"{sum(token['kind'] == 'learned' for token in tokens)} labelled")
    return f"{len(tokens) - cut} tokens ({', '.join(counts)}), {cut} truncated"


def show_dropped(shown: Mapping[str, Any], console: Console) -> None:
    """Why a row is dropped."""
    why = f" ({shown['why']})" if "why" in shown else ""
    console.print(as_line(f"dropped: {describe_rows(shown['dropped'], [shown['row']])}{why}"))


def show_values(shown: Mapping[str, Any], console: Console) -> None:
    """A row without tokens: name and value, line by line."""
    for name, value in shown.items():
        inner = value.items() if isinstance(value, Mapping) else [(None, value)]
        for part, each in inner:
            console.print(as_line(f"{name}, {part}: {each}" if part else f"{name}: {each}"))


def _written(kind: str, text: str, console: Console) -> Text:
    written = text if console.is_terminal and kind != "block" else BRACKETS[kind].format(text)
    return Text(printable(written), style=STYLES[kind] if console.is_terminal else "")
