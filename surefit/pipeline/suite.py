"""A suite of prompts with what is right for each: `evaluate --suite`; and the loss of a plain text.

A row has a prompt, in any form that the task reads, and one of `exact` and `f1` (the expected text,
or a list of them), `regex` (searched in the answer) and `function` (`module:function`, which gets
the answer and the row, and returns a score).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.core.patterns import NoPatternError, matcher
from surefit.data.python.objects import open_object
from surefit.errors import RunFailedError, UsageError, describe_error
from surefit.targets.metrics.token_metrics import exact_match, token_f1

if TYPE_CHECKING:
    from surefit.data.table import Table
    from surefit.inputs.store import Store
    from surefit.pipeline.pipeline import Pipeline

KINDS = ("exact", "regex", "f1", "function")
Item = dict[str, Any]
MOST_TOKENS = 1024
"""Tokens of a plain text that are read at once, at most."""


def judge_suite(
    table: Table,
    answer: Callable[[Table], Iterable[Mapping[str, Any]]],
    find: Callable[[str], Any],
) -> tuple[tuple[Item, ...], dict[str, float]]:
    """Return each item with its answer and score, and the mean score of each kind and of all.

    `answer` gives a prediction for each row of a table, `find` a function by its name.
    """
    judged = [name for name in table.columns if name in KINDS]
    known = []
    for number, row in enumerate(table.rows()):
        asked = {kind: row[kind] for kind in judged if row[kind] is not None}
        if len(asked) != 1:
            raise UsageError(
                f"Row {number} of {table.where(number)['file']} has "
                f"{' and '.join(asked) or 'none'} of {', '.join(KINDS)}.",
                "Write one of them into each row, with what is right.",
            )
        [(kind, expected)] = asked.items()
        if kind == "function":
            find(expected)  # refused before anything is generated
        known.append(({"row": number, "kind": kind, "expected": expected}, row))
    items = []
    for (item, row), prediction in zip(known, answer(table.without(judged)), strict=True):
        got = prediction["prediction"]
        score = 0.0 if got is None else _score(item, row, str(got), find)
        items.append({**item, "prompt": prediction.get("prompt"), "answer": got, "score": score})
    by_kind = {kind: [each["score"] for each in items if each["kind"] == kind] for kind in KINDS}
    by_kind["all"] = [each["score"] for each in items]
    return tuple(items), {kind: float(np.mean(each)) for kind, each in by_kind.items() if each}


def _score(item: Item, row: Mapping[str, Any], answer: str, find: Callable[[str], Any]) -> float:
    kind, expected = item["kind"], item["expected"]
    if kind == "exact":
        return exact_match(expected, answer)
    if kind == "f1":
        return token_f1(expected, answer)
    if kind == "regex":
        try:
            with matcher(expected, f"row {item['row']} of the suite") as pattern:
                return float(any(groups for _, _, groups in pattern.each([(0, answer)], "search")))
        except NoPatternError as error:
            message = f"Row {item['row']} of the suite: {expected!r} is no regular expression"
            raise UsageError(f"{message} ({error}).", "Correct it.") from None
    function = find(expected)
    try:
        return float(function(answer, row))
    except Exception as error:
        raise RunFailedError(
            f"Row {item['row']} of the suite: {expected} failed: {describe_error(error)}",
            "Let it take the answer and the row, and return a score, True or False.",
        ) from error


def encode_plain(pipeline: Pipeline, table: Table) -> tuple[Pipeline, Store]:
    """Return the lines of a text as blocks of tokens in which every token is predicted."""
    encoder, name = pipeline.encoder, table.sources[0].file
    if "text" not in table.columns:
        raise UsageError(f"{name} has no column 'text'.", "Name a text file.")
    if encoder.tokenizer is None or "input_ids" not in pipeline.task.role_names:
        raise UsageError(
            f"{pipeline.task.name} has no perplexity of a plain text.",
            "It is for language models: tasks such as sft and causal-lm.",
        )
    text = "\n".join(str(row["text"] or "") for row in table.rows())
    ids = encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
    size = min(encoder.max_length or MOST_TOKENS, MOST_TOKENS)
    blocks = [ids[start : start + size] for start in range(0, len(ids), size)]
    rows = [{"input_ids": block} for block in blocks if len(block) > 1]
    if not rows:
        raise UsageError(f"{name} has no text.", "Name a file with some sentences.")
    encoder = replace(encoder, roles={"input_ids": "input_ids"}, extras={})
    pipeline = replace(pipeline, encoder=encoder)
    return pipeline, pipeline.encode(pipeline.accept(open_object(rows)), np.arange(len(rows)))
