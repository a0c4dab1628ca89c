"""What the name and the values of a column tell about it, where its type does not decide."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.column_types import IMAGE_ENDINGS, is_list, is_number, is_text
from surefit.data.table import Table
from surefit.data.written_values import are_dates, is_date, read_number


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

LABEL_WORDS = word_set(
    "label labels class classes category categories sentiment intent target tag tags topic topics "
    "genre genres emotion emotions polarity stars toxicity verdict"
)
"""Words in the name of a column of labels."""
JUDGING = frozenset({"is", "has"})
"""Words with which the name of a column of true and false begins: `is_duplicate`."""
DESCRIPTION = METADATA | word_set(
    "source sources origin dataset corpus domain dump subset split meta metadata info title titles "
    "headline tokens words chars characters bytes lines size n nsfw"
)
"""Words in the name of a column that describes a text rather than being learned from it."""

KEYS = word_set("answer answerkey gold correct decision")
"""Words in the name of a column with the key to a question, such as the number of a choice."""

AMOUNTS = word_set("count counts num n length len size date time timestamp url")
"""Words in a name that is no label's, whatever its other words are: `max_stars_count`."""

MAX_SHARE_OF_CLASSES = 0.5
"""More classes than this share of the rows means that the column is no class label."""
MOST_CLASSES = 0.2
"""Share of the rows; more different numbers than that are amounts."""
ODD_SHARE = 0.1
"""Fractions in more of the rows than this are no faults."""
FEW_ROWS = 10
"""Up to so many rows, values need not repeat to be classes."""
SAMPLE_ROWS = 10_000

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


def has_words(name: str, words: frozenset[str]) -> bool:
    """Whether one of the words is in the name of a column."""
    return not words.isdisjoint(words_of(name))


def is_identifier(name: str) -> bool:
    """Whether a column's name says that its values tell rows apart."""
    return has_words(name, IDENTIFIERS)


def is_metadata(name: str) -> bool:
    """Whether a column's name says that it describes the row: an id, a source, a date."""
    return has_words(name, METADATA)


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
    letters = "".join(values)  # some scripts have no spaces between words
    is_spaced = letters.isascii() or " " in letters
    return words >= PROSE_WORDS * len(values) or not is_spaced


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


def is_continuous(table: Table, column: str) -> bool:
    """Whether a column's numbers are amounts: fractions, or many different whole numbers."""
    values = row_values(table, column)
    kind = values.type
    if not is_number(kind) or pa.types.is_boolean(kind):
        return False
    values = values.drop_null()
    if pa.types.is_floating(kind):
        sample = np.asarray(values.slice(0, SAMPLE_ROWS))
        if (sample[np.isfinite(sample)] % 1 != 0).any():
            return True
    distinct = pc.count_distinct(values).as_py()
    return bool(distinct > 256 or (distinct > 20 and distinct > 0.2 * len(values)))


def holds_amounts(table: Table, column: str, whole: bool = True) -> bool:
    """Whether a label's numbers are amounts, where a few odd values among classes are faults.

    `whole` is whether many different integers are amounts, too, rather than classes.
    """
    values = row_values(table, column)
    if not is_continuous(table, column):
        return False
    many = pc.count_distinct(values).as_py() > MOST_CLASSES * table.num_rows
    if not pa.types.is_floating(values.type):
        return whole and bool(many)
    sample = np.asarray(values.drop_null().slice(0, SAMPLE_ROWS))
    return bool(many or (sample % 1 != 0).mean() > ODD_SHARE)


def row_values(table: Table, column: str) -> Any:
    """The values of a column; of lists of numbers of one size, as an array [N, K], the numbers."""
    values = table.arrow[column]
    if not is_list(values.type) or not is_number(values.type.value_type):
        return values
    sizes = pc.min_max(pc.list_value_length(values)).as_py()
    return pc.list_flatten(values) if sizes["min"] == sizes["max"] else values


def holds_classes(table: Table, column: str) -> bool:
    """Whether a column holds classes: a few values that repeat, or lists of such values."""
    kind = table.column_type(column)
    values: Any = table.arrow[column].slice(0, SAMPLE_ROWS).combine_chunks()
    while is_list(kind):
        kind, values = kind.value_type, values.flatten()
    values = values.drop_null()
    if not (is_text(kind) or is_number(kind)) or is_continuous(table, column):
        return False
    distinct = int(pc.count_distinct(values).as_py())
    if len(values) <= FEW_ROWS:
        return True
    if distinct < 2 or distinct > MAX_SHARE_OF_CLASSES * len(values):
        return False
    if not is_text(kind):
        return True
    names = values.unique().to_pylist()  # which are neither dates nor JSON
    return not are_dates(names) and not all(name.lstrip().startswith("{") for name in names)


def is_binary(table: Table, column: str) -> bool:
    """Whether a column holds true and false, or 0 and 1, and both occur."""
    kind = table.column_type(column)
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind)):
        return False
    found = {*pc.unique(table.arrow[column].slice(0, SAMPLE_ROWS)).drop_null().to_pylist()}
    return found == {0, 1}


def describes(column: str) -> bool:
    """Whether a column's name says that it describes the text: a source, a date, a count."""
    return has_words(column, DESCRIPTION)


def is_named_as_label(table: Table, column: str) -> bool:
    """Whether the words in a column's name call it a label, and its values suit."""
    words = words_of(column)
    if not AMOUNTS.isdisjoint(words):
        return False
    if LABEL_WORDS.isdisjoint(words):
        answers = "answer" in words and pa.types.is_boolean(table.column_type(column))
        return answers or (words[:1] != () and words[0] in JUDGING and is_binary(table, column))
    return holds_classes(table, column) or is_continuous(table, column)


def tags_words(table: Table, text: str, column: str) -> bool:
    """Whether a column has a list with a tag for each word of a text."""
    if not is_list(table.column_type(column)) or not is_text(table.column_type(text)):
        return False
    rows = table.arrow.select([text, column]).slice(0, 200).to_pylist()
    sizes = [(len((row[text] or "").split()), len(row[column] or ())) for row in rows]
    aligned = sum(words == tags for words, tags in sizes)
    return len({tags for _, tags in sizes}) > 1 and aligned >= 0.9 * len(sizes)


def may_be_label(table: Table, column: str) -> bool:
    """Whether the only column beside a text is its label: classes, under a name that allows it."""
    return not describes(column) and holds_classes(table, column)


def likely_targets(table: Table, taken: Collection[str]) -> list[str]:
    """Columns beside a text that may be what is to be learned of it."""
    free = [name for name in table.columns if name not in taken]
    named = [name for name in free if is_named_as_label(table, name)]
    free = [name for name in free if not describes(name)]
    keys = [n for n in free if has_words(n, KEYS) and holds_classes(table, n)]
    alone = [name for name in free if len(free) == 1 and is_continuous(table, name)]
    binary = [name for name in free if is_binary(table, name)]
    return list(dict.fromkeys([*named, *keys, *alone, *binary]))
