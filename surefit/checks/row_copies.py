"""Rows that repeat others: in both sets, within one, and with another target."""

from __future__ import annotations

import numpy as np

from surefit.data.row_arrays import count_distinct, distinct, is_among, take
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

NOTHING_FOLLOWS_FROM_INPUTS = rule(
    "SF225",
    "error",
    "targets that contradict each other everywhere",
    why=(
        "Nearly every input occurs with several targets, none of them more often than the others: "
        "there is nothing to learn. The targets belong to other rows, or an input is missing."
    ),
    fix="Check how targets were joined to inputs, and whether a column of inputs is not read.",
    accept="The rows are trained on.",
    covered_by=("SF205",),
)

SEVERAL_TARGETS = rule(
    "SF224",
    "info",
    "several targets for one input",
    why="The model learns a mixture of them. All rows of an input are kept in one set.",
    fix="Nothing to do if all of them are right.",
)

SHOWN = 3
NEARLY_ALL = 0.9
FEW_INPUTS = 0.1
"""Fewer different inputs than this share of their rows are categories rather than examples."""
BY_CHANCE = 0.5
"""Of rows that contradict each other, the share that can be right where two targets are equal."""
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
    names, sizes = distinct(trained[0])
    common = names[sizes > COMMON_SHARE * len(trained[0])]
    by_input = is_among(shown[0], names) & ~is_among(shown[0], common)
    equal = is_among(shown[1], distinct(trained[1])[0]) & (shown[1] != NO_CONTENT)
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
    table: Table,
    rows: Rows,
    parts: RowParts,
    hashes: tuple[Hashes, Hashes],
    exact: bool,
    of_table: bool,
) -> list[Finding]:
    """Rows with one input and several targets, compared exactly, with the first two of them.

    `exact` is whether an input has one right target. Rows `of_table`s share inputs by chance.
    """
    places = find_contradictions(*hashes)
    if len(places) == 0:
        return []
    inputs, whole = parts.hash_some(table, take(rows, places), fold=False)
    found = find_contradictions(inputs, whole)
    if len(found) == 0:
        return []
    num_inputs = count_distinct(take(inputs, found))
    firsts: dict[int, int] = {}
    for place in map(int, found):
        firsts.setdefault(int(inputs[place]), place)
        if len(firsts) == min(SHOWN, num_inputs):
            break
    pairs = [_contradicting_pair(inputs, whole, place) for place in firsts.values()]
    wheres = [[table.where(int(rows[places[n]])) for n in pair] for pair in pairs]
    message = (
        f"{len(found):,} of {len(rows):,} rows have the input of another row, but another target: "
        f"{'; '.join(_name_pair(*pair) for pair in wheres)}. "
        f"Different inputs among them: {num_inputs:,}."
    )
    one = wheres[0][0]
    by_chance = of_table or num_inputs == 1  # equal inputs in all rows are reported as such
    suspicious = exact and (2 * len(found) <= len(rows) or not by_chance)
    if not suspicious:
        return [SEVERAL_TARGETS.finding(message, one)]
    share = _best_share(inputs[found], whole[found])
    message += f" No model can be right on more than {share:.0%} of them."
    nearly_all = len(found) >= NEARLY_ALL * len(rows) and num_inputs > FEW_INPUTS * len(found)
    hopeless = not by_chance and nearly_all and share <= BY_CHANCE
    rule = NOTHING_FOLLOWS_FROM_INPUTS if hopeless else CONTRADICTING_ROWS
    return [rule.finding(message, one)]


def _best_share(inputs: Hashes, whole: Hashes) -> float:
    """The share of rows that have the commonest target of their input.

    >>> _best_share(np.array([7, 7, 7, 8, 8], np.uint64), np.array([1, 1, 2, 3, 4], np.uint64))
    0.6
    """
    _, firsts, counts = np.unique(whole, return_index=True, return_counts=True)
    _, groups = np.unique(inputs[firsts], return_inverse=True)
    best = np.zeros(groups.max() + 1, np.int64)
    np.maximum.at(best, groups, counts)
    return float(best.sum() / len(inputs))


def _contradicting_pair(inputs: Hashes, whole: Hashes, first: int) -> tuple[int, int]:
    """The row, and the first one with its input and another target."""
    unlike = (inputs == inputs[first]) & (whole != whole[first])
    return first, int(np.argmax(unlike))


def _name_pair(one: Place, two: Place) -> str:
    file = f" of {two['file']}" if two["file"] != one["file"] else ""
    return f"rows {one['row']} and {two['row']}{file}"
