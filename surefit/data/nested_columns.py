"""Columns of objects and lists as columns of their own: translations, answers, CoQA's turns.

Files of JSON lines have their own reader for nested rows; this is for tables of any other origin.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.cache import fingerprint
from surefit.data.column_types import is_dialogue, is_object, is_text, is_text_list
from surefit.data.column_values import word_set, words_of
from surefit.data.table import Table
from surefit.findings import note

QUESTIONS = ("question", "query", "prompt")
DIALOGUES = ("conversation", "conversations", "messages", "dialogue", "dialog", "turns")
PAIRS = (("input", "output"), ("question", "answer"), ("user", "assistant"), ("prompt", "response"))
"""Names of what is said by each side in one turn, as Capybara's objects have them."""
NAMES_ONE = word_set(
    "label labels correct right gold best key choice choices options index incorrect distractors "
    "score scores rating ratings rank ranks ranking reward rewards preference votes"
)
"""Words in the name of a column that says which of several answers is right, or better."""

_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]{2,4})?")


def spread_columns(table: Table) -> Table:
    """The table, with columns of objects or lists that hold texts as columns that tasks read."""
    for name in table.columns:
        if name not in table.columns:  # read with another one
            continue
        kind = table.column_type(name)
        if is_object(kind) and _is_translation(kind):
            table = _spread(table, (name,), _translations(table, name))
        elif name in DIALOGUES and (turns := _paired_turns(table.arrow[name])) is not None:
            table = _spread(table, (name,), {"messages": turns})
        elif name == "answers" and (turns := _turns(table)) is not None:
            table = _spread(table, ("questions", name), {"messages": turns})
        elif name == "answers" and _has_answers(table, kind):
            texts = pc.struct_field(table.arrow[name], "text")
            table = _spread(table, (name,), {**_answers(texts), name: texts})
        elif name == "answer" and _has_value(kind):
            table = _spread(table, (name,), _value_and_aliases(table.arrow[name]))
        elif name in ("answer", "answers") and _has_answer_lists(table, name):
            table = _spread(table, (name,), _answers(table.arrow[name]))
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


def _has_answer_lists(table: Table, name: str) -> bool:
    """Whether lists hold the right answers to a question, and no column names one of them."""
    others = [each for each in table.columns if each != name]
    asked = any(each in table.columns for each in QUESTIONS)
    known = "answer" in others or any(not NAMES_ONE.isdisjoint(words_of(each)) for each in others)
    return asked and not known and is_text_list(table.column_type(name))


def _answers(texts: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """The first answer, and all of them, which are right as well."""
    first = pa.chunked_array([_first(chunk) for chunk in texts.chunks], pa.string())
    return {"answer": first, "references": texts}


def _has_value(kind: pa.DataType) -> bool:
    """Whether objects have the text of an answer as `value`, and are no messages."""
    place = kind.get_field_index("value") if is_object(kind) else -1
    is_message = is_object(kind) and kind.get_field_index("from") >= 0
    return place >= 0 and not is_message and is_text(kind.field(place).type)


def _value_and_aliases(answers: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """TriviaQA's answers, and the other ways to write each."""
    place = answers.type.get_field_index("aliases")
    made = {"answer": pc.struct_field(answers, "value")}
    if place >= 0 and is_text_list(answers.type.field(place).type):
        made["references"] = pc.struct_field(answers, "aliases")
    return made


def _paired_turns(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Lists of objects with a question and its answer as dialogues; None for other objects."""
    if not is_dialogue(column.type):
        return None
    kind = column.type.value_type
    fields = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
    pair = next((pair for pair in PAIRS if {*pair} == {*fields}), None)
    if pair is None or not all(is_text(each) for each in fields.values()):
        return None
    chunks = []
    for chunk in column.chunks:
        sizes = pc.fill_null(pc.list_value_length(chunk), 0).to_numpy(zero_copy_only=False)
        ends = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
        sides = [pc.struct_field(chunk.flatten(), name) for name in pair]
        chunks.append(_dialogues(*(pa.ListArray.from_arrays(ends, side) for side in sides)))
    return pa.chunked_array(chunks) if chunks else None


def _turns(table: Table) -> pa.ChunkedArray | None:
    """Lists of questions with as many answers as dialogues; None if a row is not of this form."""
    if "questions" not in table.columns or "messages" in table.columns:
        return None
    answers = table.arrow["answers"]
    place = answers.type.get_field_index("input_text") if is_object(answers.type) else -1
    answers = pc.struct_field(answers, "input_text") if place >= 0 else answers
    pairs = pa.table({"asked": table.arrow["questions"], "answered": answers})
    if not all(is_text_list(field.type) for field in pairs.schema):
        return None
    sizes = [pc.fill_null(pc.list_value_length(column), 0) for column in pairs.columns]
    if not sizes[0].equals(sizes[1]):
        return None
    chunks = [_dialogues(batch["asked"], batch["answered"]) for batch in pairs.to_batches()]
    return pa.chunked_array(chunks) if chunks else None


def _dialogues(asked: pa.ListArray, answered: pa.ListArray) -> pa.ListArray:
    """One list of messages for each row, by user and assistant in turn."""
    lengths = pc.fill_null(pc.list_value_length(asked), 0).to_numpy(zero_copy_only=False)
    total = int(lengths.sum())
    texts = pa.concat_arrays([part.flatten().cast(pa.string()) for part in (asked, answered)])
    in_turn = np.stack([np.arange(total), total + np.arange(total)], axis=1).ravel()
    roles = pa.array(["user", "assistant"] * total, pa.string())
    messages = pa.StructArray.from_arrays(
        [roles, texts.take(pa.array(in_turn))], ["role", "content"]
    )
    ends = 2 * np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), messages)


def _first(lists: pa.ListArray) -> pa.Array:
    """The first text of each list; missing where a list is empty."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    starts = np.cumsum(lengths) - lengths
    places = pa.array(starts, pa.int64(), mask=lengths == 0)
    return lists.flatten().take(places).cast(pa.string())


def _spread(table: Table, names: tuple[str, ...], made: dict[str, pa.ChunkedArray]) -> Table:
    place = min(table.columns.index(name) for name in names)
    arrow = table.arrow.drop_columns(list(names))
    for at, (new, values) in enumerate(made.items()):
        arrow = arrow.add_column(place + at, new, values)
    said = note(
        f"Objects or lists in {', '.join(names)} are read as the columns {', '.join(made)}.",
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
