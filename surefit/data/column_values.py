"""What the name and the values of a column tell about it, where its type does not decide."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.column_types import IMAGE_ENDINGS, is_list, is_number, is_text
from surefit.data.dates import ORDERS, is_date, read_date
from surefit.data.numbers import read_number
from surefit.data.table import Table


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


IDENTIFIERS = word_set("id ids idx index uid uuid guid hash url uri link href")
"""Words in the name of a column that tells rows apart."""

METADATA = IDENTIFIERS | word_set(
    "key date datetime time timestamp created updated version lang language locale license model "
    "author user username name filename path file count num length len position offset start end"
)
"""Words in the name of a column that describes a row rather than being a part of it."""

SAMPLE = 200
PROSE_WORDS = 3.0
"""Mean number of words from which the values of a column are text to read, rather than names."""

GOOD = word_set(
    "true yes good desirable desired chosen preferred accepted accept approved correct helpful "
    "like liked upvote thumbs_up positive 1 1.0 +1"
)
BAD = word_set(
    "false no bad undesirable undesired rejected dispreferred reject denied incorrect wrong "
    "unhelpful dislike disliked downvote thumbs_down negative 0 0.0 -1"
)
"""Words with which a column judges the answer of its row."""


def words_of(name: str) -> tuple[str, ...]:
    """The words in the name of a column, in lower case.

    >>> words_of("chosen_Response"), words_of("overallScore"), words_of("kto-tag")
    (('chosen', 'response'), ('overall', 'score'), ('kto', 'tag'))
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return tuple(re.findall(r"[^\W_]+", parted.lower()))


def is_identifier(name: str) -> bool:
    """Whether a column's name says that its values tell rows apart."""
    return not IDENTIFIERS.isdisjoint(words_of(name))


def is_metadata(name: str) -> bool:
    """Whether a column's name says that it describes the row: an id, a source, a date."""
    return not METADATA.isdisjoint(words_of(name))


def sample(table: Table, column: str, size: int = SAMPLE) -> list[Any]:
    """Values of a column that are not missing, from the first rows."""
    return [v for v in table.arrow[column].slice(0, size).to_pylist() if v is not None]


def value_counts(table: Table, column: str) -> dict[Any, int]:
    """How often each value of a column of texts or numbers occurs, without missing ones."""
    kind = table.column_type(column)
    if not (is_text(kind) or is_number(kind)):
        return {}
    counted = pc.value_counts(table.arrow[column])
    return {
        pair["values"]: pair["counts"] for pair in counted.to_pylist() if pair["values"] is not None
    }


def varies(table: Table, column: str) -> bool:
    """Whether a column has more than one value; of lists and objects, whether any is not empty."""
    kind = table.column_type(column)
    if is_text(kind) or is_number(kind):
        return bool(pc.count_distinct(table.arrow[column]).as_py() > 1)
    if is_list(kind):
        return bool(pc.max(pc.list_value_length(table.arrow[column])).as_py())
    return bool(table.arrow[column].null_count < table.num_rows)


def is_good(value: Any) -> bool | None:
    """Whether a value judges an answer as good or as bad; None if it is no judgement.

    >>> is_good(True), is_good("undesirable"), is_good(0), is_good("sports"), is_good(None)
    (True, False, False, None, None)
    """
    word = "_".join(str(value).lower().split())
    return True if word in GOOD else False if word in BAD else None


def holds_dates(values: Sequence[str]) -> bool:
    """Whether all texts are dates, written in one order."""
    return any(all(read_date(value, order) for value in values) for order in ORDERS)


def holds_texts(table: Table, column: str) -> bool:
    """Whether a text column holds texts, rather than a few repeated values, dates, or files."""
    values = sample(table, column, 1000)
    if not values:
        return True
    if sum(read_number(value) is not None for value in values) > 0.5 * len(values):
        return False  # numbers, turned into text by a few cells
    if sum(is_date(value.strip()) for value in values) > 0.5 * len(values):
        return False
    if len(values) >= 50 and len(set(values)) < 0.1 * len(values):
        return False
    return not all(value.lower().endswith(IMAGE_ENDINGS) for value in values)


def is_prose(table: Table, column: str) -> bool:
    """Whether a column holds texts of several words that differ from row to row."""
    if not is_text(table.column_type(column)) or not holds_texts(table, column):
        return False
    values = [value.strip() for value in sample(table, column) if value.strip()]
    if len({*values}) < 0.5 * len(values) or not values:
        return False
    if sum(" " not in value and "/" in value for value in values) > 0.5 * len(values):
        return False  # addresses and paths
    words = sum(len(value.split()) for value in values)
    return words >= PROSE_WORDS * len(values) or not _has_words(values)


def _has_words(values: Sequence[str]) -> bool:
    """Whether texts have spaces between words, as those of some scripts have not."""
    letters = "".join(values)
    return letters.isascii() or " " in letters


def is_derived(table: Table, column: str, others: Sequence[str]) -> bool:
    """Whether a column of texts only repeats other columns: each contains the other's text."""
    rows = table.arrow.select([column, *others]).slice(0, SAMPLE).to_pylist()
    filled = [row for row in rows if isinstance(row[column], str) and row[column].strip()]
    repeated = sum(_repeats(row[column].strip(), [row[name] for name in others]) for row in filled)
    return bool(filled) and repeated >= 0.8 * len(filled)


def continues(table: Table, column: str, other: str) -> bool:
    """Whether the texts of a column are those of another one and more: `ctx` beside `ctx_a`."""
    if column == other or not is_text(table.column_type(column)):
        return False
    rows = table.arrow.select([column, other]).slice(0, SAMPLE).to_pylist()
    pairs = [(row[column] or "", row[other] or "") for row in rows]
    begun = [len(whole) - len(part) for whole, part in pairs if whole.startswith(part)]
    return len(begun) >= 0.8 * len(pairs) and any(begun)


def _repeats(text: str, others: Sequence[Any]) -> bool:
    read = [part for other in others for part in texts_in(other)]
    return any(text in part for part in read) or (bool(read) and all(part in text for part in read))


def texts_in(value: Any) -> list[str]:
    """Every text in a value, however deep."""
    if isinstance(value, str):
        return [value.strip()] if value.strip() else []
    if isinstance(value, Mapping):
        return [
            text
            for name, inner in value.items()
            if name not in ("role", "from")
            for text in texts_in(inner)
        ]
    if isinstance(value, list | tuple):
        return [text for inner in value for text in texts_in(inner)]
    return []


def holds_answers(kind: pa.DataType) -> bool:
    """Whether a column of this type may hold answers: text, messages, or lists of either."""
    if is_list(kind):
        return holds_answers(kind.value_type)
    return is_text(kind) or bool(pa.types.is_struct(kind))
