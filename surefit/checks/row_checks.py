"""The mechanisms that look at encoded rows and at pairs of columns: one function runs them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.checks.copies import NEAR_COPIES
from surefit.checks.encoded_tokens import check_unknown_tokens
from surefit.checks.giveaways import check_columns, check_forms
from surefit.checks.learnable import check_learnable
from surefit.checks.ledger import target_unit
from surefit.checks.shapes import ODD_SHAPE, check_amounts, check_shape, find_group
from surefit.checks.shift import check_samples
from surefit.checks.tag_schemes import check_tags
from surefit.checks.text_pairs import check_pairs
from surefit.checks.text_shapes import check_text_shape
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.findings import Finding, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.row_facts import Sample, scaled, take_sample
from surefit.inputs.row_input import ALONE, RowInput
from surefit.inputs.store import Store

SAME_INPUTS = rule(
    "SF246",
    "warning",
    "all training rows have the same input",
    why="Nothing can be learned from inputs that do not differ, whatever the labels are.",
    fix="Check how the inputs were made: a fixed file, zeros or a placeholder are usual causes.",
    accept="The run starts without the warning; nothing but the most common label is learned.",
)

PAIRED = (("source", "target"), ("prompt", "answer"), ("prompt", "chosen"), ("text", "text_pair"))
"""Roles of texts that belong together."""
TEXTS = ("text", "source", "target", "prompt", "answer", "chosen", "rejected")
INPUTS = ("text", "source", "prompt")
CONTENT, TINY = ("spread", "contrast", "loudness"), 1e-7
"""Facts that are 0 in rows without content."""
READ = ("features", "image", "audio")
LONG_END, SHORT_END = 0.2, 0.05
"""Share of a row that is constant at its end: of padded rows, and of usual ones."""
LEAST_SHARE, MOST_SHARE = 0.005, 0.7
MOST_SHAPES = 3
SHOWN = 3
FEWEST_COPIES, LEAST_COPIES = 5, 0.02
"""Validation rows, and their share, from which copies are reported."""
NEAR = 0.04
"""Share of the median distance to the nearest row within which a row is a copy."""
NEIGHBOURS = 20
"""More than the copies that one row has in a training set."""
MOST_COMPARED = 1_000
FEWEST_ALIKE = 8
Array = npt.NDArray[Any]
Sides = tuple[tuple[Store, Table], tuple[Store, Table]]


def check_row_contents(
    sides: Sides, rows: Rows, encoder: Encoder, given: RowInput | None, drawn_apart: bool
) -> Iterator[Finding]:
    """Yield what the training rows have in common that they should not, and how the sides differ.

    `given` is what is known of such inputs; `drawn_apart`: see `check_tables`.
    """
    (store, table), (validation, shown) = sides
    roles = encoder.roles
    column = next((roles[role] for role in ALONE if role in roles), "")
    unknown = [*check_unknown_tokens(store, table, encoder)]
    yield from unknown or check_unknown_tokens(validation, shown, encoder)
    if found := _same_inputs(store, column):
        yield found
        return
    amounts = given.amounts(encoder) if given is not None else None
    if amounts is not None:
        found_rows = [*check_amounts(store, table, amounts, column, "training")]
        yield from found_rows or check_amounts(validation, shown, amounts, column, "validation")
    if given is not None and given.check is not None:
        yield from given.check(store, table, encoder)
    if encoder.input.columns is not None and "label" in roles:
        yield from check_columns(table, rows, encoder)
    for one, two in PAIRED:
        if one in roles and two in roles:
            yield from check_pairs(table, rows, roles[one], roles[two], one == "source")
    for role in TEXTS:
        if role in roles:
            label = roles.get("label")
            yield from check_text_shape(table, rows, roles[role], role in INPUTS, label)
    if "tokens" in roles and "tags" in roles:
        yield from check_tags(table, rows, roles["tokens"], roles["tags"])
    sample, other = take_sample(store, table, encoder), take_sample(validation, shown, encoder)
    if sample is None:
        return
    yield from _check_facts(sample, encoder)
    classes = encoder.target.classes
    names = list(classes.names) if classes is not None else []
    yield from check_learnable(sample, other, names)
    yield from check_forms(sample, encoder, names)
    if other is None or encoder.input.columns is not None:
        return
    if not sample.is_text:
        yield from _check_copies(sample, other)
    if not drawn_apart:
        yield from check_samples(sample, other, column)


def _same_inputs(store: Store, column: str) -> Finding | None:
    """Return the finding about training rows that are equal in all but their labels."""
    inputs = [name for name in store.fields if name != "labels"]
    of_rows = "labels" in store.fields and target_unit(store.fields) == "rows"
    if len(store) < FEWEST_ALIKE or not of_rows or not inputs:
        return None
    row = {name: store.value(name, 0) for name in inputs}
    if not all(np.array_equal(store.value(n, at), row[n]) for at in range(len(store)) for n in row):
        return None
    first = row[inputs[0]]
    what = f"{first.flat[0] + 0.0:g} everywhere" if np.ptp(first) == 0 else "the same values"
    message = f"column {column!r}: the inputs of all {len(store):,} training rows are equal: {what}"
    return SAME_INPUTS.finding(f"{message} (shape {list(first.shape)}).", column=column)


def _check_copies(train: Sample, validation: Sample) -> Iterator[Finding]:
    """Yield validation rows that lie far nearer to a training row than rows of one set do."""
    if min(len(train.rows), len(validation.rows)) < FEWEST_COPIES:
        return
    if validation.vectors.shape[1] != train.vectors.shape[1]:
        return
    one, two = (scaled(each.vectors, train.vectors) for each in (train, validation))
    if not one.shape[1]:
        return
    own, _ = _nearest(one[:MOST_COMPARED], one, skip_self=True)
    usual = float(np.median(own))
    away, at = _nearest(two[:MOST_COMPARED], one)
    copies = np.flatnonzero(away < NEAR * usual)
    if len(copies):  # where rows lie densely, such as quiet ones, each has near neighbours
        local = _spacing(one[at[copies]], one)
        copies = copies[away[copies] < NEAR * local]
    equal = (away[copies] == 0).sum() if len(copies) else 0
    if len(copies) - equal < max(FEWEST_COPIES, LEAST_COPIES * len(away)):
        return
    shown = ", ".join(
        f"row {validation.where(validation.rows[n])['row']} and training row "
        f"{train.where(train.rows[at[n]])['row']}"
        for n in copies[:SHOWN].tolist()
    )
    yield NEAR_COPIES.finding(
        f"{len(copies):,} of {len(away):,} validation rows looked at are near-copies of training "
        f"rows: {shown}. They lie at less than {NEAR:.0%} of the usual distance to the next row.",
        validation.where(int(validation.rows[copies[0]])),
    )


def _nearest(rows: Array, others: Array, skip_self: bool = False) -> tuple[Array, Array]:
    """Return the distance to the nearest other row, and which that is."""
    squares = np.square(rows).sum(1)[:, None] + np.square(others).sum(1) - 2 * rows @ others.T
    if skip_self:
        squares[np.arange(len(rows)), np.arange(len(rows))] = np.inf
    at = squares.argmin(1)
    return np.linalg.norm(rows - others[at], axis=1), at


def _spacing(rows: Array, others: Array) -> Array:
    """Return the distance of rows to a farther neighbour among others, which have them, too."""
    nth = min(NEIGHBOURS, len(others) // 5)
    squares = np.square(rows).sum(1)[:, None] + np.square(others).sum(1) - 2 * rows @ others.T
    return np.sqrt(np.maximum(np.partition(squares, nth, axis=1)[:, nth], 0))


def _check_facts(sample: Sample, encoder: Encoder) -> Iterator[Finding]:
    """Yield rows without content, and facts and channels of an odd shape."""
    role = next((role for role in READ if role in encoder.roles), "")
    column, found = encoder.roles.get(role, ""), 0
    for hits, what, fix in (_without_content(sample), _with_padding(sample)):
        if hits.any():
            rows = sample.rows[hits]
            shown = ", ".join(str(sample.where(row)["row"]) for row in rows[:SHOWN].tolist())
            yield ODD_SHAPE.finding(
                f"column {column!r}: {len(rows):,} of {len(hits):,} rows looked at {what}: rows "
                f"{shown}.",
                sample.where(int(rows[0])),
                fix=fix,
                column=column,
            )
            return  # what else is odd about these rows follows from it
    for name, values, rows in _numbers(sample, encoder.input.columns is None):
        given = (values, rows, f"the {name} of {column!r}", column, sample.where)
        shapes = [*check_shape(*given)]
        if not shapes and name in sample.facts:
            is_dead = name.startswith("spread of channel")  # in a row that has the others
            shapes = [*check_shape(*given, partial(find_group, alike=is_dead))]
        yield from shapes
        found += len(shapes)
        if found >= MOST_SHAPES:
            return


def _numbers(sample: Sample, has_channels: bool) -> Iterator[tuple[str, Array, Array]]:
    """Yield facts, then channels: name, numbers and the row of each."""
    for name, values in sample.facts.items() if not sample.is_text else ():
        yield name, values, sample.rows
    for name, (values, owners) in sample.channels.items() if has_channels else ():
        yield f"channel {name}", values, sample.rows[owners]


def _few(hits: Array) -> Array:
    """Return the rows, or none where there are too few or nearly all are alike."""
    count = int(hits.sum())
    is_few = max(2, LEAST_SHARE * len(hits)) <= count <= MOST_SHARE * len(hits)
    return hits if is_few else np.zeros(len(hits), bool)


def _without_content(sample: Sample) -> tuple[Array, str, str]:
    """Return the rows that have one value throughout."""
    empty = np.zeros(len(sample.rows), bool)
    for name in CONTENT:
        if name in sample.facts:
            empty |= sample.facts[name] <= TINY
    what = "have one value throughout, so they hold nothing"
    return _few(empty), what, "Drop these rows, or get their content."


def _with_padding(sample: Sample) -> tuple[Array, str, str]:
    """Return the rows that do not change for a long time before their end, if most others do."""
    ends = sample.facts.get("constant end", np.zeros(len(sample.rows)))
    padded = ends >= LONG_END
    usual = bool(np.nanmean(ends[~padded] > SHORT_END) < 0.1) if (~padded).any() else False
    what = f"do not change in their last {LONG_END:.0%} or more, as if padding were data"
    return _few(padded & usual), what, "Cut the rows where their data ends; surefit pads them."
