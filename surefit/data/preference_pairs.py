"""Preference data: several answers to a prompt, of which one is better; its common forms.

TRL and LLaMA-Factory have `chosen` and `rejected`, OpenAI `preferred_output` and
`non_preferred_output`; other sets number the answers, or list them with scores.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from surefit.config import set_option
from surefit.data.column_types import is_dialogue, is_list, is_number, is_text, is_text_list
from surefit.data.column_values import holds_answers, is_metadata, sample, word_set, words_of
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.findings import rule

PREFERENCE_PAIRS = rule(
    "SF130",
    "error",
    "preference data is not instruction data",
    why=(
        "Each row has a better and a worse answer. Training as if they were instructions would "
        "teach the worse ones, too, or nothing. Preference tuning (DPO) is not available yet."
    ),
    fix="Train on the better answers alone: --set columns.answer=chosen.",
)

CHOSEN = word_set("chosen preferred winner winning accepted better good")
REJECTED = word_set("rejected dispreferred unpreferred nonpreferred loser losing worse bad")
ANSWERS = word_set(
    "response responses answer answers completion completions output outputs summary summaries "
    "reply replies generation generations candidate candidates ref"
)
DIALOGUES = word_set("conversation conversations messages dialogue chat")
"""Whole dialogues with an answer, which a judge compares."""
JUDGES = word_set(
    "preference preferred better best winner choice chosen score scores rating ratings rank ranks "
    "ranking reward rewards label labels safer"
)
ANSWERING = frozenset({"assistant", "gpt", "model", "bot", "chatgpt"})
LEARNED = frozenset({"answer", "messages", "target", "text", "input_ids"})
"""Roles with which the user says what is learned."""
NUMBERED = re.compile(r"(?P<stem>.*[^\W_])[_ -]?(?P<number>[0-9a-eA-EjkJK])")
"""The name of one of several columns of a kind: `response_0`, `option2`, `answerA`."""


@dataclass(frozen=True)
class Preference:
    """What the rows are, the columns that say it, and the column of the better answers."""

    form: str
    columns: tuple[str, ...]
    chosen: str | None = None

    def error(self, table: Table) -> FindingError:
        """The refusal, with how to train on the better answers alone."""
        fix = f"Train on the better answers alone: {set_option('columns.answer', self.chosen)}."
        if self.chosen is None:
            fix = "Write the better answer of each row into a column of its own, such as 'answer'."
        if self.chosen is None and _holds_one_answer(table.column_type(self.columns[0])):
            named = set_option("columns.answer", self.columns[0])
            fix += f" Or train on those of one column: {named}."
        shown = ", ".join(map(repr, self.columns))
        return PREFERENCE_PAIRS.error(
            f"The {table.num_rows} rows are preference data: {self.form} ({shown}). Preference "
            "tuning is not available yet.",
            fix=fix,
            file=table.sources[0].file,
            column=self.chosen or self.columns[0],
        )


def _holds_one_answer(kind: pa.DataType) -> bool:
    """Whether a column has one answer in each row: a text, or messages."""
    if is_dialogue(kind):
        return any(kind.value_type.get_field_index(name) >= 0 for name in ("role", "from"))
    return is_text(kind)


def refuse_preference(table: Table, chosen: Mapping[str, str]) -> None:
    """Raise for preference data, unless the user names what to learn (`columns.answer=chosen`)."""
    found = find_preference(table) if LEARNED.isdisjoint(chosen) else None
    if found is not None:
        raise found.error(table)


def find_preference(table: Table) -> Preference | None:
    """The form of preference data that a table has; None if it has none."""
    return _pair(table) or _numbered(table) or _scored_lists(table)


def read_whole_answers(table: Table, chosen: Mapping[str, str]) -> dict[str, str]:
    """The user's columns by role, where `columns.answer` names answers together with their prompts.

    Dialogues are messages. Of texts, the prompt is what they have in common with the rejected ones.
    """
    column = chosen.get("answer")
    if column not in table.columns or "prompt" in chosen or "messages" in chosen:
        return dict(chosen)
    others = {role: name for role, name in chosen.items() if role != "answer"}
    kind = table.column_type(column)
    if is_dialogue(kind) and _begins_with_prompt(sample(table, column)):
        return {**others, "messages": column}
    rejected = _answers_named(table, REJECTED, ("non", "preferred"))
    has_prompt = any(_may_be_prompt(table, name) for name in table.columns if name != column)
    if not is_text(kind) or not rejected or has_prompt:
        return dict(chosen)
    return {**chosen, "prompt": column, "rejected": rejected[0]}


def _may_be_prompt(table: Table, column: str) -> bool:
    names = (*get_role("prompt").names, *get_role("messages").names)
    return column.lower() in names and holds_answers(table.column_type(column))


def _begins_with_prompt(dialogues: list[Any]) -> bool:
    """Whether most dialogues begin with another message than an answer."""
    firsts = [turns[0] for turns in dialogues if turns]
    names = [str(turn.get("role") or turn.get("from")).lower() for turn in firsts]
    return sum(name not in ANSWERING for name in names) > 0.5 * len(names)


def _pair(table: Table) -> Preference | None:
    """`chosen` and `rejected`, under whatever name, as texts, messages or lists of them."""
    rejected = _answers_named(table, REJECTED, ("non", "preferred"))
    chosen = _answers_named(table, CHOSEN, without=rejected)
    if not chosen or not rejected:
        return None
    return Preference("a chosen and a rejected answer", (chosen[0], rejected[0]), chosen[0])


def _answers_named(
    table: Table,
    words: frozenset[str],
    phrase: tuple[str, ...] = (),
    without: Collection[str] = (),
) -> list[str]:
    """Columns that may hold answers, with one of the words in their names; the shortest first."""
    names = []
    for name in table.columns:
        has = words_of(name)
        fits = not words.isdisjoint(has) or (bool(phrase) and {*phrase} <= {*has})
        if fits and name not in without and not is_metadata(name):
            names.append(name)
    return sorted((n for n in names if holds_answers(table.column_type(n))), key=len)


def _numbered(table: Table) -> Preference | None:
    """`response_0` and `response_1`, and a column that says which is better; or no other answer."""
    judges = [n for n in table.columns if not JUDGES.isdisjoint(words_of(n))]
    stems: dict[str, list[str]] = {}
    for name in table.columns:
        match = NUMBERED.fullmatch(name)
        if match and holds_answers(table.column_type(name)):
            stems.setdefault(match["stem"].lower(), []).append(name)
    has_answer = any(name.lower() in get_role("answer").names for name in table.columns)
    for stem, names in stems.items():
        others = [judge for judge in judges if judge not in names]
        known = ANSWERS | DIALOGUES if others else ANSWERS
        if len(names) < 2 or known.isdisjoint(words_of(stem)):
            continue
        if others:
            return Preference("several answers, and which is better", (*names, others[0]))
        if not has_answer and any(_may_be_prompt(table, name) for name in table.columns):
            return Preference("several answers to each prompt", tuple(names))
    return None


def _scored_lists(table: Table) -> Preference | None:
    """A list of answers with a list of scores, or a list of objects with answers and scores."""
    scores = [
        name
        for name in table.columns
        if is_list(table.column_type(name))
        and is_number(table.column_type(name).value_type)
        and not JUDGES.isdisjoint(words_of(name))
    ]
    for name in table.columns:
        kind = table.column_type(name)
        if ANSWERS.isdisjoint(words_of(name)) or not is_list(kind):
            continue
        if is_text_list(kind) and scores:
            return Preference("lists of answers with scores", (name, scores[0]))
        if pa.types.is_struct(kind.value_type) and _has_scores(kind.value_type):
            return Preference("lists of answers with scores", (name,))
    return None


def _has_scores(kind: pa.StructType) -> bool:
    names = [kind.field(place).name for place in range(kind.num_fields)]
    return any(not JUDGES.isdisjoint(words_of(n)) for n in names)
