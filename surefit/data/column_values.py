"""What columns are for, by their names and beside each other; their values have Profiles."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from surefit.data.column_types import is_list, is_text
from surefit.data.profile import FIRST_ROWS
from surefit.data.table import Table


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
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

DERIVED = word_set(
    "clean cleaned raw original processed preprocessed normalized lemmatized stemmed tokenized "
    "parse parsed"
)
"""Words in the name of another form of a text: `premise_parse` of `premise`."""

KEYS = word_set("answer answerkey gold correct decision")
"""Words in the name of a column with the key to a question, such as the number of a choice."""

AMOUNTS = word_set("count counts num n length len size date time timestamp url")
"""Words in a name that is no label's, whatever its other words are: `max_stars_count`."""


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
    """Return the words in the name of a column, in lower case.

    >>> words_of("chosen_Response"), words_of("overallScore"), words_of("kto-tag")
    (('chosen', 'response'), ('overall', 'score'), ('kto', 'tag'))
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return tuple(re.findall(r"[^\W_]+", parted.lower()))


def has_words(name: str, words: frozenset[str]) -> bool:
    """Return whether one of the words is in the name of a column."""
    return not words.isdisjoint(words_of(name))


def is_identifier(name: str) -> bool:
    """Return whether a column's name says that its values tell rows apart."""
    return has_words(name, IDENTIFIERS)


def is_metadata(name: str) -> bool:
    """Return whether a column's name says that it describes the row: an id, a source, a date."""
    return has_words(name, METADATA)


def is_good(value: Any) -> bool | None:
    """Return whether a value judges an answer as good or as bad; None if it is no judgement.

    >>> is_good(True), is_good("undesirable"), is_good(0), is_good("sports"), is_good(None)
    (True, False, False, None, None)
    """
    word = "_".join(str(value).lower().split())
    return True if word in GOOD else False if word in BAD else None


def is_derived(table: Table, column: str, others: Sequence[str]) -> bool:
    """Whether a column of texts only repeats other columns: each contains the other's text."""
    rows = table.arrow.select([column, *others]).slice(0, FIRST_ROWS).to_pylist()
    filled = [row for row in rows if isinstance(row[column], str) and row[column].strip()]
    repeated = sum(_repeats(row[column].strip(), [row[name] for name in others]) for row in filled)
    return bool(filled) and repeated >= 0.8 * len(filled)


def adds_text(table: Table, column: str, read: Sequence[str]) -> bool:
    """Return whether a column has prose that the columns which are read do not contain."""
    is_prose = not is_metadata(column) and table.profile(column).is_prose
    return is_prose and not is_derived(table, column, read)


def continues(table: Table, column: str, other: str) -> bool:
    """Whether the texts of a column are those of another one and more: `ctx` beside `ctx_a`."""
    if column == other or not is_text(table.column_type(column)):
        return False
    rows = table.arrow.select([column, other]).slice(0, FIRST_ROWS).to_pylist()
    pairs = [(row[column] or "", row[other] or "") for row in rows]
    begun = [len(whole) - len(part) for whole, part in pairs if whole.startswith(part)]
    return len(begun) >= 0.8 * len(pairs) and any(begun)


def _repeats(text: str, others: Sequence[Any]) -> bool:
    read = [part for other in others for part in texts_in(other)]
    return any(text in part for part in read) or (bool(read) and all(part in text for part in read))


def texts_in(value: Any) -> list[str]:
    """Return every text in a value, however deep."""
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
    """Return whether a column of this type may hold answers: text, messages, or lists of either."""
    if is_list(kind):
        return holds_answers(kind.value_type)
    return is_text(kind) or bool(pa.types.is_struct(kind))


def describes(column: str) -> bool:
    """Return whether a column's name says that it describes the text: a source, a date, a count."""
    return has_words(column, DESCRIPTION)


def is_named_as_label(table: Table, column: str) -> bool:
    """Return whether the words in a column's name call it a label, and its values suit."""
    words = words_of(column)
    if not AMOUNTS.isdisjoint(words):
        return False
    if LABEL_WORDS.isdisjoint(words):
        answers = "answer" in words and pa.types.is_boolean(table.column_type(column))
        judges = words[:1] != () and words[0] in JUDGING
        return answers or (judges and table.profile(column).is_binary)
    return table.profile(column).holds_classes or table.profile(column).is_continuous


def tags_words(table: Table, text: str, column: str) -> bool:
    """Return whether a column has a list with a tag for each word of a text."""
    if not is_list(table.column_type(column)) or not is_text(table.column_type(text)):
        return False
    rows = table.arrow.select([text, column]).slice(0, FIRST_ROWS).to_pylist()
    sizes = [(len((row[text] or "").split()), len(row[column] or ())) for row in rows]
    aligned = sum(words == tags for words, tags in sizes)
    return len({tags for _, tags in sizes}) > 1 and aligned >= 0.9 * len(sizes)


def may_be_label(table: Table, column: str) -> bool:
    """Whether the only column beside a text is its label: classes, under a name that allows it."""
    return not describes(column) and table.profile(column).holds_classes


def likely_targets(table: Table, taken: Collection[str]) -> list[str]:
    """Return columns beside a text that may be what is to be learned of it."""
    free = [name for name in table.columns if name not in taken]
    named = [name for name in free if is_named_as_label(table, name)]
    free = [name for name in free if not describes(name)]
    keys = [n for n in free if has_words(n, KEYS) and table.profile(n).holds_classes]
    alone = [name for name in free if len(free) == 1 and table.profile(name).is_continuous]
    binary = [name for name in free if table.profile(name).is_binary]
    return list(dict.fromkeys([*named, *keys, *alone, *binary]))


def label_columns(table: Table, columns: Sequence[str]) -> list[str]:
    """Return columns of classes or amounts: those named as labels first, then the last, then binary
    ones."""
    named = [name for name in columns if is_named_as_label(table, name)]
    rest = [name for name in reversed(columns) if name not in named and not describes(name)]
    classes = [name for name in rest if table.profile(name).holds_classes]
    amounts = [name for name in rest if table.profile(name).is_continuous]
    last = [name for name in rest[:1] if name in (*classes, *amounts)]
    binary = [name for name in classes if table.profile(name).is_binary]
    return [*dict.fromkeys([*named, *last, *binary, *classes, *amounts])]
