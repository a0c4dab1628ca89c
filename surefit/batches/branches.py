"""Rows of several sequences, which are rows of their own in a batch.

Two answers may have one prompt, which is stored once: the tokens of such a row are its prompt, its
first answer and its second answer. A batch has two sequences for it, or one in which the answers
share the prompt and do not see each other. Sequences of other rows are stored one behind the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import IGNORE_INDEX, Field, starts_in_time

Array = npt.NDArray[Any]

PROMPT, FIRST = "prompt_length", "first_length"
"""Columns with the number of tokens of the prompt and of the first answer."""
LENGTHS = "sequence_lengths"
"""The column with the number of tokens of each sequence of a row, if they share none."""
SIDE = "side"
"""The column of a batch with the number of each sequence in its row, from 0."""
SIDES = ("_first", "_second")
"""How the names of two columns end that become one column with a value for each sequence."""


def is_branched(columns: Mapping[str, Any]) -> bool:
    """Return whether rows have two answers behind one prompt."""
    return FIRST in columns


def branch_bounds(prompt: int, first: int, total: int) -> tuple[slice, slice, slice]:
    """Return where the prompt and the two answers are in a row.

    >>> branch_bounds(2, 3, 6)
    (slice(0, 2, None), slice(2, 5, None), slice(5, 6, None))
    """
    return slice(0, prompt), slice(prompt, prompt + first), slice(prompt + first, total)


def split_branches(
    columns: Mapping[str, Sequence[Array]], fields: Mapping[str, Field]
) -> tuple[dict[str, list[Array]], dict[str, Field]]:
    """Return two sequences for each row, and their Fields: the prompt with either answer.

    Labels of prompts are left out: only answers are predicted.

    >>> ids, one = Field(("time",), "int64"), Field((), "int64")
    >>> rows = {"input_ids": [np.array([5, 6, 7, 8])], "prompt_length": [2], "first_length": [1]}
    >>> columns, _ = split_branches(rows, {"input_ids": ids, **dict.fromkeys([PROMPT, FIRST], one)})
    >>> [each.tolist() for each in columns["input_ids"]], [int(each) for each in columns["side"]]
    ([[5, 6, 7], [5, 6, 8]], [0, 1])
    """
    prompts, firsts = columns[PROMPT], columns[FIRST]
    made: dict[str, list[Array]] = {}
    kinds: dict[str, Field] = {}
    for name, values in columns.items():
        spec = fields[name]
        base = next((name.removesuffix(end) for end in SIDES if name.endswith(end)), name)
        if base != name:
            if name == base + SIDES[0]:
                pairs = zip(values, columns[base + SIDES[1]], strict=True)
                made[base] = [np.asarray(each) for pair in pairs for each in pair]
                kinds[base] = spec
            continue
        made[name], kinds[name] = [], spec
        for value, prompt, first in zip(values, prompts, firsts, strict=True):
            if not spec.axes:
                made[name] += [np.asarray(value)] * 2
                continue
            parts = branch_bounds(int(prompt), int(first), len(value))
            shared, *answers = (value[part] for part in parts)
            if name == "labels":
                shared = np.full_like(shared, IGNORE_INDEX)
            made[name] += [np.concatenate([shared, answer]) for answer in answers]
    del made[PROMPT], made[FIRST]
    made[SIDE] = [np.asarray(side) for side in (0, 1)] * len(prompts)
    kinds[SIDE] = Field((), "int64")
    return made, kinds


def split_sequences(
    columns: Mapping[str, Sequence[Array]], fields: Mapping[str, Field]
) -> tuple[dict[str, list[Array]], dict[str, Field]]:
    """Return the sequences of each row as rows of their own, and their Fields.

    >>> ids, lengths = Field(("time",), "int64"), Field(("sequences",), "int64")
    >>> rows = {"input_ids": [np.array([5, 6, 7])], LENGTHS: [np.array([1, 2])]}
    >>> columns, _ = split_sequences(rows, {"input_ids": ids, LENGTHS: lengths})
    >>> [each.tolist() for each in columns["input_ids"]], [int(each) for each in columns["side"]]
    ([[5], [6, 7]], [0, 1])
    """
    lengths = columns[LENGTHS]
    made: dict[str, list[Array]] = {}
    for name, values in columns.items():
        rows = [*zip(values, lengths, strict=True)]
        if starts_in_time(fields[name]):
            ends = ((value, np.cumsum(each)[:-1]) for value, each in rows)
            made[name] = [part for value, end in ends for part in np.split(value, end)]
        elif name != LENGTHS:
            made[name] = [np.asarray(value) for value, each in rows for _ in each]
    made[SIDE] = [np.asarray(side) for each in lengths for side in range(len(each))]
    return made, {**fields, SIDE: Field((), "int64")}


def share_prompts(
    columns: Mapping[str, Sequence[Array]], fields: Mapping[str, Field]
) -> dict[str, Any]:
    """Return rows one behind another, each with its prompt once, and what each sequence has.

    Positions of the second answer go on from the prompt, and the prompt's last token predicts the
    first one of both. `row_branches` has the tokens of each prompt and of each first answer.

    >>> one = Field((), "int64")
    >>> kinds = {"input_ids": Field(("time",), "int64"), **dict.fromkeys([PROMPT, FIRST], one)}
    >>> kinds["labels"] = kinds["input_ids"]
    >>> ids = [np.array([5, 6, 7, 8, 9])]
    >>> rows = {"input_ids": ids, "labels": ids, "prompt_length": [2], "first_length": [2]}
    >>> batch = share_prompts(rows, kinds)
    >>> batch["position_ids"].tolist(), batch["labelled_positions"].tolist()
    ([[0, 1, 2, 3, 2]], [1, 2, 1])
    """
    apart, kinds = split_branches(columns, fields)
    batch: dict[str, Any] = {
        name: np.array(values, kinds[name].batch_dtype)
        for name, values in apart.items()
        if not kinds[name].axes
    }
    for name in apart.keys() - batch.keys():
        batch[name] = np.concatenate(columns[name])[None].astype(kinds[name].batch_dtype)
    steps, predictors, sides, start = [], [], [], 0
    lengths = [len(row) for row in columns["input_ids"]]
    branches = [(int(p), int(f)) for p, f in zip(columns[PROMPT], columns[FIRST], strict=True)]
    for number, (length, (prompt, first)) in enumerate(zip(lengths, branches, strict=True)):
        place = np.arange(length)
        is_second = place >= prompt + first
        before = place - 1
        before[prompt + first : prompt + first + 1] = prompt - 1
        before[:prompt] = -1  # prompts are not predicted
        steps.append(place - is_second * first)
        predictors.append(np.where(before < 0, -1, before + start))
        sides.append(2 * number + is_second)
        start += length
    predictor, labels = np.concatenate(predictors), batch["labels"][0]
    at = np.flatnonzero((labels != IGNORE_INDEX) & (predictor >= 0))
    return {
        **batch,
        "position_ids": np.concatenate(steps)[None],
        "row_lengths": tuple(lengths),
        "row_branches": tuple(branches),
        "labelled_targets": labels[at],
        "labelled_positions": predictor[at],
        "labelled_rows": np.concatenate(sides)[at],
    }


def cut_row(
    row: Mapping[str, Any], fields: Mapping[str, Field], limit: int, from_end: bool = False
) -> dict[str, Any]:
    """Return a row with the first, or last, `limit` steps of each sequence; of a prompt and each of
    its two answers, a third as many, and of each of several sequences its share.
    """
    if LENGTHS in row:
        each = np.asarray(row[LENGTHS])
        kept_each = np.minimum(each, max(1, limit // len(each)))
        pairs = zip(np.cumsum(each) - each, kept_each, strict=True)
        at = np.concatenate([np.arange(start, start + count) for start, count in pairs])
        within = {n: v[at] for n, v in row.items() if starts_in_time(fields[n])}
        return {**row, **within, LENGTHS: kept_each}
    if not is_branched(row):
        kept = slice(-limit, None) if from_end else slice(limit)
        return {n: v[kept] if starts_in_time(fields[n]) else v for n, v in row.items()}
    size = max(1, limit // 3)
    sizes = int(row[PROMPT]), int(row[FIRST]), len(row["input_ids"])
    _, *answers = branch_bounds(*sizes)
    cut = [np.arange(sizes[2])[part][:size] for part in answers]
    places = np.concatenate([np.arange(sizes[0])[-size:], *cut])
    number = np.asarray(row[PROMPT]).dtype.type
    lengths = {PROMPT: number(min(size, sizes[0])), FIRST: number(len(cut[0]))}
    return {n: v[places] if fields[n].axes else v for n, v in row.items()} | lengths


def sequence_lengths(lengths: Array, prompts: Array, firsts: Array) -> Array:
    """Return the tokens of the longer sequence of each row.

    >>> sequence_lengths(np.array([9]), np.array([4]), np.array([2])).tolist()
    [7]
    """
    longest: Array = prompts + np.maximum(firsts, lengths - prompts - firsts)
    return longest
