"""Which column plays which role, by name first and by type where only one is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from surefit.batches.field import Field
from surefit.data.dates import ORDERS, read_date
from surefit.data.numbers import read_number
from surefit.data.table import (
    Table,
    array_rank,
    fixed_sizes,
    is_array,
    is_dialogue,
    is_picture,
    is_scalar_number,
    is_text,
    is_text_list,
    is_whole_list,
)
from surefit.encode.images.image_files import ENDINGS

NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "instruction", "question", "query", "input"),
    "answer": ("completion", "answer", "response", "output", "target"),
    "messages": (
        "messages",
        "conversations",
        "conversation",
        "dialogue",
        "dialog",
        "chat",
        "turns",
    ),
    "tools": ("tools",),
    "text": (
        *("text", "sentence", "content", "review", "message", "question", "document", "body"),
        *("sentence1", "premise", "question1", "text1"),
    ),
    "text_pair": ("text_pair", "sentence2", "hypothesis", "question2", "text2"),
    "label": (
        *("label", "labels", "class", "category", "intent", "sentiment", "target", "y"),
        *("score", "rating"),
    ),
    "tokens": ("tokens", "words", "token", "word"),
    "tags": ("tags", "ner_tags", "tag", "labels", "ner", "pos_tags", "pos", "chunk_tags"),
    "features": ("features", "inputs_embeds", "x", "data", "embeddings", "values"),
    "source": ("source", "src", "article", "document"),
    "target": ("target", "tgt", "summary", "highlights"),
    "input": ("input", "context"),
    "image": (
        *("image", "img", "picture", "photo", "images", "pixels", "pixel_values"),
        *("image_path", "file_name", "filename", "file", "path"),
    ),
    "mask": ("mask", "attention_mask"),
    "input_ids": ("input_ids",),
    "labels": ("labels",),
}


def resolve_roles(
    table: Table,
    needs: Sequence[Sequence[str]],
    optional: Sequence[str] = (),
    chosen: Mapping[str, str] | None = None,
) -> dict[str, str] | None:
    """Role to column for the first of the alternative `needs` that the columns meet."""
    for roles in needs:
        found = dict(chosen or {})
        for role in roles:
            if role not in found:
                column = _by_name(table, role, set(found.values()))
                if column is not None:
                    found[role] = column
        for role in roles:
            if role not in found:
                column = _by_type(table, role, set(found.values()))
                if column is not None:
                    found[role] = column
        if all(role in found for role in roles):
            for role in optional:
                column = _by_name(table, role, set(found.values()))
                if role not in found and column is not None:
                    found[role] = column
            return found
    return None


def _by_name(table: Table, role: str, taken: set[str]) -> str | None:
    free = {name.lower(): name for name in reversed(table.columns) if name not in taken}
    return next(
        (free[name] for name in NAMES[role] if name in free and _suits(table, role, free[name])),
        None,
    )


def _by_type(table: Table, role: str, taken: set[str]) -> str | None:
    """The only column left whose type suits the role; None when two would."""
    if role not in ("text", "label", "features", "tags", "image"):
        return None
    free = [n for n in table.columns if n not in taken and _suits(table, role, n, named=False)]
    if role == "label":  # several labels per row go by name only
        free = [name for name in free if not _is_list(table.column_type(name))]
    if len(free) != 1 or (role == "text" and not _is_prose(table, free[0])):
        return None
    return free[0]


def _is_list(kind: pa.DataType) -> bool:
    return is_array(kind) or is_text_list(kind)


def _is_prose(table: Table, column: str) -> bool:
    """Whether a column holds texts, rather than a few repeated values, dates, or image files."""
    values = table.arrow[column].slice(0, 1000).drop_null().to_pylist()
    if not values:
        return True
    if sum(read_number(value) is not None for value in values) > 0.5 * len(values):
        return False  # a column of numbers that a few cells have made text
    if any(all(read_date(value, order) for value in values) for order in ORDERS):
        return False
    if len(values) >= 50 and len(set(values)) < 0.1 * len(values):
        return False
    return not all(value.lower().endswith(ENDINGS) for value in values)


def _suits(table: Table, role: str, column: str, named: bool = True) -> bool:
    kind = table.column_type(column)
    if role in ("text", "text_pair", "source", "target"):
        return is_text(kind)
    if role == "messages":
        return is_dialogue(kind)
    if role == "tokens":
        return is_text_list(kind)
    if role == "tags":
        return is_text_list(kind) or is_whole_list(kind)
    if role == "features":
        return is_array(kind) and (array_rank(kind) <= 2 or 1 in fixed_sizes(kind))
    if role == "image":
        return is_picture(kind, named)
    if role == "label":
        is_list = named and array_rank(kind) == 1  # [2.0], or one-hot, which its fault explains
        held = is_picture(kind, False) or is_dialogue(kind)
        return (not is_array(kind) or is_list) and not held
    return True


def extra_fields(table: Table, taken: set[str]) -> dict[str, Field]:
    """Fields of numeric columns that no role uses, for a module that names them."""
    extras = {}
    for name in table.columns:
        kind = table.column_type(name)
        if name in taken or not (is_array(kind) or is_scalar_number(kind)):
            continue
        rank = array_rank(kind)
        while array_rank(kind):
            kind = kind.value_type
        dtype = "int64" if str(kind).startswith(("int", "uint", "bool")) else "float32"
        extras[name] = Field(tuple(f"{name}.{axis}" for axis in range(rank)), dtype)
    return extras
