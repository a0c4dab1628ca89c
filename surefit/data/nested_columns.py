"""Columns of objects as columns of their own: translations by language, SQuAD's answers.

Files of JSON lines have their own reader for nested rows; this is for tables of any other origin.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.cache import fingerprint
from surefit.data.column_types import is_object, is_text, is_text_list
from surefit.data.formats.nested_rows import NESTED_ROWS_FLATTENED
from surefit.data.table import Table

_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]{2,4})?")


def spread_columns(table: Table) -> Table:
    """The table, with columns of objects that hold texts as columns of texts."""
    for name in table.columns:
        kind = table.column_type(name)
        if is_object(kind) and _is_translation(kind):
            table = _spread(table, name, _translations(table, name))
        elif name == "answers" and _has_answers(table, kind):
            table = _spread(table, name, _answers(table, name))
    return table


def _is_translation(kind: pa.StructType) -> bool:
    """Whether objects have a text for each of several languages."""
    fields = [kind.field(place) for place in range(kind.num_fields)]
    named = all(_LANGUAGE.fullmatch(field.name) for field in fields)
    return len(fields) > 1 and named and all(is_text(field.type) for field in fields)


def _translations(table: Table, name: str) -> dict[str, pa.ChunkedArray]:
    kind = table.column_type(name)
    languages = [kind.field(place).name for place in range(kind.num_fields)]
    return {f"{name}.{each}": pc.struct_field(table.arrow[name], each) for each in languages}


def _has_answers(table: Table, kind: pa.DataType) -> bool:
    """Whether objects have the texts of the answers to a question, as SQuAD's do."""
    if not is_object(kind) or "question" not in table.columns or "answer" in table.columns:
        return False
    place = kind.get_field_index("text")
    return place >= 0 and is_text_list(kind.field(place).type)


def _answers(table: Table, name: str) -> dict[str, pa.ChunkedArray]:
    """The first answer, and all of them, which are right as well."""
    texts = pc.struct_field(table.arrow[name], "text")
    first = pa.chunked_array([_first(chunk) for chunk in texts.chunks], pa.string())
    return {"answer": first, name: texts, "references": texts}


def _first(lists: pa.ListArray) -> pa.Array:
    """The first text of each list; missing where a list is empty."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    starts = np.cumsum(lengths) - lengths
    places = pa.array(starts, pa.int64(), mask=lengths == 0)
    return lists.flatten().take(places).cast(pa.string())


def _spread(table: Table, name: str, made: dict[str, pa.ChunkedArray]) -> Table:
    place, arrow = table.columns.index(name), table.arrow.drop_columns([name])
    for at, (new, values) in enumerate(made.items()):
        arrow = arrow.add_column(place + at, new, values)
    note = NESTED_ROWS_FLATTENED.finding(
        f"Column {name!r} holds objects; it is read as the columns {', '.join(made)}.",
        file=table.sources[0].file,
        column=name,
    )
    sources = tuple(
        replace(
            source, columns=tuple(c for o in source.columns for c in (made if o == name else [o]))
        )
        for source in table.sources
    )
    key = fingerprint(table.key, "spread", name)
    return replace(table, arrow=arrow, sources=sources, key=key, findings=(*table.findings, note))
