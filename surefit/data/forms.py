"""The forms of data that people have, beyond columns with usual names: one table of Forms.

A Form recognises its columns and makes usual ones of them: the answers of SQuAD, the turns of CoQA,
translations. Some make columns that only certain tasks read, such as a chosen and a rejected
answer: other tasks refuse such rows, because training on them as they are would teach something
else. To add a form, add a function that recognises it and a row to the table. Columns with usual
names are matched to roles in `roles.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import set_option
from surefit.data.cache import fingerprint
from surefit.data.column_types import (
    fields_of,
    is_dialogue,
    is_list,
    is_number,
    is_object,
    is_text,
    is_text_list,
)
from surefit.data.column_values import (
    has_words,
    holds_answers,
    is_metadata,
    word_set,
    words_of,
)
from surefit.data.marked_spans import find_spans, tag_words
from surefit.data.roles import get_role
from surefit.data.stored_messages import ANSWERING
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.findings import note, rule

PREFERENCE_PAIRS = rule(
    "SF130",
    "error",
    "preference data is not instruction data",
    why=(
        "Each row has a better and a worse answer. Training as if they were instructions would "
        "teach the worse ones, too, or nothing."
    ),
    fix="Tune by preference (DPO and others): --task preference. Or train on the better answers "
    "alone: --set columns.answer=chosen.",
)

DIALOGUES = get_role("messages").names
TURNS = (("input", "output"), ("question", "answer"), ("user", "assistant"), ("prompt", "response"))
"""Names of what is said by each side in one turn, as Capybara's objects have them."""
SPEAKERS, SAID = ("speaker", "author", "sender"), ("utterance", "message", "text", "content")
"""Names of who says something, and what, beside the usual role and content."""
NAMES_ONE = word_set(
    "label labels correct right gold best key choice choices options index incorrect distractors "
    "score scores rating ratings rank ranks ranking reward rewards preference votes"
)
"""Words in the name of a column that says which of several answers is right, or better."""
LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]{2,4})?")

CHOSEN = word_set("chosen preferred winner winning accepted better good")
REJECTED = word_set("rejected dispreferred unpreferred nonpreferred loser losing worse bad")
ANSWERS = word_set(
    "response responses answer answers completion completions output outputs summary summaries "
    "reply replies generation generations candidate candidates ref"
)
COMPARED = ANSWERS | word_set("conversation conversations messages dialogue chat")
"""Answers, or whole dialogues with an answer, which a judge compares."""
JUDGES = word_set(
    "preference preferred better best winner choice chosen score scores rating ratings rank ranks "
    "ranking reward rewards label labels safer"
)
LEARNED = frozenset({"answer", "messages", "target", "text", "input_ids"})
"""Roles with which the user says what is learned."""
NUMBERED = re.compile(r"(?P<stem>.*[^\W_])[_ -]?(?P<number>[0-9a-eA-EjkJK])")
"""The name of one of several columns of a kind: `response_0`, `option2`, `answerA`."""

Made = Mapping[str, pa.ChunkedArray]
PAIR = ("chosen", "rejected")
"""The roles of a better and a worse answer."""


@dataclass(frozen=True)
class Found:
    """The columns that have a form, and what is read in their place."""

    columns: tuple[str, ...]
    made: Made = field(default_factory=dict)
    """Usual columns, which take the place of those of the form."""
    chosen: str | None = None
    """Of preference data, the column of the better answers."""
    remark: str = ""
    """What is to be said of how they were made."""


@dataclass(frozen=True)
class Form:
    """A shape of data that people have."""

    rows_have: str
    """What a row has, in words."""
    find: Callable[[Table], Iterator[Found]]
    roles: tuple[str, ...] = ()
    """Roles that a task must have to read such rows; other tasks refuse them. Every task can read
    those of a Form without."""


def spread_columns(table: Table, roles: Collection[str] = ()) -> Table:
    """Return the table with usual columns in place of those of each Form.

    Forms that only certain tasks read are spread for a task that has their `roles`.
    """
    for form in FORMS:
        if form.roles and not {*form.roles} <= {*roles}:
            continue
        while (found := next(form.find(table), None)) is not None and found.made:
            table = _spread(table, found)
    return table


def refuse_forms(table: Table, roles: Collection[str], chosen: Mapping[str, str]) -> None:
    """Raise if the rows have a Form that no task with these roles reads, unless the user names
    what to learn (`columns.answer=chosen`).
    """
    for form in FORMS if LEARNED.isdisjoint(chosen) else ():
        if not {*form.roles} <= {*roles}:
            found = next(form.find(table), None)
            if found is not None:
                raise _refusal(table, form, found)


def _refusal(table: Table, form: Form, found: Found) -> FindingError:
    """Return the refusal of preference data, with how to train on the better answers alone."""
    named = set_option("columns.answer", found.chosen or "")
    fix = f"Tune by preference: --task preference. Or train on the better answers alone: {named}."
    if found.chosen is None:
        fix = (
            "To tune by preference (--task preference), write the better and the worse answer of "
            "each row into columns 'chosen' and 'rejected'. To train on the better answers alone, "
            "write them into a column of their own, such as 'answer'."
        )
    kind = table.column_type(found.columns[0])
    has_one = is_text(kind) or (
        is_dialogue(kind) and not {"role", "from"}.isdisjoint(fields_of(kind.value_type))
    )
    if found.chosen is None and has_one:
        named = set_option("columns.answer", found.columns[0])
        fix += f" Or train on those of one column: {named}."
    shown = ", ".join(map(repr, found.columns))
    return PREFERENCE_PAIRS.error(
        f"The {table.num_rows} rows are preference data: {form.rows_have} ({shown}).",
        fix=fix,
        file=table.sources[0].file,
        column=found.chosen or found.columns[0],
    )


def read_whole_answers(table: Table, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the user's columns by role, where `columns.answer` names answers together with their
    prompts.

    Dialogues are messages. Of texts, the prompt is what they have in common with the rejected ones.
    """
    column = chosen.get("answer")
    if column not in table.columns or "prompt" in chosen or "messages" in chosen:
        return dict(chosen)
    others = {role: name for role, name in chosen.items() if role != "answer"}
    kind = table.column_type(column)
    dialogues = table.profile(column).first if is_dialogue(kind) else []
    firsts = [turns[0] for turns in dialogues if turns]
    names = [str(turn.get("role") or turn.get("from")).lower() for turn in firsts]
    if sum(name not in ANSWERING for name in names) > 0.5 * len(names):  # prompts are there, too
        return {**others, "messages": column}
    rejected = _answers_of(table, "rejected")
    if not is_text(kind) or not rejected or _has_prompt(table.without([column])):
        return dict(chosen)
    return {**chosen, "prompt": column, "rejected": rejected[0]}


def _has_prompt(table: Table) -> bool:
    names = (*get_role("prompt").names, *get_role("messages").names)
    return any(n.lower() in names and holds_answers(table.column_type(n)) for n in table.columns)


def _find_translations(table: Table) -> Iterator[Found]:
    """`translation: {"en": …, "fr": …}`."""
    for name in table.columns:
        fields = fields_of(table.column_type(name))
        named = len(fields) > 1 and all(map(LANGUAGE.fullmatch, fields))
        if named and all(map(is_text, fields.values())):
            texts = {f"{name}.{each}": pc.struct_field(table.arrow[name], each) for each in fields}
            yield Found((name,), texts)


def _find_turns(table: Table) -> Iterator[Found]:
    """`conversation: [{"input": …, "output": …}, …]`, as Capybara has it."""
    for name in table.columns:
        kind = table.column_type(name)
        if name not in DIALOGUES or not is_dialogue(kind) or not table.num_rows:
            continue
        fields = fields_of(kind.value_type)
        pair = next((pair for pair in TURNS if {*pair} == {*fields}), None)
        if pair is not None and all(map(is_text, fields.values())):
            turns = [
                _dialogues(chunk, *(pc.struct_field(chunk.flatten(), side) for side in pair))
                for chunk in table.arrow[name].chunks
            ]
            yield Found((name,), {"messages": pa.chunked_array(turns)})


def name_roles(table: Table, roles: Mapping[str, str]) -> Table:
    """Return the table with the usual names of the roles of messages, which have other ones."""
    for name in table.columns if roles else ():
        kind = table.column_type(name)
        names = fields_of(kind.value_type) if is_dialogue(kind) else ()
        if not {"role", "from"}.isdisjoint(names):
            made = _with_fields(table.arrow[name], {each: each for each in names}, roles)
            arrow = table.arrow.set_column(table.columns.index(name), name, made)
            table = replace(table, arrow=arrow, key=fingerprint(table.key, [*roles.items()]))
    return table


def _find_speakers(table: Table) -> Iterator[Found]:
    """`dialogue: [{"speaker": …, "utterance": …}, …]`."""
    for name in table.columns:
        kind = table.column_type(name)
        if name not in DIALOGUES or not is_dialogue(kind):
            continue
        fields = fields_of(kind.value_type)
        pairs = [[n for n in fields if n in names] for names in (SPEAKERS, SAID)]
        if {"role", "from"}.isdisjoint(fields) and all(len(each) == 1 for each in pairs):
            usual = dict(zip((each[0] for each in pairs), ("role", "content"), strict=True))
            names = {each: usual.get(each, each) for each in fields}
            yield Found((name,), {"messages": _with_fields(table.arrow[name], names)})


def _with_fields(
    lists: pa.ChunkedArray, names: Mapping[str, str], roles: Mapping[str, str] | None = None
) -> pa.ChunkedArray:
    """Return lists of objects with other names of their fields, and of the roles in them."""
    made = []
    for chunk in lists.chunks:
        objects = chunk.flatten()
        values = [pc.struct_field(objects, name) for name in names]
        if roles:
            own, usual = pa.array([*roles]), pa.array([*roles.values()])
            values = [
                pc.coalesce(usual.take(pc.index_in(each, own)), each)
                if name in ("role", "from")
                else each
                for name, each in zip(names, values, strict=True)
            ]
        objects = pa.StructArray.from_arrays(values, [*names.values()])
        made.append(pa.ListArray.from_arrays(pa.array(_ends(chunk), pa.int32()), objects))
    return pa.chunked_array(made)


def _find_spoken_lists(table: Table) -> Iterator[Found]:
    """`dialog: ["…", "…", …]`, as DailyDialog has it: what two sides say in turn."""
    names = {name.lower() for name in table.columns}
    learned = {name for role in ("answer", "target", "label") for name in get_role(role).names}
    for name in table.columns if names.isdisjoint(learned) else ():
        # `turns` may be the questions alone, as MT-Bench has them.
        if name in DIALOGUES and name != "turns" and is_text_list(table.column_type(name)):
            chunks = [_in_turn(chunk) for chunk in table.arrow[name].chunks]
            yield Found((name,), {"messages": pa.chunked_array(chunks)} if chunks else {})


def _in_turn(lists: pa.Array, texts: pa.Array | None = None, sides: int = 1) -> pa.ListArray:
    """Return messages, by user and assistant in turn, for each of the lists: its texts, or `texts`,
    which has so many for each value."""
    ends = sides * _ends(lists)
    texts = lists.flatten().cast(pa.string()) if texts is None else texts
    place = np.arange(len(texts)) - np.repeat(ends[:-1], np.diff(ends))
    roles = pa.array(np.where(place % 2, "assistant", "user"), pa.string())
    messages = pa.StructArray.from_arrays([roles, texts], ["role", "content"])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), messages)


def _ends(lists: pa.Array) -> npt.NDArray[np.int64]:
    """Return where each list begins among the values of all, and where the last one ends."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _find_lists_of_turns(table: Table) -> Iterator[Found]:
    """`questions` and `answers` of one length: texts, or CoQA's objects with texts."""
    names = ("questions", "answers")
    if not {*names} <= {*table.columns} or "messages" in table.columns or not table.num_rows:
        return
    asked, answered = (table.arrow[name] for name in names)
    if "input_text" in fields_of(answered.type):
        answered = pc.struct_field(answered, "input_text")
    if not is_text_list(asked.type) or not is_text_list(answered.type):
        return
    sizes = [pc.fill_null(pc.list_value_length(each), 0) for each in (asked, answered)]
    if sizes[0].equals(sizes[1]):
        turns = [
            _dialogues(batch["asked"], batch["asked"].flatten(), batch["answered"].flatten())
            for batch in pa.table({"asked": asked, "answered": answered}).to_batches()
        ]
        yield Found(names, {"messages": pa.chunked_array(turns)})


def _dialogues(lists: pa.Array, asked: pa.Array, answered: pa.Array) -> pa.ListArray:
    """Return one list of messages for each of the lists: what is asked, and its answer."""
    texts = pa.concat_arrays([part.cast(pa.string()) for part in (asked, answered)])
    order = np.arange(len(texts)).reshape(2, -1).T.ravel()
    return _in_turn(lists, texts.take(pa.array(order)), sides=2)


def _find_answer_objects(table: Table) -> Iterator[Found]:
    """`answers: {"text": […], "answer_start": […]}`, or a list of such objects, as SQuAD has it."""
    if not {"answers", "question"} <= {*table.columns} or "answer" in table.columns:
        return
    kind, answers = table.column_type("answers"), table.arrow["answers"]
    fields = fields_of(kind)
    if is_dialogue(kind) and not any(
        has_words(each, JUDGES) for each in fields_of(kind.value_type)
    ):
        fields = {name: pa.list_(each) for name, each in fields_of(kind.value_type).items()}
    if "text" not in fields or not is_text_list(fields["text"]):
        return
    read = [name for name in ("text", "answer_start") if name in fields]
    texts, *starts = (_values_of(answers, name) for name in read)
    made = {**_first_of(texts), "answers": texts}
    yield Found(("answers",), made | dict(zip(read[1:], starts, strict=True)))


def _values_of(objects: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return the value of each object, or the list of those of each list of objects."""
    if is_object(objects.type):
        return pc.struct_field(objects, name)
    values = [pc.struct_field(chunk.flatten(), name) for chunk in objects.chunks]
    return pa.chunked_array(
        [
            pa.ListArray.from_arrays(pa.array(_ends(chunk), pa.int32()), each)
            for chunk, each in zip(objects.chunks, values, strict=True)
        ],
        pa.list_(fields_of(objects.type.value_type)[name]),
    )


def _find_answer_values(table: Table) -> Iterator[Found]:
    """`answer: {"value": …, "aliases": […]}`, as TriviaQA has it."""
    fields = fields_of(table.column_type("answer")) if "answer" in table.columns else {}
    if "value" not in fields or "from" in fields or not is_text(fields["value"]):
        return
    answers = table.arrow["answer"]
    made = {"answer": pc.struct_field(answers, "value")}
    if "aliases" in fields and is_text_list(fields["aliases"]):
        made["references"] = pc.struct_field(answers, "aliases")
    yield Found(("answer",), made)


def _find_answer_lists(table: Table) -> Iterator[Found]:
    """`answers: […]`, all of them right, where no column names one of them."""
    asked = not {*table.columns}.isdisjoint(get_role("prompt").names)
    for name in ("answers", "answer"):
        others = [each for each in table.columns if each != name]
        known = "answer" in others or any(has_words(each, NAMES_ONE) for each in others)
        if asked and not known and len(others) < len(table.columns):
            texts = table.arrow[name]
            if is_text_list(texts.type):
                yield Found((name,), _first_of(texts))


def _first_of(texts: pa.ChunkedArray) -> Made:
    """The first answer, missing where there is none, and all of them, which are right as well."""
    first = pc.list_slice(texts, 0, 1, return_fixed_size_list=True)
    return {"answer": pc.list_element(first, 0).cast(pa.string()), "references": texts}


def _find_marked(table: Table) -> Iterator[Found]:
    """`entities: [{"start": 0, "end": 3, "label": "PER"}, …]` beside a text."""
    for name in table.columns:
        if found := find_spans(table, name):
            made, remark = tag_words(table, name, *found)
            yield Found((name,), made, remark=remark)


def _find_pair(table: Table) -> Iterator[Found]:
    """`chosen` and `rejected`, under whatever name, as texts, messages or lists of them."""
    chosen, rejected = (next(iter(_answers_of(table, side)), None) for side in PAIR)
    if chosen is not None and rejected is not None:
        pair = (chosen, rejected)
        made = {} if pair == PAIR else dict(zip(PAIR, map(table.arrow.column, pair), strict=True))
        yield Found(pair, made, chosen)


def _answers_of(table: Table, side: str) -> list[str]:
    """Columns that may hold the chosen, or the rejected, answers; the shortest name first."""
    found = []
    for name in table.columns:
        words = {*words_of(name)}
        is_rejected = bool(words & REJECTED) or {"non", "preferred"} <= words
        named = is_rejected if side == "rejected" else words & CHOSEN and not is_rejected
        if named and not is_metadata(name) and holds_answers(table.column_type(name)):
            found.append(name)
    return sorted(found, key=len)


def _find_compared(table: Table) -> Iterator[Found]:
    """`response_0` and `response_1`, and a column that says which is better."""
    for stem, names in _numbered(table).items():
        judges = [n for n in table.columns if has_words(n, JUDGES) and n not in names]
        if judges and has_words(stem, COMPARED):
            yield Found((*names, judges[0]))


def _find_several(table: Table) -> Iterator[Found]:
    """`response_0` and `response_1` to a prompt, and no other answer."""
    if any(n.lower() in get_role("answer").names for n in table.columns) or not _has_prompt(table):
        return
    for stem, names in _numbered(table).items():
        if has_words(stem, ANSWERS):
            yield Found((*names,))


def _numbered(table: Table) -> dict[str, list[str]]:
    """Return columns that may hold answers and differ in a number, by what they have in common."""
    stems: dict[str, list[str]] = {}
    for name in table.columns:
        match = NUMBERED.fullmatch(name)
        if match and holds_answers(table.column_type(name)):
            stems.setdefault(match["stem"].lower(), []).append(name)
    return {stem: names for stem, names in stems.items() if len(names) > 1}


def _find_scored_lists(table: Table) -> Iterator[Found]:
    """A list of answers with a list of scores, or a list of objects with answers and scores."""
    lists = {n: table.column_type(n) for n in table.columns if is_list(table.column_type(n))}
    scores = [n for n in lists if is_number(lists[n].value_type) and has_words(n, JUDGES)]
    for name, kind in lists.items():
        if not has_words(name, ANSWERS):
            continue
        if is_text_list(kind) and scores:
            yield Found((name, scores[0]))
        if is_object(kind.value_type) and any(
            has_words(each, JUDGES) for each in fields_of(kind.value_type)
        ):
            yield Found((name,))


FORMS = (
    Form("a text in each of several languages", _find_translations),
    Form("turns of a question and its answer", _find_turns),
    Form("messages whose fields have other names", _find_speakers),
    Form("a list of what two sides say in turn", _find_spoken_lists),
    Form("a list of questions and one of their answers", _find_lists_of_turns),
    Form("a question, and its answers with their places", _find_answer_objects),
    Form("a question, and its answer with aliases", _find_answer_values),
    Form("a question, and a list of right answers", _find_answer_lists),
    Form("a text, and places in it with labels", _find_marked),
    Form("a chosen and a rejected answer", _find_pair, PAIR),
    Form("several answers, and which is better", _find_compared, PAIR),
    Form("several answers to each prompt", _find_several, PAIR),
    Form("lists of answers with scores", _find_scored_lists, PAIR),
)
"""Every Form, in the order in which they are looked for."""


def _spread(table: Table, found: Found) -> Table:
    """Return the table with what is read in place of the columns of a form."""
    names, made = found.columns, found.made
    place = min(table.columns.index(name) for name in names)
    arrow = table.arrow.drop_columns(list(names))
    for at, (new, values) in enumerate(made.items()):
        arrow = arrow.add_column(place + at, new, values)
    read = f"Objects or lists in {', '.join(names)} are read as the columns {', '.join(made)}."
    said = note(
        f"{read}{found.remark}",
        file=table.sources[0].file,
        column=names[-1],
    )
    sources = tuple(
        replace(
            source,
            columns=tuple(
                column
                for old in source.columns
                for column in (made if old == names[-1] else [] if old in names else [old])
            ),
        )
        for source in table.sources
    )
    key = fingerprint(table.key, "spread", *names)
    return replace(table, arrow=arrow, sources=sources, key=key, findings=(*table.findings, said))
