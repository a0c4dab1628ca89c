"""Rules about the values of a column: one table of them, and blanks in rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.checks.class_values import check_spelling
from surefit.checks.date_columns import check_number_dates, check_text_dates
from surefit.checks.markers import check_markers
from surefit.checks.shapes import check_column
from surefit.checks.shift import TableSides, check_columns
from surefit.config import set_option
from surefit.data.column_types import is_number, is_text
from surefit.data.several_columns import target_columns
from surefit.data.table import Table
from surefit.data.written_values import is_missing
from surefit.findings import Finding, note, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import TablePart
from surefit.inputs.row_input import ALONE
from surefit.targets.task_spec import TaskSpec, account_columns

Applies = Callable[[Table, str, TaskSpec, Encoder], bool]
Check = Callable[[Table, str, Encoder], Iterable[Finding]]


def _is_read(table: Table, column: str, task: TaskSpec, encoder: Encoder) -> bool:
    return account_columns([column], task, encoder)[column] is not None


def _is_number_read(table: Table, column: str, task: TaskSpec, encoder: Encoder) -> bool:
    kind, label = table.column_type(column), encoder.roles.get("label")
    is_amount = is_number(kind) and not pa.types.is_boolean(kind)
    is_input = task.reads.whole_rows and is_amount and column != label
    return is_input and _is_read(table, column, task, encoder)


def _is_input(table: Table, column: str, task: TaskSpec, encoder: Encoder) -> bool:
    given = task.reads.input_of(encoder.roles)
    return given is not None and column == encoder.roles.get(given.role or "")


def _is_of_table(table: Table, column: str, task: TaskSpec, encoder: Encoder) -> bool:
    return encoder.input.columns is not None and column != encoder.roles.get("label")


def _is_shaped(table: Table, column: str, task: TaskSpec, encoder: Encoder) -> bool:
    is_target = encoder.target.numbers is not None and column == encoder.roles.get("label")
    return is_target or _is_number_read(table, column, task, encoder)


def check_numbers(table: Table, column: str, encoder: Encoder) -> Iterator[Finding]:
    """Yield the odd shape of a column of numbers; the target may be several of them."""
    is_input = column != encoder.roles.get("label")
    for part, name in target_columns(table, column):
        if is_number(part.column_type(name)):
            yield from check_column(part, name, is_input)


def _is_category(table: Table, column: str, task: TaskSpec, encoder: Encoder) -> bool:
    is_written = is_text(table.column_type(column))
    return _is_of_table(table, column, task, encoder) and is_written


COLUMN_RULES: tuple[tuple[Applies, Check], ...] = (
    (_is_number_read, lambda table, column, _: check_number_dates(table, column)),
    (_is_of_table, check_text_dates),
    (_is_category, check_spelling),
    (_is_shaped, check_numbers),
    (_is_read, check_markers),
)
"""The rules about the values of one column: which columns each is for, and its function. To add
one, write the function beside its rule, and a row here."""


def check_tables(
    sides: TableSides, task: TaskSpec, encoder: Encoder, drawn_apart: bool = False
) -> Iterator[Finding]:
    """Yield columns of training data and of evaluation data; one finding per cause.

    `drawn_apart` is whether the user wants sides that differ: other groups, or later rows. Windows
    of series are no columns of the user's: their scales differ as the series do.
    """
    if encoder.settings.windows is not None:
        return
    seen = set()
    tables = {table.key: table for table, _ in sides}
    given = task.reads.input_of(encoder.roles)
    own = (_is_input, given.check_cells) if given is not None and given.check_cells else None
    rules = COLUMN_RULES if own is None else (own, *COLUMN_RULES)
    for table, (applies, check) in product(tables.values(), rules):
        columns = [name for name in table.columns if applies(table, name, task, encoder)]
        for found in (each for name in columns for each in check(table, name, encoder)):
            cause = (found.code, found.where.get("column"))
            if cause not in seen:
                seen.add(cause)
                yield found
    if encoder.input.columns is not None:
        yield from check_blanks([*tables.values()], encoder)
    label, names = encoder.roles.get("label"), sides[0][0].columns
    is_table = task.reads.whole_rows and not set(ALONE) & encoder.roles.keys()
    columns = [name for name in names if name != label] if is_table and not drawn_apart else []
    read = [name for name in columns if _is_read(sides[0][0], name, task, encoder)]
    yield from check_columns(sides, columns, read, label if "label" in task.targets else None)


UNSEEN_BLANKS = rule(
    "SF267",
    "warning",
    "blank cells in a column that has none in the training rows",
    why="The model has never seen a blank there, so the prediction for such a row may be wrong.",
    fix="Fill the cells, or train on rows that have blanks, too.",
    accept="The blanks are read as the mean, or as an unknown category.",
)

Array = npt.NDArray[Any]
MOST = 8


def check_blanks(tables: Sequence[Table], encoder: Encoder) -> Iterator[Finding]:
    """Blanks per column that is read; one remark per table, and a warning for unseen ones.

    Rows without a label are dropped, so that their blanks do not count.
    """
    by_column: dict[str, TablePart] = {}
    for part in encoder.input.columns or ():  # of a column's parts, the number says how blanks read
        by_column.setdefault(part.column, part)
    label = encoder.roles.get("label")
    for table in tables:
        dropped = _unlabelled(table, label, encoder)
        rows = {
            name: np.setdiff1d(table.profile(name).blanks(), dropped, assume_unique=True)
            for name in by_column
            if name in table.columns
        }
        seen = {name: found for name, found in rows.items() if _is_seen(by_column[name])}
        if any(map(len, seen.values())):
            yield _describe(table, {n: found for n, found in seen.items() if len(found)}, by_column)
        for name in rows.keys() - seen.keys():
            if len(rows[name]):
                yield _warn(table, name, rows[name], by_column[name])


def _unlabelled(table: Table, label: str | None, encoder: Encoder) -> Array:
    """Return the rows whose label is blank, or a marker of a missing value."""
    if label not in table.columns:
        return np.empty(0, np.int64)
    profile = table.profile(label)
    markers = encoder.settings.missing.get(label, ())
    written = [text for text in profile.counts or () if is_missing(text, markers)]
    marked = [profile.rows_with(text.strip(), table.num_rows) for text in written]
    return np.unique(np.concatenate([profile.blanks(), *marked]).astype(np.int64))


def _is_seen(part: TablePart) -> bool:
    """Return whether the training rows have blanks in the column."""
    return part.blank if part.kind == "number" else None in part.values


def _describe(table: Table, rows: Mapping[str, Array], parts: Mapping[str, TablePart]) -> Finding:
    ways: dict[str, list[str]] = {}
    ordered = sorted(rows, key=lambda name: -len(rows[name]))
    for name in ordered[:MOST]:
        kind = parts[name].kind if parts[name].order is None else "date"
        shown = f"{name!r} {len(rows[name]):,} ({len(rows[name]) / table.num_rows:.1%})"
        ways.setdefault(WAYS[kind], []).append(shown)
    listed = "; ".join(f"{', '.join(names)}: {way}" for way, names in ways.items())
    more = f"; and {len(ordered) - MOST} further columns" if len(ordered) > MOST else ""
    where = table.where(int(rows[ordered[0]][0]))
    return note(f"blanks in {table.num_rows:,} rows: {listed}{more}.", where, column=ordered[0])


WAYS = {
    "number": "read as the mean of the training rows, with a flag for blanks",
    "date": "the parts of the date are read as their means, with a flag for blanks",
    "category": "blank is a category of its own",
}


def _warn(table: Table, column: str, rows: Array, part: TablePart) -> Finding:
    read = "an unknown category" if part.kind == "category" else "the mean, without a flag"
    where = table.where(int(rows[0]))
    return UNSEEN_BLANKS.finding(
        f"column {column!r} is blank in {len(rows):,} of {table.num_rows:,} rows (first row "
        f"{where['row']}), and in no training row; these cells are read as {read}.",
        where,
        fix=f"Fill the cells, or leave the column out: {set_option('ignore', column)}.",
        column=column,
    )
