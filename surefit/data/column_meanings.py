"""What a column usually means that a task does not read, and what training without it does.

A task names its Meanings; each column without a role is compared with them, by name and by values.
Ids, sources, dates and columns of one value mean nothing here: they are only named as not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from surefit.data.column_types import is_list, is_number, is_text, may_hold_images
from surefit.data.column_values import (
    holds_answers,
    is_derived,
    is_good,
    is_metadata,
    is_prose,
    value_counts,
    varies,
    word_set,
    words_of,
)
from surefit.data.preference_pairs import CHOSEN, REJECTED
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.findings import Finding, Rule, rule

JUDGED_ANSWERS = rule(
    "SF131",
    "error",
    "answers judged good or bad",
    why=(
        "The rows are preference data, as for KTO: the column says which answers are bad, and "
        "training on all of them teaches the bad answers, too. Preference tuning is not available "
        "yet."
    ),
    fix="Train on the good answers alone: --set accept=SF131.",
    accept="Rows with a good answer are trained on. The others are dropped and counted.",
)

SCORED_ANSWERS = rule(
    "SF132",
    "error",
    "answers with scores",
    why=(
        "The rows are preference data: the scores say how good each answer is, and training on all "
        "rows teaches the poor answers, too. Preference tuning is not available yet."
    ),
    fix="Keep the rows with a good score, or train on all rows alike: --set accept=SF132.",
    accept="All rows are trained on, whatever the score of their answer.",
)

TEXT_NOT_READ = rule(
    "SF134",
    "warning",
    "column of text not read",
    why="The task reads one text, or a pair of texts. What only this column says is not learned.",
    fix="Join the columns in the data, or name the column under ignore.",
    accept="The column is not read.",
)

CONTEXT_NOT_READ = rule(
    "SF135",
    "warning",
    "context or reasoning not read",
    why=(
        "An answer that depends on a text which the model does not see teaches it to guess, and "
        "reasoning in a column of its own is not learned."
    ),
    fix="Join the column to the prompt or the answer, or name it under ignore.",
    accept="The column is not read.",
)

MEDIA_NOT_READ = rule(
    "SF136",
    "error",
    "images, audio or video not read",
    why="The answers describe what the model does not get, so it learns to invent.",
    fix="Use rows without media, or train on the text alone: --set accept=SF136.",
    accept="The text is trained on without the media.",
)

SPLIT_NOT_READ = rule(
    "SF138",
    "warning",
    "column that splits the data not read",
    why="Rows for testing are trained on, and the metrics are too good.",
    fix="Write one file for each part, and pass them as --data and --eval-data.",
    accept="All rows are used, whatever part they belong to.",
)

WEIGHTS_NOT_READ = rule(
    "SF139",
    "warning",
    "weights of the rows not read",
    why="Every row counts alike in the loss.",
    fix="Repeat or remove rows according to their weights, or name the column under ignore.",
    accept="Every row counts alike.",
)

COULD_BE_MEANT = rule(
    "SF142",
    "warning",
    "another column could be meant",
    why="Two columns have names of one role, and only one of them is read.",
    fix="Name the right column with columns.<role>, or the other one under ignore.",
    accept="The column is not read.",
)

ONE_COLUMN = frozenset({"prompt", "answer", "label", "target"})
"""Roles for which a data set rarely has two columns."""

Evidence = str | None
"""What is found in a column, in words; None where it does not have the meaning."""


@dataclass(frozen=True)
class Meaning:
    """What a column may mean: the words in its name, its values, and what follows."""

    words: frozenset[str]
    """One of them is in the column's name; any name where there are none."""
    found: Callable[[Table, str, Mapping[str, str]], Evidence]
    """What the values show, given the columns that are read by role."""
    rule: Rule
    also_read: bool = False
    """Whether a column that the task reads without a role can have the meaning, too."""
    fix: Callable[[str, Mapping[str, str]], str] = lambda column, roles: ""
    """The fix for this column, where the rule's is not exact enough."""


def check_meanings(
    table: Table,
    meanings: Iterable[Meaning],
    roles: Mapping[str, str],
    columns: Mapping[str, str | None],
) -> Iterator[Finding]:
    """One finding for each meaning that columns without a role of their own have.

    `columns` is the account: what each column is read as, None where it is not.
    """
    found: dict[str, list[tuple[str, str, Meaning]]] = {}
    for column in table.columns:
        if column in roles.values():
            continue
        for meaning in meanings:
            evidence = _evidence(table, column, meaning, roles, columns[column] is not None)
            if evidence is not None:
                found.setdefault(meaning.rule.code, []).append((column, evidence, meaning))
                break
    file = table.sources[0].file
    for (column, evidence, meaning), *others in found.values():
        message = f"Column {column!r} is not used as what it is: {evidence}."
        if columns[column] is None:
            message = f"Column {column!r} is not read: {evidence}."
        if others:
            message += f" The same holds for {', '.join(repr(name) for name, _, _ in others)}."
        fix = meaning.fix(column, roles)
        yield meaning.rule.finding(message, fix=fix, file=file, column=column)


def _evidence(
    table: Table, column: str, meaning: Meaning, roles: Mapping[str, str], is_read: bool
) -> Evidence:
    if meaning.words and meaning.words.isdisjoint(words_of(column)):
        return None
    return None if is_read and not meaning.also_read else meaning.found(table, column, roles)


def _judgements(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
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


def _scores(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    kind = table.column_type(column)
    while is_list(kind):
        kind = kind.value_type
    of_pairs = not (CHOSEN | REJECTED).isdisjoint(words_of(column))
    if of_pairs or is_metadata(column) or not is_number(kind) or not varies(table, column):
        return None
    counts = value_counts(table, column)
    if not counts:
        return "it has lists of scores"
    return (
        f"it has {len(counts)} different scores of the answers, from {min(counts):g} to "
        f"{max(counts):g}. Preference tuning is not available yet"
    )


def _further_text(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    read = [name for name in roles.values() if name in table.columns]
    if not any(is_text(table.column_type(name)) for name in read):
        return None  # rows of a table, or features
    if is_metadata(column) or not is_prose(table, column) or is_derived(table, column, read):
        return None
    return f"it has a text in each row, beside {', '.join(map(repr, read))}"


def _context(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    kind = table.column_type(column)
    if is_list(kind) and holds_answers(kind) and varies(table, column):
        return f"it has lists of texts, beside {', '.join(map(repr, roles.values()))}"
    return _further_text(table, column, roles)


def _media(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    kind = table.column_type(column)
    holds = may_hold_images(kind, True) or (is_list(kind) and holds_answers(kind))
    if holds and varies(table, column):
        return "it has images, audio or video for the rows' texts"
    return None


def _parts(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    counts = value_counts(table, column) if is_text(table.column_type(column)) else {}
    known = {"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"}
    if len(counts) < 2 or not {str(value).lower() for value in counts} <= known:
        return None
    shown = ", ".join(f"{value!r} in {count} rows" for value, count in counts.items())
    return f"it is {shown}"


def _weights(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    counts = value_counts(table, column) if is_number(table.column_type(column)) else {}
    if len(counts) < 2 or min(counts) < 0:
        return None
    return f"it has weights from {min(counts):g} to {max(counts):g}"


def _same_role(table: Table, column: str, roles: Mapping[str, str]) -> Evidence:
    """Another column that could have the role, by its name, and does not say the same."""
    role = _rival_of(column, roles)
    if role is None or roles[role] not in table.columns:
        return None
    if role == "label":
        differs = words_of(roles[role])[:1] != ("label",) and _differ(table, column, roles[role])
    else:
        read = [name for name in roles.values() if name in table.columns]
        differs = is_prose(table, column) and not is_derived(table, column, read)
    return f"by its name, it could be the {role} as well as {roles[role]!r}" if differs else None


def _rival_of(column: str, roles: Mapping[str, str]) -> str | None:
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


def _as_role(column: str, roles: Mapping[str, str]) -> str:
    role = _rival_of(column, roles)
    if role is None:
        return ""
    return f"Name the right one: --set columns.{role}={column}, or columns.{role}={roles[role]}."


def _as_pair(column: str, roles: Mapping[str, str]) -> str:
    if "text_pair" in roles:
        return ""
    return (
        f"Read both as a pair of texts: --set columns.text_pair={column}. Or name it under ignore."
    )


JUDGEMENT = Meaning(
    word_set(
        "label labels kto desirable good preferred accepted approved chosen feedback helpful "
        "correct thumbs"
    ),
    _judgements,
    JUDGED_ANSWERS,
)
SCORE = Meaning(
    word_set(
        "score scores rating ratings reward rewards rank ranking helpfulness correctness quality "
        "preference vote votes upvotes"
    ),
    _scores,
    SCORED_ANSWERS,
)
FURTHER_TEXT = Meaning(frozenset(), _further_text, TEXT_NOT_READ, fix=_as_pair)
CONTEXT = Meaning(
    word_set(
        "context contexts passage passages document documents evidence background knowledge "
        "reasoning thinking thought thoughts rationale cot explanation solution hint system history"
    ),
    _context,
    CONTEXT_NOT_READ,
)
MEDIA = Meaning(
    word_set("image images img picture pictures photo photos audio audios video videos"),
    _media,
    MEDIA_NOT_READ,
)
SPLIT = Meaning(
    frozenset({"split", "subset", "partition", "fold", "set"}), _parts, SPLIT_NOT_READ, True
)
WEIGHT = Meaning(frozenset({"weight", "weights"}), _weights, WEIGHTS_NOT_READ)

RIVAL = Meaning(frozenset(), _same_role, COULD_BE_MEANT, fix=_as_role)

USUAL = (SPLIT, WEIGHT, RIVAL)
"""What columns may mean in the data of any task."""
OF_TEXTS = (FURTHER_TEXT, *USUAL)
"""What columns may mean beside a text and its label."""
OF_ANSWERS = (JUDGEMENT, SCORE, MEDIA, CONTEXT, *USUAL)
"""What columns may mean beside prompts and answers."""
