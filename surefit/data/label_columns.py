"""Which columns may hold the label of their row, judged by their names and their values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import joint_parts
from surefit.data.cache import fingerprint
from surefit.data.column_types import describe_type, is_list, is_number, is_text
from surefit.data.column_values import METADATA, holds_dates, word_set, words_of
from surefit.data.data_rules import WRONG_TYPE
from surefit.data.numbers import read_number
from surefit.data.table import Table

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
    return not is_text(kind) or not _is_described(values.unique().to_pylist())


def _is_described(names: list[str]) -> bool:
    """Whether texts are dates or JSON, which are no names of classes."""
    return holds_dates(names) or all(name.lstrip().startswith("{") for name in names)


def is_binary(table: Table, column: str) -> bool:
    """Whether a column holds true and false, or 0 and 1, and both occur."""
    kind = table.column_type(column)
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind)):
        return False
    found = {*pc.unique(table.arrow[column].slice(0, SAMPLE_ROWS)).drop_null().to_pylist()}
    return found == {0, 1}


def describes(column: str) -> bool:
    """Whether a column's name says that it describes the text: a source, a date, a count."""
    return not DESCRIPTION.isdisjoint(words_of(column))


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
    keys = [n for n in free if not KEYS.isdisjoint(words_of(n)) and holds_classes(table, n)]
    alone = [name for name in free if len(free) == 1 and is_continuous(table, name)]
    binary = [name for name in free if is_binary(table, name)]
    return list(dict.fromkeys([*named, *keys, *alone, *binary]))


def join_columns(table: Table, names: Iterable[str]) -> Table:
    """The table with a list of numbers for each name that stands for several of its columns.

    A table without any of them, such as one to predict for, stays as it is.
    """
    for name in names:
        parts = joint_parts(name)
        if name in table.columns or not any(part in table.columns for part in parts):
            continue
        for part in parts:
            table.require_column("columns.label", part)
            _require_numbers(table, part)
        table = _joined(table, name, parts)
    return table


def target_columns(table: Table, label: str) -> Iterator[tuple[Table, str]]:
    """Each target as a column of its own: the label's, or one for each number of its lists."""
    values = table.arrow[label]
    if not is_list(values.type):
        yield table, label
        return
    sizes = pc.min_max(pc.list_value_length(values)).as_py()
    if sizes["min"] != sizes["max"] or not is_number(values.type.value_type):
        return
    names = joint_parts(label) or [f"{label}[{place}]" for place in range(sizes["max"] or 0)]
    for place, name in enumerate(names):
        one = pa.table({name: pc.list_element(values, place)})
        yield replace(table, arrow=one), name


def _require_numbers(table: Table, column: str) -> None:
    kind = table.column_type(column)
    if is_number(kind):
        return
    row = _first_that_is_no_number(table, column) if is_text(kind) else None
    place = {} if row is None else table.where(row)
    cell = "" if row is None else f": {str(table.arrow[column][row])[:40]!r} in row {place['row']}"
    raise WRONG_TYPE.error(
        f"column {column!r} is one of several targets and holds {describe_type(kind)}{cell}; "
        "expected numbers.",
        {**place, "column": column},
        fix="Correct the value, name columns of numbers, or a single column.",
    )


def _first_that_is_no_number(table: Table, column: str) -> int | None:
    """The first row that made the column text."""
    cells = (cell.as_py() for cell in table.arrow[column])
    odd = (row for row, text in enumerate(cells) if text and read_number(text) is None)
    return next(odd, None)


def _joined(table: Table, name: str, parts: Sequence[str]) -> Table:
    chunks = [_lists(batch) for batch in table.arrow.select(list(parts)).to_batches()]
    arrow = table.arrow.drop_columns(list(parts))
    arrow = arrow.append_column(name, pa.chunked_array(chunks))
    sources = tuple(
        replace(source, columns=(*(c for c in source.columns if c not in parts), name))
        for source in table.sources
    )
    key = fingerprint(table.key, "joint", name)
    return replace(table, arrow=arrow, sources=sources, key=key)


def _lists(batch: pa.RecordBatch) -> pa.Array:
    """A list of the values of each row; none where one of them is missing."""
    whole = not any(pa.types.is_floating(field.type) for field in batch.schema)
    kind: Any = pa.int64() if whole else pa.float64()
    columns = [pc.fill_null(column.cast(kind), 0).to_numpy(False) for column in batch.columns]
    missing = np.any([column.is_null().to_numpy(False) for column in batch.columns], axis=0)
    ends = np.arange(len(batch) + 1, dtype=np.int32) * len(columns)
    values = pa.array(np.stack(columns, axis=1).ravel(), kind)
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=pa.array(missing))
