"""Places in a text that are marked with a label, as annotation tools export them, to tagged words.

`{"text": "Ann saw Rome", "entities": [{"start": 0, "end": 3, "label": "PER"}, …]}` becomes the
columns `tokens` and `tags` (B-PER, O, …).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from surefit.data.column_types import fields_of, is_dialogue, is_text
from surefit.data.column_values import has_words, word_set
from surefit.data.profile import FIRST_ROWS
from surefit.data.roles import get_role
from surefit.data.table import Table

WORD = re.compile(r"\w+|[^\w\s]")
STARTS = word_set("start begin from offset")
ENDS = word_set("end stop to")
NAMES = word_set("label labels type tag entity class category name group")
TAGGED = ("tokens", "tags")


class Span(NamedTuple):
    """The names of what a marked place has."""

    start: str
    end: str
    label: str


def words_of_text(text: str) -> list[str]:
    """Return the words and signs of a text.

    >>> words_of_text("Ann's dog!")
    ['Ann', "'", 's', 'dog', '!']
    """
    return WORD.findall(text)


def find_spans(table: Table, column: str) -> tuple[str, Span] | None:
    """Return the text column that a column marks places in, and what names them; None for none."""
    kind = table.column_type(column)
    if not is_dialogue(kind) or not {*TAGGED}.isdisjoint(table.columns):
        return None
    fields = fields_of(kind.value_type)
    whole = [name for name, each in fields.items() if pa.types.is_integer(each)]
    end = next((name for name in whole if has_words(name, ENDS)), None)
    start = next((name for name in whole if name != end and has_words(name, STARTS)), None)
    label = next((n for n, each in fields.items() if is_text(each) and has_words(n, NAMES)), None)
    texts = [name for name in table.columns if is_text(table.column_type(name))]
    named = [name for name in texts if name.lower() in get_role("text").names]
    text = (named or texts if len(named or texts) == 1 else [None])[0]
    if start is None or end is None or label is None or text is None:
        return None
    span = Span(start, end, label)
    rows = table.arrow.select([text, column]).slice(0, FIRST_ROWS).to_pylist()
    marks = [
        (mark[start], mark[end], len(row[text] or "")) for row in rows for mark in row[column] or ()
    ]
    inside = sum(None not in mark and 0 <= mark[0] < mark[1] <= mark[2] for mark in marks)
    return (text, span) if marks and inside >= 0.9 * len(marks) else None


def tagged_words(
    text: str | None, marks: Sequence[Mapping[str, Any]] | None, span: Span
) -> tuple[list[str], list[str], int]:
    """Return the words of a text, their tags, and how many marks fit no whole words.

    >>> tagged_words("Ann saw Rome.", [{"s": 8, "e": 12, "l": "LOC"}], Span("s", "e", "l"))
    (['Ann', 'saw', 'Rome', '.'], ['O', 'O', 'B-LOC', 'O'], 0)
    """
    places = [match.span() for match in WORD.finditer(text or "")]
    tags, odd = ["O"] * len(places), 0
    for mark in sorted(
        marks or (), key=lambda mark: (mark[span.start] or 0, -(mark[span.end] or 0))
    ):
        start, end, label = (mark[name] for name in span)
        inside = [
            at
            for at, (a, b) in enumerate(places)
            if None not in mark.values() and a < end and b > start
        ]
        free = bool(inside) and all(tags[at] == "O" for at in inside)
        whole = free and places[inside[0]][0] >= start and places[inside[-1]][1] <= end
        odd += not whole
        for at in inside if free else ():
            tags[at] = f"{'B' if at == inside[0] else 'I'}-{label}"
    return [text[a:b] for a, b in places] if text else [], tags, odd


def tag_words(table: Table, column: str, text: str, span: Span) -> tuple[dict[str, Any], str]:
    """Return the columns of words and tags, and what is to be said of marks that fit no words."""
    tokens, tags, odd, count = [], [], 0, 0
    for batch in table.arrow.select([text, column]).to_batches():
        rows = batch.to_pylist()
        made = [tagged_words(row[text], row[column], span) for row in rows]
        tokens.append(pa.array([each[0] for each in made], pa.list_(pa.string())))
        tags.append(pa.array([each[1] for each in made], pa.list_(pa.string())))
        odd += sum(each[2] for each in made)
        count += sum(len(row[column] or ()) for row in rows)
    kind = pa.list_(pa.string())
    arrays = {"tokens": pa.chunked_array(tokens, kind), "tags": pa.chunked_array(tags, kind)}
    cut = f" {odd} of {count} marks overlap others or do not begin and end with a word."
    return arrays, f" Words are parted at spaces and punctuation.{cut if odd else ''}"
