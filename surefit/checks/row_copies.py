"""Rows that repeat others: in both sets, within one, and with another target."""

from __future__ import annotations

import numpy as np

from surefit.data.row_parts import RowParts
from surefit.data.split import NO_CONTENT, Hashes, Rows, count_repeats, find_contradictions
from surefit.data.table import Table
from surefit.findings import Finding, Place, rule

VALIDATION_ROWS_IN_TRAINING = rule(
    "SF210",
    "warning",
    "validation inputs that are also in training",
    why="The evaluation then measures memory, not learning.",
    fix="Remove the shared rows from one of the two sets.",
    accept="The validation rows are kept, and the metrics count them.",
)

IDENTICAL_ROWS = rule(
    "SF214",
    "info",
    "rows with identical content",
    why="An automatic split keeps them in one set; in training they count more than other rows.",
    fix="Nothing to do.",
)

CONTRADICTING_ROWS = rule(
    "SF223",
    "warning",
    "rows that contradict each other",
    why="They have the same input, but different targets. At most one of them can be right.",
    fix="Correct the targets of the named rows, or delete one of them.",
    accept="All of these rows are trained on.",
)

SEVERAL_TARGETS = rule(
    "SF224",
    "info",
    "several targets for one input",
    why="The model learns a mixture of them. All rows of an input are kept in one set.",
    fix="Nothing to do if all of them are right.",
)

SHOWN = 3
COMMON_SHARE = 0.25
"""An input that a larger share of the training rows has does not tell validation rows apart."""


def note_repeats(whole: Hashes, what: str) -> list[Finding]:
    """How many rows repeat another one."""
    repeats = count_repeats(whole)
    if not repeats:
        return []
    message = (
        f"{repeats:,} of {len(whole):,} {what} equal another row, apart from case, spaces and "
        "punctuation."
    )
    return [IDENTICAL_ROWS.finding(message)]


def check_shared_inputs(
    trained: tuple[Hashes, Hashes], shown: tuple[Hashes, Hashes], eval_table: Table, rows: Rows
) -> list[Finding]:
    """Validation rows whose input a training row has; of common inputs, equal rows only."""
    names, sizes = np.unique(trained[0], return_counts=True)
    common = names[sizes > COMMON_SHARE * len(trained[0])]
    by_input = np.isin(shown[0], trained[0]) & ~np.isin(shown[0], common)
    equal = np.isin(shown[1], trained[1]) & (shown[1] != NO_CONTENT)
    shared = (by_input & (shown[0] != NO_CONTENT)) | equal
    if not shared.any():
        return []
    where = eval_table.where(int(rows[np.argmax(shared)]))
    message = (
        f"{int(shared.sum())} of {len(rows)} validation rows have the input of a training row, "
        f"{int(equal.sum())} of them also its target; row {where['row']} is the first."
    )
    return [VALIDATION_ROWS_IN_TRAINING.finding(message, where)]


def check_contradictions(
    table: Table, rows: Rows, parts: RowParts, hashes: tuple[Hashes, Hashes], exact: bool
) -> list[Finding]:
    """Rows with one input and several targets, compared exactly, with the first two of them."""
    places = np.sort(find_contradictions(*hashes))
    if len(places) == 0:
        return []
    inputs, whole = parts.hash_some(table, rows[places], fold=False)
    found = np.sort(find_contradictions(inputs, whole))
    if len(found) == 0:
        return []
    numbers, firsts = np.unique(inputs[found], return_index=True)
    pairs = [_contradicting_pair(inputs, whole, int(found[n])) for n in np.sort(firsts)[:SHOWN]]
    wheres = [[table.where(int(rows[places[n]])) for n in pair] for pair in pairs]
    message = (
        f"{len(found):,} of {len(rows):,} rows have the input of another row, but another target: "
        f"{'; '.join(_name_pair(*pair) for pair in wheres)}. "
        f"Different inputs among them: {len(numbers):,}."
    )
    one = wheres[0][0]
    suspicious = exact and 2 * len(found) <= len(rows)
    rule = CONTRADICTING_ROWS if suspicious else SEVERAL_TARGETS
    return [rule.finding(message, one)]


def _contradicting_pair(inputs: Hashes, whole: Hashes, first: int) -> tuple[int, int]:
    """The row, and the first one with its input and another target."""
    unlike = (inputs == inputs[first]) & (whole != whole[first])
    return first, int(np.argmax(unlike))


def _name_pair(one: Place, two: Place) -> str:
    file = f" of {two['file']}" if two["file"] != one["file"] else ""
    return f"rows {one['row']} and {two['row']}{file}"
