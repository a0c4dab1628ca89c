"""What the values of a column show about its meaning, in words for a Finding.

Each function gets the table, a column, and the columns that are read by role.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.compute as pc

from surefit.data.column_types import is_list, is_number, is_object, is_text, may_hold_images
from surefit.data.column_values import (
    holds_answers,
    is_derived,
    is_good,
    is_metadata,
    is_prose,
    sample,
    texts_in,
    value_counts,
    varies,
    word_set,
    words_of,
)
from surefit.data.label_columns import describes
from surefit.data.preference_pairs import CHOSEN, NUMBERED, REJECTED
from surefit.data.roles import get_role
from surefit.data.table import Table

ONE_COLUMN = frozenset({"prompt", "answer", "label", "target"})
"""Roles for which a data set rarely has two columns."""

ANSWERS = frozenset({"answer", "messages"})
"""Roles of answers as text, which a further column may judge."""

CHOICE_STEMS = word_set("option choice ending answer sol solution alternative candidate hypothesis")
"""What columns with choices are called before their number."""
DERIVED = word_set(
    "clean cleaned raw processed preprocessed normalized lemmatized stemmed tokenized parse parsed"
)
"""Words in the name of another form of a text: `premise_parse` of `premise`."""

Evidence = str | None
"""What is found in a column, in words; None where it does not have the meaning."""


def find_judgements(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """Two values of which one marks bad answers; token ids are no answers to judge."""
    if ANSWERS.isdisjoint(roles):
        return None
    counts = value_counts(table, column)
    judged = {value: is_good(value) for value in counts} if len(counts) <= 2 else {}
    bad = [value for value, good in judged.items() if good is False]
    if len(bad) != 1 or None in judged.values():
        return None
    first = pc.indices_nonzero(pc.equal(table.arrow[column], bad[0]).combine_chunks())[:3]
    rows = ", ".join(map(str, first.to_pylist()))
    return (
        f"it is {bad[0]!r} in {counts[bad[0]]} of {table.num_rows} rows (such as {rows}), which "
        "marks bad answers. Preference tuning is not available yet"
    )


def find_scores(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """Numbers that differ from row to row, or lists of them."""
    kind = table.column_type(column)
    while is_list(kind):
        kind = kind.value_type
    of_pairs = not (CHOSEN | REJECTED).isdisjoint(words_of(column))
    if ANSWERS.isdisjoint(roles) or of_pairs or is_metadata(column):
        return None
    if not is_number(kind) or not varies(table, column):
        return None
    counts = value_counts(table, column)
    if not counts:
        return "it has lists of scores"
    return (
        f"it has {len(counts)} different scores of the answers, from {min(counts):g} to "
        f"{max(counts):g}. Preference tuning is not available yet"
    )


def find_second_text(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """A further text in the rows of a task that reads texts."""
    return find_further_text(table, column, roles) if "text" in roles else None


def find_text_beside(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """A further text beside the only one that is read; titles and the like describe it."""
    return None if describes(column) else find_second_text(table, column, roles)


def find_further_text(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """Texts that the columns which are read do not contain."""
    read = [name for name in roles.values() if name in table.columns]
    if is_metadata(column) or not is_prose(table, column) or is_derived(table, column, read):
        return None
    words = {*words_of(column)}
    if words & DERIVED and any({*words_of(name)} <= words for name in read):
        return None
    return f"it has a text in each row, beside {', '.join(map(repr, read))}"


def find_choices(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """Lists of texts of which the label or a short answer names one, without repeating it."""
    target = roles.get("label") or roles.get("answer") or roles.get("target")
    lists = [texts_in(value) for value in sample(table, column)]
    if target is None or not lists or min(map(len, lists)) < 2:
        return None
    longest = max(map(len, lists))
    if not _names_one(table, target, longest):
        return None  # the answers are the texts of the choices themselves
    return f"it has up to {longest} choices, of which {target!r} names one"


def _names_one(table: Table, target: str, num_choices: int) -> bool:
    """Whether a column holds numbers or letters of so many choices."""
    named = value_counts(table, target)
    return 1 < len(named) <= num_choices and all(len(str(name)) <= 2 for name in named)


def find_numbered_choice(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """One of several columns, `option1` and `option2`, of which the label or answer names one."""
    target = roles.get("label") or roles.get("answer") or roles.get("target")
    found = NUMBERED.fullmatch(column)
    if target is None or found is None or found["stem"].lower() not in CHOICE_STEMS:
        return None
    matches = {name: NUMBERED.fullmatch(name) for name in table.columns}
    alike = [name for name, match in matches.items() if match and match["stem"] == found["stem"]]
    texts = [name for name in alike if is_text(table.column_type(name))]
    if len(texts) < 2 or not _names_one(table, target, len(texts)):
        return None
    return f"it is one of {len(texts)} choices, of which {target!r} names one"


def find_context(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """Texts, or lists of texts."""
    kind = table.column_type(column)
    if is_list(kind) and holds_answers(kind) and varies(table, column):
        return f"it has lists of texts, beside {', '.join(map(repr, roles.values()))}"
    if is_object(kind) and any(map(texts_in, sample(table, column))):
        return f"it has objects with texts, beside {', '.join(map(repr, roles.values()))}"
    return find_further_text(table, column, roles)


def find_media(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """Images, or paths of files."""
    kind = table.column_type(column)
    holds = may_hold_images(kind, True) or (is_list(kind) and holds_answers(kind))
    words = [text for value in sample(table, column) for text in texts_in(value)]
    if not holds or not varies(table, column) or any(" " in word for word in words):
        return None  # a caption has spaces, a path seldom
    return "it has images, audio or video for the rows' texts"


def find_parts(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """The names of training and test sets."""
    counts = value_counts(table, column) if is_text(table.column_type(column)) else {}
    known = {"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"}
    if len(counts) < 2 or not {str(value).lower() for value in counts} <= known:
        return None
    shown = ", ".join(f"{value!r} in {count} rows" for value, count in counts.items())
    return f"it is {shown}"


def find_weights(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """Numbers that are not negative."""
    counts = value_counts(table, column) if is_number(table.column_type(column)) else {}
    if len(counts) < 2 or min(counts) < 0:
        return None
    return f"it has weights from {min(counts):g} to {max(counts):g}"


def find_rival(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """Another column that could have the role, by its name, and does not say the same."""
    role = rival_of(column, roles)
    if role is None or roles[role] not in table.columns:
        return None
    if role == "label":
        differs = words_of(roles[role])[:1] != ("label",) and _differ(table, column, roles[role])
    else:
        read = [name for name in roles.values() if name in table.columns]
        differs = is_prose(table, column) and not is_derived(table, column, read)
    return f"by its name, it could be the {role} as well as {roles[role]!r}" if differs else None


def rival_of(column: str, roles: Mapping[str, str]) -> str | None:
    """The role of another column that this one could have, too, by its name."""
    named = (role for role in roles if column.lower() in get_role(role).names)
    return next((role for role in named if role in ONE_COLUMN), None)


def _differ(table: Table, column: str, other: str) -> bool:
    """Whether two columns, both of text or both of numbers, divide the rows differently."""
    own, its = value_counts(table, column), value_counts(table, other)
    alike = is_text(table.column_type(column)) == is_text(table.column_type(other))
    if not alike or len(own) < 2 or not its:
        return False
    pairs = table.arrow.select([column, other]).group_by([column, other]).aggregate([])
    return bool(pairs.num_rows > max(len(own), len(its)))
