"""Rows that contain several examples, flattened: SQuAD's questions, self-instruct's instances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from surefit.data.formats.text_records import Records
from surefit.data.stored_messages import storable
from surefit.findings import Finding, rule

NESTED_ROWS_FLATTENED = rule(
    "SF114",
    "info",
    "nested rows flattened",
    why="What a row contains as objects or lists becomes rows, or columns that a task reads.",
    fix="Nothing to do.",
)


Row = dict[str, Any]


def flatten(records: Records, path: Path) -> Records:
    """The records, with nested ones flattened; the first of each kind is reported.

    Dialogues stay in their row, converted to one type.
    """
    reported: set[str] = set()
    for record in records:
        if isinstance(record, Finding):
            yield record
            continue
        number, row = record
        kind = next((kind for kind, (fits, _) in KINDS.items() if fits(row)), None)
        if kind is None:
            yield number, {name: storable(value) for name, value in row.items()}
            continue
        for flat in KINDS[kind][1](row):
            if kind not in reported:
                reported.add(kind)
                message = f"{path.name}: {kind}; the columns are {', '.join(flat)}."
                yield NESTED_ROWS_FLATTENED.finding(message, file=str(path), line=number)
            yield number, flat


def _has_instances(row: Row) -> bool:
    return _is_list_of_objects(row.get("instances")) and all(
        "output" in instance for instance in row["instances"]
    )


def _has_questions(row: Row) -> bool:
    return _is_list_of_objects(row.get("paragraphs")) or _is_list_of_objects(row.get("qas"))


def _has_answers(row: Row) -> bool:
    answers = row.get("answers")
    nested = isinstance(answers, dict) and "text" in answers
    nested = nested or (bool(answers) and _is_list_of_objects(answers))
    return "question" in row and "answer" not in row and nested


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _instances(row: Row) -> Iterator[Row]:
    """One row per instance; a task without instances keeps its row, which counts as empty."""
    rest = {name: value for name, value in row.items() if name != "instances"}
    for instance in row["instances"] or [{"input": None, "output": None}]:
        yield {**rest, **instance}


def _questions(row: Row) -> Iterator[Row]:
    """One row per question, with its title and context."""
    inner = "paragraphs" if "paragraphs" in row else "qas"
    rest = {name: value for name, value in row.items() if name != inner}
    for part in row[inner]:
        if inner == "paragraphs":
            yield from _questions({**rest, **part}) if "qas" in part else [{**rest, **part}]
        else:
            yield from _answers({**rest, **part})


def _answers(row: Row) -> Iterator[Row]:
    """The first answer as `answer`; the texts and positions of all answers as lists.

    Their texts are `references` as well: all of them are right.
    """
    given = row.get("answers")
    if isinstance(given, dict):
        texts, starts = given.get("text") or [], given.get("answer_start")
    else:
        texts = [answer.get("text") for answer in given or []]
        starts = [answer.get("answer_start") for answer in given or []]
    first: Row = {name: row[name] for name in ("id", "title", "context", "question") if name in row}
    rest = {name: value for name, value in row.items() if name not in (*first, "answers")}
    flat: Row = {**first, "answer": texts[0] if texts else None, "answers": texts}
    flat["references"] = [text for text in texts if text]
    if starts is not None:
        flat["answer_start"] = starts
    yield flat | rest


_Kind = tuple[Callable[[Row], bool], Callable[[Row], Iterator[Row]]]

KINDS: dict[str, _Kind] = {
    "each instance becomes a row": (_has_instances, _instances),
    "each question becomes a row, with its context and answers": (_has_questions, _questions),
    "the first of several answers is used as the answer": (_has_answers, _answers),
}
"""What is flattened: how it is recognised, and the function that does it."""
