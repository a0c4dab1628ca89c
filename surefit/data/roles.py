"""Roles: what a column is used for. The table of roles, and how columns are matched to them.

A column is recognised by its name first, then by the words in its name, then by its type and values
if only one column is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa

from surefit.batches.field import Field
from surefit.data.cell_files import AUDIO, FILE_ROLES, IMAGES, FileKind, kind_named
from surefit.data.column_types import (
    array_rank,
    is_array,
    is_dialogue,
    is_integer_list,
    is_list,
    is_number,
    is_object,
    is_text,
    is_text_list,
    list_axes,
    may_hold_audio,
    may_hold_images,
)
from surefit.data.column_values import (
    DERIVED,
    adds_text,
    has_words,
    is_identifier,
    is_metadata,
    is_named_as_label,
    may_be_label,
    tags_words,
    word_set,
)
from surefit.data.stored_messages import are_dialogues
from surefit.data.table import Table

LOOKED_AT = 50
"""How many values of a column are looked at, where its type does not tell its role."""
NOT_A_PAIR = DERIVED | word_set(
    "explanation explanations rationale reasoning reason thought thoughts thinking solution hint "
    "evidence selected"
)
"""Words in the name of a text that explains the label, or repeats the other text."""
PATHS = ("file_name", "filename", "file", "path")
"""Names of columns with paths of files."""
MAY_BE_MISSING = 0.1
"""The share of rows that may lack the second text of a pair."""
Accepts = Callable[[pa.DataType, bool], bool]
"""Whether a column of this type can have the role; the second argument is whether its name fits."""


def _is_features(kind: pa.DataType, named: bool) -> bool:
    return is_array(kind) and (array_rank(kind) <= 2 or 1 in list_axes(kind)[0])


def _is_label(kind: pa.DataType, named: bool) -> bool:
    is_list = named and array_rank(kind) == 1  # [2.0], or one-hot, which gets its own error
    held = may_hold_images(kind, False) or is_dialogue(kind)
    types = pa.types
    by_name = types.is_nested(kind) or types.is_temporal(kind) or types.is_null(kind)  # no classes
    return (named or not by_name) and (not is_array(kind) or is_list) and not held


def _text(kind: pa.DataType, named: bool) -> bool:
    return is_text(kind)


@dataclass(frozen=True)
class Role:
    """What a column is used for.

    A task names its roles in `needs` and `optional`; one that is not in the table below is
    recognised by its own name and accepts every type, unless the task brings a Role for it.
    """

    name: str
    column_names: tuple[str, ...] = ()
    """Column names that have the role, the likeliest first; the role's own name if empty."""
    accepts: Accepts = lambda kind, named: True
    endings: tuple[str, ...] = ()
    """Endings of its names that say how the values are written: columns with different ones do not
    mean the same."""
    may_be_missing: bool = False
    """Whether rows for evaluation or prediction may lack it although training rows had it."""
    by_words: Callable[[Unmatched, Role], str | None] | None = None
    """Finds its column by words in the name, where no column has one of the names."""
    by_type: bool = False
    """Whether a column that is left gets the role by its type, whatever its name: the only one, or
    that which `pick` chooses."""
    pick: Callable[[Unmatched, Sequence[str]], str | None] = lambda left, columns: _only(columns)
    """Of the columns left whose type suits, the one that has the role."""
    batch_column: str | None = None
    """The name of the column in a batch, if it differs."""
    holds: Callable[[Sequence[Any]], bool] | None = None
    """Whether the first values of a column suit the role, where its type does not tell."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names a column is recognised by."""
        return self.column_names or (self.name,)


@dataclass(frozen=True)
class Unmatched:
    """The columns that have no role yet, of a table that is matched to one form of a task."""

    table: Table
    found: Mapping[str, str]
    """Columns that have a role."""
    needed: frozenset[str]
    optional: frozenset[str]
    inferred: bool
    tables: bool
    """Whether the model may read rows of numbers, of which a text may be one column."""

    @property
    def columns(self) -> list[str]:
        """Those without a role."""
        return [name for name in self.table.columns if name not in self.found.values()]

    def by_name(self, role: Role) -> str | None:
        """Return the first column with a name of the role whose type and values suit."""
        free = {name.lower(): name for name in reversed(self.columns)}
        read = {name.lower() for name in self.table.contents}
        names = [name for name in role.names if name not in PATHS or name not in read]
        for name in (free[name] for name in names if name in free):
            first = self.table.arrow[name].slice(0, LOOKED_AT)
            if not role.accepts(first.type, True):
                continue
            if role.holds is None or role.holds(first.to_pylist()):
                return name
        return None

    def by_words(self, role: Role) -> str | None:
        """Return the column that has the role by words in its name."""
        return role.by_words(self, role) if role.by_words is not None else None

    def by_type(self, role: Role) -> str | None:
        """Return the column that has the role by its type."""
        kinds = {name: self.table.column_type(name) for name in self.columns}
        suited = [name for name, kind in kinds.items() if role.accepts(kind, False)]
        return role.pick(self, suited) if role.by_type else None


def _only(columns: Sequence[str]) -> str | None:
    return columns[0] if len(columns) == 1 else None


def _only_named_label(left: Unmatched, role: Role) -> str | None:
    """Return the only column beside an input with the words of labels in its name."""
    if left.needed.isdisjoint(("text", *FILE_ROLES)):
        return None
    table, text = left.table, left.found.get("text")
    return _only(
        [
            name
            for name in left.columns
            if role.accepts(table.column_type(name), True)
            and is_named_as_label(table, name)
            and not (text is not None and tags_words(table, text, name))
        ]
    )


def _pick_label(left: Unmatched, columns: Sequence[str]) -> str | None:
    """Return the only column; beside a text, an inferred one must look like a label."""
    only = _only(columns)
    if only is None or is_identifier(only):
        return None
    beside_text = left.inferred and "text" in left.needed
    return only if not beside_text or may_be_label(left.table, only) else None


def _pick_text(left: Unmatched, columns: Sequence[str]) -> str | None:
    """Return the only column of texts; of several, the only one of prose, or a pair's first."""
    table = left.table
    # the content of files is text, whatever the column that names them is called
    own = [name for name in columns if name in table.contents or not is_metadata(name)]
    files = {name for role in FILE_ROLES for name in get_role(role).names}
    own = [name for name in own if name in table.contents or name.lower() not in files]
    if len(columns) == 1:
        may_be = own or not left.inferred
        return columns[0] if may_be and table.profile(columns[0]).holds_texts else None
    prose = [name for name in own if table.profile(name).is_prose]
    if len(prose) == 2 and "label" in left.found and "text_pair" in left.optional:
        return prose[0]
    if len(prose) != 1 or "label" not in left.needed:
        return None
    others = [name for name in left.columns if not is_identifier(name)]
    is_table = any(is_number(table.column_type(name)) for name in others)
    return None if is_table and left.inferred and left.tables else prose[0]


def _pick_files(kind: FileKind) -> Callable[[Unmatched, Sequence[str]], str | None]:
    """Return the `pick` of a role that files have, whose paths will do where there is no prose."""

    def pick(left: Unmatched, columns: Sequence[str]) -> str | None:
        if columns or any(left.table.profile(name).is_prose for name in left.columns):
            return _only(columns)
        named = (n for n in left.columns if kind_named(left.table, n, kind.__eq__) is not None)
        return _only([*named])

    return pick


def _with_pair(left: Unmatched) -> dict[str, str]:
    """Return the roles, with the only further text beside a text and its label as its pair."""
    found, table = dict(left.found), left.table
    if not {"text", "label"} <= {*found} or "text_pair" not in left.optional - {*found}:
        return found
    read = [name for name in found.values() if is_text(table.column_type(name))]
    further = [
        name
        for name in left.columns
        if not has_words(name, NOT_A_PAIR)
        # not the text of rows or files in another form
        and table.arrow[name].null_count <= MAY_BE_MISSING * table.num_rows
        and adds_text(table, name, read)
    ]
    if len(further) != 1:
        return found
    places = [name for name in table.columns if name in (found["text"], further[0])]
    return {**found, "text": places[0], "text_pair": places[1]}


_TABLE = (
    Role(
        "prompt",
        ("prompt", "instruction", "question", "query", "input", "problem", "question_stem"),
    ),
    Role(
        "answer",
        (
            *("completion", "answer", "response", "output", "target", "solution"),
            *("answerkey", "answer_key", "correct_answer", "best_answer"),
        ),
    ),
    Role("input", ("input", "context"), may_be_missing=True),
    Role("rejected", accepts=lambda kind, named: False, may_be_missing=True),
    Role(
        "messages",
        ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "turns"),
        lambda kind, named: is_dialogue(kind) or (named and (is_text(kind) or is_object(kind))),
        holds=are_dialogues,
    ),
    Role("tools", ("tools", "functions"), may_be_missing=True),
    Role("system", ("system", "system_prompt"), _text, may_be_missing=True),
    Role(
        "history",
        ("history", "conversation_history"),
        lambda kind, named: is_list(kind) or is_text(kind),
        may_be_missing=True,
    ),
    Role(
        "text",
        (
            *("text", "sentence", "content", "review", "message", "question", "document", "body"),
            *("sentence1", "premise", "question1", "text1"),
        ),
        _text,
        by_type=True,
        pick=_pick_text,
    ),
    Role("text_pair", ("text_pair", "sentence2", "hypothesis", "question2", "text2"), _text),
    Role(
        "label",
        (
            *("label", "labels", "class", "category", "intent", "sentiment", "target", "y"),
            *("score", "rating"),
        ),
        _is_label,
        by_words=_only_named_label,
        by_type=True,
        pick=_pick_label,
        batch_column="labels",
    ),
    Role(
        "tokens",
        ("tokens", "words", "token", "word"),
        lambda kind, named: is_text_list(kind),
    ),
    Role(
        "tags",
        ("tags", "ner_tags", "tag", "labels", "ner", "pos_tags", "pos", "chunk_tags"),
        lambda kind, named: is_text_list(kind) or is_integer_list(kind),
        by_type=True,
    ),
    Role(
        "features",
        ("features", "inputs_embeds", "x", "data", "embeddings", "values"),
        _is_features,
        by_type=True,
        batch_column="inputs_embeds",
    ),
    Role("source", ("source", "src", "article", "document", "dialogue"), _text),
    Role("target", ("target", "tgt", "summary", "highlights"), _text),
    Role(
        "image",
        (
            *("image", "img", "picture", "photo", "images", "pixels", "pixel_values"),
            *("image_path", *PATHS),
        ),
        may_hold_images,
        by_type=True,
        pick=_pick_files(IMAGES),
        batch_column="pixel_values",
    ),
    Role(
        "audio",
        (
            *("audio", "sound", "speech", "recording", "waveform", "wav", "clip", "input_values"),
            *("audio_path", *PATHS),
        ),
        may_hold_audio,
        by_type=True,
        pick=_pick_files(AUDIO),
        batch_column="input_values",
    ),
    Role(
        "mask",
        ("mask", "attention_mask"),
        may_be_missing=True,
        batch_column="attention_mask",
    ),
    Role("input_ids", accepts=lambda kind, named: is_list(kind) or is_text(kind)),
    Role("labels", accepts=lambda kind, named: not is_number(kind) and not is_text(kind)),
)

ROLES: dict[str, Role] = {role.name: role for role in _TABLE}
"""Every role that a task of surefit has, by name."""


def get_role(name: str) -> Role:
    """Return the role of that name; a name that is not in the table is a role of its own."""
    return ROLES.get(name, Role(name))


@cache
def role_of_batch_column(name: str) -> str:
    """Return the role of a column in a batch; else the name itself.

    >>> role_of_batch_column("pixel_values"), role_of_batch_column("input_ids")
    ('image', 'input_ids')
    """
    return next((role.name for role in _TABLE if role.batch_column == name), name)


def resolve_roles(
    table: Table,
    needs: Sequence[Sequence[Role]],
    optional: Sequence[Role] = (),
    chosen: Mapping[str, str] | None = None,
    inferred: bool = False,
    tables: bool = True,
) -> dict[str, str] | None:
    """Role to column for the first of the alternative `needs` that the columns meet.

    An alternative without a chosen role is skipped. If the task is `inferred`, a column under an
    unknown name becomes the label of a text only if it looks like one. `tables` is whether the
    model may read rows of numbers, of which a text may be one column.
    """
    chosen = chosen or {}
    extra = frozenset(role.name for role in optional)
    for roles in needs:
        needed = frozenset(role.name for role in roles)
        if not {*chosen} <= needed | extra:
            continue
        left = Unmatched(table, chosen, needed, extra, inferred, tables)
        for recognise in (Unmatched.by_name, Unmatched.by_words, Unmatched.by_type):
            for role in roles:
                left = _matched(left, role, recognise)
        if needed <= {*left.found}:
            for role in optional:
                left = _matched(left, role, Unmatched.by_name)
            return dict(left.found) if "text" in chosen else _with_pair(left)
    return None


def _matched(
    left: Unmatched, role: Role, recognise: Callable[[Unmatched, Role], str | None]
) -> Unmatched:
    """Return what is left once a role has its column, if it is recognised."""
    column = recognise(left, role) if role.name not in left.found else None
    return left if column is None else replace(left, found={**left.found, role.name: column})


def extra_fields(table: Table, taken: set[str]) -> dict[str, Field]:
    """Fields of numeric columns without a role, for a module whose forward names them."""
    extras = {}
    for name in table.columns:
        kind = table.column_type(name)
        if name in taken or not (is_array(kind) or is_number(kind)):
            continue
        axes, value = list_axes(kind)
        dtype = "float32" if pa.types.is_floating(value) else "int64"
        extras[name] = Field(tuple(f"{name}.{place}" for place in range(len(axes))), dtype)
    return extras
