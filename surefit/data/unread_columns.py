"""What a column usually means that a task does not read, and what training without it does.

Each column without a role is compared with the table of Meanings, by name and by values. Ids,
sources, dates and columns of one value mean nothing here: they are only named as not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from surefit.config import set_option
from surefit.data.column_types import is_list, is_number, is_object, is_text, may_hold_images
from surefit.data.column_values import (
    DERIVED,
    adds_text,
    continues,
    describes,
    has_words,
    holds_answers,
    is_derived,
    is_good,
    is_metadata,
    texts_in,
    word_set,
    words_of,
)
from surefit.data.forms import CHOSEN, NUMBERED, REJECTED
from surefit.data.official_splits import part_of
from surefit.data.roles import get_role
from surefit.data.split_columns import NAMED_FOR_PARTS
from surefit.data.table import Table
from surefit.findings import Finding, Rule, rule

JUDGED_ANSWERS = rule(
    "SF131",
    "error",
    "answers judged good or bad",
    why=(
        "The rows are preference data, as for KTO: the column says which answers are bad, and "
        "training on all of them teaches the bad answers, too."
    ),
    fix="Tune by preference: --task preference (KTO). Or train on the good answers alone: --set "
    "accept=SF131.",
    accept="Rows with a good answer are trained on. The others are dropped and counted.",
)

SCORED_ANSWERS = rule(
    "SF132",
    "error",
    "answers with scores",
    why=(
        "The rows are preference data: the scores say how good each answer is, and training on all "
        "rows teaches the poor answers, too."
    ),
    fix="Keep the rows with a good score, or train on all rows alike: --set accept=SF132.",
    accept="All rows are trained on, whatever the score of their answer.",
)

TEXT_NOT_READ = rule(
    "SF134",
    "warning",
    "column of text not read",
    why="What only this column says is not learned. An answer that depends on a text which the "
    "model does not see teaches it to guess.",
    fix="Join the column to one that is read, or leave it out: --set ignore=COLUMN.",
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
    fix="Leave out the validation data and split.by, split.time or split.folds: the column then "
    "divides the rows, if it has training rows (split.column). Or write one file for each part, "
    "and pass them as --data and --eval-data. To train on all rows: --set split.column=none.",
    accept="All rows are used, whatever part they belong to.",
)

WEIGHTS_NOT_READ = rule(
    "SF139",
    "warning",
    "weights of the rows not read",
    why="Every row counts alike in the loss.",
    fix=(
        "Repeat or remove rows according to their weights, or leave the column out: "
        "--set ignore=COLUMN."
    ),
    accept="Every row counts alike.",
)

COULD_BE_MEANT = rule(
    "SF142",
    "warning",
    "another column could be meant",
    why="Two columns have names of one role, and only one of them is read.",
    fix="Name the right column: --set columns.ROLE=COLUMN.",
    accept="The column is not read.",
)

CHOICES_NOT_READ = rule(
    "SF145",
    "error",
    "choices not read",
    why=(
        "The rows are multiple choice: the label or the answer names one of the choices, which the "
        "model does not see. It can only learn how often each is right."
    ),
    fix=(
        "Write the choices into the prompt and the right one into the answer. To train without "
        "them: --set accept=SF145."
    ),
    accept="The rows are trained on without the choices.",
)

SUBJECTS = word_set(
    "context passage document evidence background knowledge story article support body paragraph "
    "premise abstract scenario transcript facts"
)
"""Words in the name of a column with the text that a question is about."""
CHOICE_STEMS = word_set("option choice ending answer sol solution alternative candidate hypothesis")
"""What columns with choices are called before their number."""
ANSWER_ROLES = frozenset({"answer", "messages"})
"""Roles of answers as text, which a further column may judge; token ids are none."""
ASKED = frozenset({"prompt", "messages", "source"})
"""Roles of what is answered, which a further column may belong to."""
ONE_COLUMN = frozenset({"prompt", "answer", "label", "target"})
"""Roles for which a data set rarely has two columns."""

Roles = Mapping[str, str]
Evidence = tuple[str, str] | None
"""What is found in a column, in words, and the fix where the rule's is not exact enough; None where
the column does not have the meaning."""


@dataclass(frozen=True)
class Meaning:
    """What a column may mean: the words in its name, its values, and what follows."""

    rule: Rule
    find: Callable[[Table, str, Roles], Evidence]
    """What the values show, given the columns that are read by role."""
    words: frozenset[str] = frozenset()
    """One of them is in the column's name; any name where there are none."""
    beside: frozenset[str] = frozenset()
    """One of these roles is read; any roles where there are none."""
    also_read: bool = False
    """Whether a column that the task reads without a role can have the meaning, too."""
    lead: str = "is not read"
    """What the message says of the column first."""


def check_meanings(
    table: Table, roles: Roles, columns: Mapping[str, str | None], chosen: Roles
) -> Iterator[Finding]:
    """Yield one finding for each meaning that columns without a role of their own have.

    `columns` is the account: what each column is read as, None where it is not. Where the user has
    `chosen` columns, no other could be meant.
    """
    usual = [each for each in MEANINGS if not each.beside or not each.beside.isdisjoint(roles)]
    meanings = [each for each in usual if each is not RIVAL or not chosen]
    found: dict[str, list[tuple[str, Meaning, tuple[str, str]]]] = {}
    for column in table.columns:
        if column in roles.values():
            continue
        for meaning in meanings:
            named = not meaning.words or has_words(column, meaning.words)
            may_have = named and (columns[column] is None or meaning.also_read)
            evidence = meaning.find(table, column, roles) if may_have else None
            if evidence is not None:
                found.setdefault(meaning.rule.code, []).append((column, meaning, evidence))
                break
    for (column, meaning, (what, fix)), *others in found.values():
        lead = meaning.lead if columns[column] is None else "is read as an input like any other"
        message = f"Column {column!r} {lead}: {what}."
        if others:
            message += f" The same holds for {', '.join(repr(name) for name, *_ in others)}."
        fix = (fix or meaning.rule.fix).replace("--set ignore=COLUMN", set_option("ignore", column))
        yield meaning.rule.finding(message, fix=fix, file=table.sources[0].file, column=column)


def _find_judgements(table: Table, column: str, roles: Roles) -> Evidence:
    """Two values of which one marks bad answers."""
    counts = table.profile(column).counts or {}
    judged = {value: is_good(value) for value in counts} if len(counts) <= 2 else {}
    bad = [value for value, good in judged.items() if good is False]
    if len(bad) != 1 or None in judged.values():
        return None
    first = pc.indices_nonzero(pc.equal(table.arrow[column], bad[0]).combine_chunks())[:3]
    rows = ", ".join(map(str, first.to_pylist()))
    return (
        f"it is {bad[0]!r} in {counts[bad[0]]} of {table.num_rows} rows (such as {rows}), which "
        "marks bad answers",
        "",
    )


def _find_scores(table: Table, column: str, roles: Roles) -> Evidence:
    """Numbers that differ from row to row, or lists of them."""
    kind = table.column_type(column)
    while is_list(kind):
        kind = kind.value_type
    if is_metadata(column) or has_words(column, CHOSEN | REJECTED):
        return None
    profile = table.profile(column)
    if not is_number(kind) or not profile.varies:
        return None
    if not profile.is_scalar:
        return "it has lists of scores", ""
    low, high = profile.range
    return (
        f"it has {profile.num_distinct} different scores of the answers, from {low:g} to {high:g}",
        "",
    )


def _adds_text(table: Table, column: str, roles: Roles) -> str | None:
    """What a column of texts says that the columns which are read do not contain, in words."""
    read = [name for name in roles.values() if name in table.columns]
    if not adds_text(table, column, read):
        return None
    words = {*words_of(column)}
    if words & DERIVED and any({*words_of(name)} <= words for name in read):
        return None
    return f"it has a text in each row, beside {', '.join(map(repr, read))}"


def _find_second_text(table: Table, column: str, roles: Roles) -> Evidence:
    """A further text: the pair of a text that has a label, else its answer; titles describe it."""
    found = _adds_text(table, column, roles)
    if found is None or ("label" not in roles and describes(column)):
        return None
    fix, leave_out = "", set_option("ignore", column)
    if "label" in roles and "text_pair" not in roles:
        pair = set_option("columns.text_pair", column)
        fix = f"Read both as a pair of texts: {pair}. Or leave it out: {leave_out}."
    elif "label" not in roles and not has_words(column, SUBJECTS):
        asked, answer = (
            set_option(f"columns.{role}", name)
            for role, name in (("prompt", roles["text"]), ("answer", column))
        )
        fix = (
            f"To learn {column!r} as the answer to {roles['text']!r}: --task sft {asked} {answer}. "
            f"Else name it under ignore: {leave_out}."
        )
    return found, fix


def _find_context(table: Table, column: str, roles: Roles) -> Evidence:
    """Texts, objects or lists of texts beside prompts; reasoning would give the answer away."""
    kind = table.column_type(column)
    beside = f", beside {', '.join(map(repr, roles.values()))}"
    if is_list(kind) and holds_answers(kind) and table.profile(column).varies:
        return f"it has lists of texts{beside}", ""
    if is_object(kind) and any(map(texts_in, table.profile(column).first)):
        return f"it has objects with texts{beside}", ""
    found = _adds_text(table, column, roles)
    role = "system" if "messages" in roles else "input"
    fix = (
        f"Read it with the prompt: {set_option(f'columns.{role}', column)}. Or leave it out: "
        f"{set_option('ignore', column)}."
    )
    is_subject = role not in roles and has_words(column, SUBJECTS)
    return None if found is None else (found, fix if is_subject else "")


def _find_choices(table: Table, column: str, roles: Roles) -> Evidence:
    """Lists of texts of which the label or a short answer names one, without repeating it."""
    lists = [texts_in(value) for value in table.profile(column).first]
    longest = max(map(len, lists), default=0)
    target = _names_one(table, roles, longest)
    if target is None or min(map(len, lists)) < 2:
        return None  # the answers may be the texts of the choices themselves
    found = f"it has up to {longest} choices, of which {target!r} names one"
    prompt = next((roles[role] for role in ("prompt", "source", "text") if role in roles), None)
    if prompt is None:
        return found, ""
    whole = next((name for name in table.columns if continues(table, name, prompt)), prompt)
    named = {"prompt": whole, "choices": column, "answer": target}
    options = " ".join(set_option(f"columns.{role}", name) for role, name in named.items())
    return found, (
        f"Learn to write the right choice, with a causal model: --task sft {options}. To train "
        "without the choices: --set accept=SF145."
    )


def _find_numbered_choice(table: Table, column: str, roles: Roles) -> Evidence:
    """One of several columns, `option1` and `option2`, of which the label or answer names one."""
    matches = {name: NUMBERED.fullmatch(name) for name in table.columns}
    stems = {name: match["stem"] for name, match in matches.items() if match}
    if stems.get(column, "").lower() not in CHOICE_STEMS:
        return None
    alike = [name for name, stem in stems.items() if stem == stems[column]]
    texts = [name for name in alike if is_text(table.column_type(name))]
    target = _names_one(table, roles, len(texts))
    if target is None:
        return None
    return f"it is one of {len(texts)} choices, of which {target!r} names one", (
        "Write the choices as lists into one column 'choices': with a causal model and --task sft, "
        "they are read with the prompt. To train without them: --set accept=SF145."
    )


def _names_one(table: Table, roles: Roles, num_choices: int) -> str | None:
    """Return the target, if it holds numbers or letters of so many choices."""
    target = roles.get("label") or roles.get("answer") or roles.get("target")
    named = (table.profile(target).counts or {}) if target is not None else {}
    fits = 1 < len(named) <= num_choices and all(len(str(name)) <= 2 for name in named)
    return target if fits else None


def _find_media(table: Table, column: str, roles: Roles) -> Evidence:
    """Images, or paths of files: a caption has spaces, a path seldom."""
    kind = table.column_type(column)
    holds = may_hold_images(kind, True) or (is_list(kind) and holds_answers(kind))
    words = [text for value in table.profile(column).first for text in texts_in(value)]
    if not holds or not table.profile(column).varies or any(" " in word for word in words):
        return None
    return "it has images, audio or video for the rows' texts", ""


def _find_parts(table: Table, column: str, roles: Roles) -> Evidence:
    """Return the names of training and test sets."""
    counts = table.profile(column).counts or {}
    if len(counts) < 2 or not all(part_of(str(value)) for value in counts):
        return None
    shown = ", ".join(f"{value!r} in {count} rows" for value, count in counts.items())
    return f"it is {shown}", ""


def _find_weights(table: Table, column: str, roles: Roles) -> Evidence:
    """Numbers that are not negative."""
    profile = table.profile(column)
    if not is_number(profile.kind) or not profile.varies or profile.range[0] < 0:
        return None
    return f"it has weights from {profile.range[0]:g} to {profile.range[1]:g}", ""


def _find_rival(table: Table, column: str, roles: Roles) -> Evidence:
    """Another column that could have the role, by its name, and does not say the same."""
    named = (role for role in roles if column.lower() in get_role(role).names)
    role = next((role for role in named if role in ONE_COLUMN), "")
    other = roles.get(role)
    if other is None or other not in table.columns:
        return None
    if role == "label":
        differs = words_of(other)[:1] != ("label",) and _differ(table, column, other)
    else:
        read = [name for name in roles.values() if name in table.columns]
        differs = table.profile(column).is_prose and not is_derived(table, column, read)
    one, two = (set_option(f"columns.{role}", name) for name in (column, other))
    found = f"by its name, it could be the {role} as well as {other!r}"
    return (found, f"Name the right one: {one}; or {two}.") if differs else None


def _differ(table: Table, column: str, other: str) -> bool:
    """Return whether two columns, both of text or both of numbers, divide the rows differently."""
    own, its = table.profile(column), table.profile(other)
    if is_text(own.kind) != is_text(its.kind) or not (own.is_scalar and its.is_scalar):
        return False
    if not own.varies or not its.num_distinct:
        return False
    pairs = table.arrow.select([column, other]).group_by([column, other]).aggregate([])
    return bool(pairs.num_rows > max(own.num_distinct, its.num_distinct))


RIVAL = Meaning(COULD_BE_MEANT, _find_rival)
MEANINGS = (
    Meaning(
        JUDGED_ANSWERS,
        _find_judgements,
        word_set(
            "label labels kto desirable good preferred accepted approved chosen feedback helpful "
            "correct thumbs"
        ),
        beside=ANSWER_ROLES,
        lead="judges the answers",
    ),
    Meaning(
        SCORED_ANSWERS,
        _find_scores,
        word_set(
            "score scores rating ratings reward rewards rank ranking helpfulness correctness "
            "quality preference vote votes upvotes"
        ),
        beside=ANSWER_ROLES,
    ),
    Meaning(
        MEDIA_NOT_READ,
        _find_media,
        word_set("image images img picture pictures photo photos audio audios video videos"),
        beside=ANSWER_ROLES,
    ),
    Meaning(
        CHOICES_NOT_READ,
        _find_choices,
        word_set("choices options endings alternatives candidates"),
        beside=frozenset({"text", *ASKED}),
    ),
    Meaning(CHOICES_NOT_READ, _find_numbered_choice, beside=frozenset({"text", *ASKED})),
    Meaning(TEXT_NOT_READ, _find_second_text, beside=frozenset({"text"})),
    Meaning(
        TEXT_NOT_READ,
        _find_context,
        SUBJECTS
        | word_set(
            "contexts passages documents reasoning thinking thought thoughts rationale cot "
            "explanation solution hint system history"
        ),
        beside=ASKED,
    ),
    Meaning(SPLIT_NOT_READ, _find_parts, NAMED_FOR_PARTS, also_read=True),
    Meaning(WEIGHTS_NOT_READ, _find_weights, word_set("weight weights")),
    RIVAL,
)
"""What a column may mean, the first that fits."""
