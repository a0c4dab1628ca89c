"""Roles: what a column is used for. The table of roles, and how columns are matched to them.

A column is recognised by its name first, then by the words in its name, then by its type and values
if only one column is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from surefit.batches.field import Field
from surefit.data.cell_files import DECODED, kind_named
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
    has_words,
    is_derived,
    is_identifier,
    is_metadata,
    is_named_as_label,
    may_be_label,
    tags_words,
    word_set,
)
from surefit.data.stored_messages import as_messages, holds_messages, is_message, is_python_text
from surefit.data.table import Table

LOOKED_AT = 50
"""How many values of a column are looked at, where its type does not tell its role."""
NOT_A_PAIR = word_set(
    "explanation explanations rationale reasoning reason thought thoughts thinking solution hint "
    "evidence selected clean cleaned raw original processed preprocessed normalized lemmatized "
    "stemmed tokenized"
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


def _holds_dialogue(values: Sequence[Any]) -> bool:
    """Whether values are dialogues: lists, messages, or texts that are mostly lists of messages."""
    objects = [value for value in values if isinstance(value, Mapping)]
    if not all(is_message(value) for value in objects):
        return False
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    if not texts:
        return True
    dialogues = sum(holds_messages(as_messages(text)) or is_python_text(text) for text in texts)
    return 2 * dialogues > len(texts)


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
    may_be_missing: bool = False
    """Whether rows for evaluation or prediction may lack it although training rows had it."""
    by_type: bool = False
    """Whether the only remaining column of a suitable type gets the role, whatever its name."""
    batch_column: str | None = None
    """The name of the column in a batch, if it differs."""
    holds: Callable[[Sequence[Any]], bool] | None = None
    """Whether the first values of a column suit the role, where its type does not tell."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names a column is recognised by."""
        return self.column_names or (self.name,)


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
        holds=_holds_dialogue,
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
    ),
    Role("text_pair", ("text_pair", "sentence2", "hypothesis", "question2", "text2"), _text),
    Role(
        "label",
        (
            *("label", "labels", "class", "category", "intent", "sentiment", "target", "y"),
            *("score", "rating"),
        ),
        _is_label,
        by_type=True,
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
    """The role of that name; a name that is not in the table is a role of its own."""
    return ROLES.get(name, Role(name))


@cache
def role_of_batch_column(name: str) -> str:
    """The role of a column in a batch; else the name itself.

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
    extra = {role.name for role in optional}
    for roles in needs:
        if not set(chosen) <= {role.name for role in roles} | extra:
            continue
        found = dict(chosen)
        matching = _Matching(table, frozenset(role.name for role in roles), extra, inferred, tables)
        for recognise in (matching.by_name, matching.by_words, matching.by_type):
            for role in roles:
                column = None
                if role.name not in found:
                    column = recognise(role, found)
                if column is not None:
                    found[role.name] = column
        if all(role.name in found for role in roles):
            for role in optional:
                column = matching.by_name(role, found)
                if role.name not in found and column is not None:
                    found[role.name] = column
            return found if "text" in chosen else matching.with_pair(found)
    return None


@dataclass(frozen=True)
class _Matching:
    """The columns of a table, matched to the roles of one form of a task."""

    table: Table
    needed: frozenset[str]
    optional: set[str]
    inferred: bool
    tables: bool

    def by_name(self, role: Role, found: Mapping[str, str]) -> str | None:
        """The first column with a name of the role whose type and values suit."""
        free = {name.lower(): name for name in reversed(self._free(found))}
        read = {name.lower() for name in self.table.contents}
        names = [name for name in role.names if name not in PATHS or name not in read]
        for name in (free[name] for name in names if name in free):
            first = self.table.arrow[name].slice(0, LOOKED_AT)
            if not role.accepts(first.type, True):
                continue
            if role.holds is None or role.holds(first.to_pylist()):
                return name
        return None

    def by_words(self, role: Role, found: Mapping[str, str]) -> str | None:
        """The only column beside an input with the words of labels in its name."""
        if role.name != "label" or self.needed.isdisjoint(("text", "image", "audio")):
            return None
        named = [
            name
            for name in self._free(found)
            if role.accepts(self.table.column_type(name), True)
            and is_named_as_label(self.table, name)
            and not ("text" in found and tags_words(self.table, found["text"], name))
        ]
        return named[0] if len(named) == 1 else None

    def by_type(self, role: Role, found: Mapping[str, str]) -> str | None:
        """The only column left whose type suits the role; None if there are several."""
        if not role.by_type:
            return None
        free = [
            name for name in self._free(found) if role.accepts(self.table.column_type(name), False)
        ]
        free = free or self._files_of(role, found)
        if role.name == "text":
            return self._text_of(free, found)
        only = free[0] if len(free) == 1 else None
        if role.name != "label" or only is None:
            return only
        beside_text = self.inferred and "text" in self.needed
        fits = not is_identifier(only) and (not beside_text or may_be_label(self.table, only))
        return only if fits else None

    def _files_of(self, role: Role, found: Mapping[str, str]) -> list[str]:
        """Columns of paths whose files hold what the role reads, unless there are texts to read."""
        free = self._free(found)
        decoded = role.name in {kind.role for kind in DECODED}
        if not decoded or any(self.table.profile(name).is_prose for name in free):
            return []
        return [
            name
            for name in free
            if kind_named(self.table, name, lambda kind: kind.role == role.name) is not None
        ]

    def _text_of(self, free: Sequence[str], found: Mapping[str, str]) -> str | None:
        """The only column of texts; of several, the only one of prose, or the first of a pair."""
        # the content of files is text, whatever the column that names them is called
        own = [name for name in free if name in self.table.contents or not is_metadata(name)]
        if len(free) == 1:
            may_be = own or not self.inferred
            return free[0] if may_be and self.table.profile(free[0]).holds_texts else None
        prose = [name for name in own if self.table.profile(name).is_prose]
        if len(prose) == 2 and "label" in found and "text_pair" in self.optional:
            return prose[0]
        if len(prose) != 1 or "label" not in self.needed:
            return None
        others = [name for name in self._free(found) if not is_identifier(name)]
        is_table = any(is_number(self.table.column_type(name)) for name in others)
        return None if is_table and self.inferred and self.tables else prose[0]

    def with_pair(self, found: dict[str, str]) -> dict[str, str]:
        """The roles, with the only further text beside a text and its label as its pair."""
        if not {"text", "label"} <= {*found} or "text_pair" not in self.optional - {*found}:
            return found
        further = [name for name in self._free(found) if self._may_be_pair(name, found)]
        if len(further) != 1:
            return found
        places = [name for name in self.table.columns if name in (found["text"], further[0])]
        return {**found, "text": places[0], "text_pair": places[1]}

    def _may_be_pair(self, column: str, found: Mapping[str, str]) -> bool:
        if is_metadata(column) or has_words(column, NOT_A_PAIR):
            return False
        if self.table.arrow[column].null_count > MAY_BE_MISSING * self.table.num_rows:
            return False  # the text of rows or files in another form
        read = [name for name in found.values() if is_text(self.table.column_type(name))]
        return self.table.profile(column).is_prose and not is_derived(self.table, column, read)

    def _free(self, found: Mapping[str, str]) -> list[str]:
        taken = {*found.values()}
        return [name for name in self.table.columns if name not in taken]


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
