"""What a column usually means that a task does not read, and what training without it does.

A task names its Meanings; each column without a role is compared with them, by name and by values.
Ids, sources, dates and columns of one value mean nothing here: they are only named as not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from surefit.config import set_option
from surefit.data.column_evidence import (
    Evidence,
    find_choices,
    find_context,
    find_judgements,
    find_media,
    find_numbered_choice,
    find_parts,
    find_rival,
    find_scores,
    find_second_text,
    find_text_beside,
    find_weights,
    rival_of,
)
from surefit.data.column_types import is_text
from surefit.data.column_values import continues, word_set, words_of
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
    fix="Write one file for each part, and pass them as --data and --eval-data.",
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

COULD_BE_MEANT = rule(
    "SF142",
    "warning",
    "another column could be meant",
    why="Two columns have names of one role, and only one of them is read.",
    fix="Name the right column: --set columns.ROLE=COLUMN.",
    accept="The column is not read.",
)


SUBJECTS = word_set(
    "context passage document evidence background knowledge story article support body paragraph "
    "premise abstract scenario transcript facts"
)
"""Words in the name of a column with the text that a question is about."""


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
    lead: str = "is not read"
    """What the message says of the column first."""
    fix: Callable[[Table, str, Mapping[str, str]], str] = lambda table, column, roles: ""
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
        lead = meaning.lead if columns[column] is None else "is read as an input like any other"
        message = f"Column {column!r} {lead}: {evidence}."
        if others:
            message += f" The same holds for {', '.join(repr(name) for name, _, _ in others)}."
        fix = (meaning.fix(table, column, roles) or meaning.rule.fix).replace(
            "--set ignore=COLUMN", set_option("ignore", column)
        )
        yield meaning.rule.finding(message, fix=fix, file=file, column=column)


def _evidence(
    table: Table, column: str, meaning: Meaning, roles: Mapping[str, str], is_read: bool
) -> Evidence:
    if meaning.words and meaning.words.isdisjoint(words_of(column)):
        return None
    return None if is_read and not meaning.also_read else meaning.found(table, column, roles)


def _as_role(table: Table, column: str, roles: Mapping[str, str]) -> str:
    role = rival_of(column, roles)
    if role is None:
        return ""
    one, other = (set_option(f"columns.{role}", name) for name in (column, roles[role]))
    return f"Name the right one: {one}; or {other}."


def _as_pair(table: Table, column: str, roles: Mapping[str, str]) -> str:
    if "text_pair" in roles:
        return ""
    return (
        f"Read both as a pair of texts: {set_option('columns.text_pair', column)}. Or leave it "
        f"out: {set_option('ignore', column)}."
    )


def _as_answer(table: Table, column: str, roles: Mapping[str, str]) -> str:
    text = roles["text"]
    if not SUBJECTS.isdisjoint(words_of(column)):
        return ""
    return (
        f"To learn {column!r} as the answer to {text!r}: --task sft "
        f"{set_option('columns.prompt', text)} {set_option('columns.answer', column)}. Else name "
        f"it under ignore: {set_option('ignore', column)}."
    )


def _as_context(table: Table, column: str, roles: Mapping[str, str]) -> str:
    """How a text that the prompt is about becomes a part of it; reasoning would give it away."""
    role = "system" if "messages" in roles else "input"
    is_read = role in roles or SUBJECTS.isdisjoint(words_of(column))
    if is_read or not is_text(table.column_type(column)):
        return ""
    return (
        f"Read it with the prompt: {set_option(f'columns.{role}', column)}. Or leave it out: "
        f"{set_option('ignore', column)}."
    )


def _as_choices(table: Table, column: str, roles: Mapping[str, str]) -> str:
    prompt = next((roles[role] for role in ("prompt", "source", "text") if role in roles), None)
    target = roles.get("label") or roles.get("answer") or roles.get("target")
    if prompt is None or target is None:
        return ""
    whole = next((name for name in table.columns if continues(table, name, prompt)), prompt)
    named = {"prompt": whole, "choices": column, "answer": target}
    options = " ".join(set_option(f"columns.{role}", name) for role, name in named.items())
    return (
        f"Learn to write the right choice, with a causal model: --task sft {options}. To train "
        "without the choices: --set accept=SF145."
    )


JUDGEMENT = Meaning(
    word_set(
        "label labels kto desirable good preferred accepted approved chosen feedback helpful "
        "correct thumbs"
    ),
    find_judgements,
    JUDGED_ANSWERS,
    lead="judges the answers",
)
SCORE = Meaning(
    word_set(
        "score scores rating ratings reward rewards rank ranking helpfulness correctness quality "
        "preference vote votes upvotes"
    ),
    find_scores,
    SCORED_ANSWERS,
)
FURTHER_TEXT = Meaning(frozenset(), find_second_text, TEXT_NOT_READ, fix=_as_pair)
CONTEXT = Meaning(
    word_set(
        "contexts passages documents "
        "reasoning thinking thought thoughts rationale cot explanation solution hint system history"
    )
    | SUBJECTS,
    find_context,
    TEXT_NOT_READ,
    fix=_as_context,
)
MEDIA = Meaning(
    word_set("image images img picture pictures photo photos audio audios video videos"),
    find_media,
    MEDIA_NOT_READ,
)
SPLIT = Meaning(
    frozenset({"split", "subset", "partition", "fold", "set"}), find_parts, SPLIT_NOT_READ, True
)
WEIGHT = Meaning(frozenset({"weight", "weights"}), find_weights, WEIGHTS_NOT_READ)

RIVAL = Meaning(frozenset(), find_rival, COULD_BE_MEANT, fix=_as_role)

CHOICES = Meaning(
    word_set("choices options endings alternatives candidates"),
    find_choices,
    CHOICES_NOT_READ,
    fix=_as_choices,
)

NUMBERED_CHOICES = Meaning(
    frozenset(),
    find_numbered_choice,
    CHOICES_NOT_READ,
    fix=lambda table, column, roles: (
        "Write the choices as lists into one column 'choices': with a causal model and --task sft, "
        "they are read with the prompt. To train without them: --set accept=SF145."
    ),
)

USUAL = (SPLIT, WEIGHT, RIVAL)
"""What columns may mean in the data of any task."""
OF_TEXTS = (CHOICES, NUMBERED_CHOICES, FURTHER_TEXT, *USUAL)
"""What columns may mean beside a text and its label."""
OF_TEXT_ALONE = (
    Meaning(frozenset(), find_text_beside, TEXT_NOT_READ, fix=_as_answer),
    *USUAL,
)
"""What columns may mean beside a text that is all that is learned."""
OF_ANSWERS = (JUDGEMENT, SCORE, MEDIA, CHOICES, NUMBERED_CHOICES, CONTEXT, *USUAL)
"""What columns may mean beside prompts and answers."""
