"""Training and validation rows: split, or taken from two Tables; copies and leaks reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.checks.class_values import Classes, read_classes
from surefit.checks.copies import (
    Side,
    check_contradictions,
    check_near_copies,
    check_shared_inputs,
    note_repeats,
)
from surefit.checks.split_advice import advise_split, check_overlap, check_target
from surefit.config import RunConfig, set_option
from surefit.data.cell_files import with_files
from surefit.data.column_types import is_text, is_text_list
from surefit.data.forecast_windows import with_split
from surefit.data.row_arrays import count_distinct, take
from surefit.data.row_parts import HeldOut, RowParts, hash_columns, hold_out
from surefit.data.split import (
    Hashes,
    Rows,
    Split,
    count_inputs,
    input_keys,
    join_groups,
    num_wanted,
    sample_rows,
    split_by_group,
    split_by_input,
)
from surefit.data.split_columns import PartColumn, divide_by_time, read_gap, read_times
from surefit.data.table import Table
from surefit.data.written_values import is_date
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule
from surefit.inputs.encoded_row import DropReason
from surefit.pipeline.accept import check_columns
from surefit.plan.draft import Draft
from surefit.targets.classes import find_separator
from surefit.targets.task_spec import TaskSpec

ONE_GROUP = rule(
    "SF186",
    "error",
    "one group of rows",
    why="split.by keeps a group in one set, so that no row is left for the other one.",
    fix="Name a column with several values, or leave split.by out.",
)

GROUPS_IN_BOTH = rule(
    "SF188",
    "warning",
    "groups in both sets",
    why="Rows of one group resemble each other, so the evaluation measures memory in part.",
    fix="Move all rows of a group to one set, or leave --eval-data out.",
    accept="The groups stay in both sets.",
)


@dataclass(frozen=True)
class SplitData:
    """Training and validation rows, which may come from two Tables, and what must not leak."""

    table: Table
    train: Rows
    validation_table: Table
    validation: Rows
    held_out: HeldOut
    left_out: Mapping[str, int]
    """Rows of the data that are in neither set, by reason."""

    @property
    def sides(self) -> tuple[tuple[Table, Rows], tuple[Table, Rows]]:
        """Each Table with its rows."""
        return (self.table, self.train), (self.validation_table, self.validation)


def split_tables(d: Draft) -> tuple[SplitData, list[Finding]]:
    """Split off validation rows, or take the evaluation data; report copies and leakage."""
    config, task, roles, reports = d.config, d.task, d.forms.roles, not d.request.one_row
    table, eval_table, by = d.forms.table, d.forms.eval_table, config.split.by
    if d.windows is not None and eval_table is None:
        config = with_split(config)
    _check_group_column(table, by)
    parts = row_parts(table, task, roles, by)
    rows, found = _scanned(table, config.scan, config.seed)
    table = with_files(table, roles, task.reads.file_roles)
    hashes = parts.hash_table(table, rows)
    classes = _classes(table, rows, task, roles, config.split.stratify)
    _check_folds(config.split.folds, eval_table, len(rows))
    _check_time(config.split.time, eval_table)
    left_out: dict[str, int] = {}
    if eval_table is None:
        split, left_out, notes = _divide(config, d.part_column, table, rows, hashes, classes)
        found += notes
        is_drawn = d.part_column is None and not config.split.is_settled
        if reports and is_drawn and roles.get("label") in table.columns:
            found += advise_split(table, roles["label"])
        if reports and is_drawn and d.windows is None and config.split.by is None:
            found += check_overlap(table)
        is_whole = len(rows) == table.num_rows
        train = split.train if is_whole else rows[split.train]
        validation = split.evaluation if is_whole else rows[split.evaluation]
        found += _note_equal_rows(d, table, hashes[1], split.train)
        eval_table = table
        held_out = hold_out(parts, *(take(hashes[0], of) for of in (split.train, split.evaluation)))
    else:
        names = {column: column for column in table.columns} if task.reads.whole_rows else {}
        names.pop(by or "", None)
        check_columns(eval_table, task, {**roles, **names})
        train = rows
        eval_table = with_files(eval_table, roles, task.reads.file_roles)
        validation, notes = _scanned(eval_table, config.scan, config.seed)
        shown = parts.hash_table(eval_table, validation)
        found += [*notes, *check_shared_inputs(hashes, shown, eval_table, validation)]
        found += _note_equal_rows(d, table, hashes[1], train)
        found += _shared_groups(table, eval_table, by)
        held_out = hold_out(parts, hashes[0], shown[0])
    of_table = task.reads.whole_rows
    if reports and roles.get("label") in table.columns and "label" not in config.columns:
        found += check_target(table, roles["label"])
    if reports:
        found += check_contradictions(
            table, rows, parts, hashes, task.reads.exact_targets, of_table
        )
    if reports and not task.reads.whole_rows:
        sides = Side(table, train, parts), Side(eval_table, validation, parts)
        found += check_near_copies(*sides, config.seed)
    unread = [by] if by is not None and by not in roles.values() else []
    kept = [side.without([c for c in unread if c in side.columns]) for side in (table, eval_table)]
    return SplitData(kept[0], train, kept[1], validation, held_out, left_out), found


def _note_equal_rows(d: Draft, table: Table, hashes: Hashes, train: Rows) -> list[Finding]:
    """Return how many rows repeat another one; of sides that are given, in training rows."""
    is_whole = d.part_column is None and d.forms.eval_table is None
    compared = hashes if d.part_column is None else take(hashes, train)
    read = [name for role, name in d.forms.roles.items() if role not in d.task.reads.file_roles]
    has_texts = any("string" in str(table.column_type(name)) for name in read)
    return note_repeats(compared, "rows" if is_whole else "training rows", has_texts)


def _check_group_column(table: Table, by: str | None) -> None:
    if by is None:
        return
    table.require_column("split.by", by)
    groups = _group_names(table, by)
    if len(groups) < 2:
        held = f"the value {next(iter(groups.values()))!r}" if groups else "no value"
        message = f"split.by is {by!r}, but all {table.num_rows} rows have {held} in this column."
        raise ONE_GROUP.error(message, column=by)


def _classes(
    table: Table, rows: Rows, task: TaskSpec, roles: Mapping[str, str], stratify: str
) -> Classes | None:
    """Return the classes of the rows, where the target is one of a few classes."""
    found = None
    if (
        "label" in roles
        and "label" in task.targets
        and (task.reads.exact_targets or stratify == "on")
    ):
        found = read_classes(table, rows, roles["label"])
        found = found if found is not None and len(found.names) > 1 else None
    if found is None and stratify == "on":
        raise UsageError(
            f"split.stratify is on, but the rows of {task.name} have no column of few classes.",
            "Leave split.stratify out, or name the classes with columns.label.",
        )
    return found


def _divide(
    config: RunConfig,
    parts: PartColumn | None,
    table: Table,
    rows: Rows,
    hashes: tuple[Hashes, Hashes],
    classes: Classes | None,
) -> tuple[Split, dict[str, int], list[Finding]]:
    """Return the split of one Table, the rows that it leaves out, and what is to be said of it."""
    if parts is not None:
        return _split_by_column(parts, table, rows, hashes)
    if config.split.time is not None:
        return _split_by_time(config, table, rows, hashes)
    split = _split_off(table, rows, hashes, classes, config)
    return split, {}, _note_split(split, hashes, len(rows), config.split.by)


def _split_by_column(
    parts: PartColumn, table: Table, rows: Rows, hashes: tuple[Hashes, Hashes]
) -> tuple[Split, dict[str, int], list[Finding]]:
    """Return the rows of each part, how many are of neither, and what is to be said of them."""
    train, held, other = parts.divide(rows)
    sides = [(take(hashes[0], of), take(hashes[1], of)) for of in (train, held)]
    found = check_shared_inputs(sides[0], sides[1], table, take(rows, held))
    message = (
        f"Column {parts.column!r} divides the rows (split.column): {parts.describe()}. "
        f"{len(train):,} rows are trained on, and {len(held):,} are the validation set"
    )
    message += f"; the other {len(other):,} are not used." if len(other) else "."
    fix = (
        f"To split all rows by surefit instead: {set_option('split.column', 'none')}, with "
        f"{set_option('ignore', parts.column)} where columns are inputs."
    )
    found.append(note(message, fix=fix, column=parts.column))
    left_out = {DropReason.TEST_PART.value: len(other)} if len(other) else {}
    return Split(train, held), left_out, found


def _split_by_time(
    config: RunConfig, table: Table, rows: Rows, hashes: tuple[Hashes, Hashes]
) -> tuple[Split, dict[str, int], list[Finding]]:
    """Return the earlier and the latest rows, and how many are in the gap between."""
    column, gap = config.split.time, config.split.gap
    assert column is not None
    times = take(read_times(table, column), rows)
    width = read_gap(gap, column, table.column_type(column))
    wanted = num_wanted(len(rows), config.eval_share)
    train, latest, between = divide_by_time(times, wanted, width)
    if len(train) == 0:
        why = "all rows have one time" if not len(between) else f"the gap is {gap}"
        raise UsageError(
            f"split.time={column} leaves no row to train on: {why}.",
            "Name a column with more times, or set a smaller split.gap or eval_share.",
        )
    split = count_inputs(Split(train, latest), hashes[0])
    found = _note_split(split, hashes, len(rows), None)
    if len(latest):
        begin = table.arrow[column][int(rows[latest[np.argmin(times[latest])]])].as_py()
        message = (
            f"The validation set is the latest {len(latest):,} of {len(rows):,} rows by "
            f"{column!r} (split.time), from {begin} on"
        )
        message += f"; {len(between):,} rows less than {gap} before are left out" * (width > 0)
        found.append(note(f"{message}.", column=column))
    return split, {DropReason.IN_GAP.value: len(between)} if len(between) else {}, found


def _check_time(time: str | None, eval_table: Table | None) -> None:
    if time is not None and eval_table is not None:
        raise UsageError(
            f"split.time={time} makes a validation set of the latest training rows, and there is "
            "validation data of its own.",
            "Leave out --eval-data, or split.time.",
        )


def _split_off(
    table: Table,
    rows: Rows,
    hashes: tuple[Hashes, Hashes],
    classes: Classes | None,
    config: RunConfig,
) -> Split:
    asked, seed, groups = config.split, config.seed, None
    if asked.by is not None:
        named = hash_columns(table, [asked.by], rows=rows)
        groups = input_keys(named, hashes[1])
    by_class = classes.numbers if classes is not None and asked.stratify != "off" else None
    if asked.folds is not None:
        count = count_distinct(groups) if groups is not None else None
        if count is not None and count < asked.folds:
            raise UsageError(
                f"split.folds is {asked.folds}, and {asked.by!r} (split.by) has {count} groups, "
                "each of which stays in one fold.",
                f"Use split.folds={count} at most, or another column.",
            )
        return _split_off_fold(hashes, asked.fold or 0, asked.folds, seed, groups, by_class)
    if groups is not None:
        return split_by_group(groups, *hashes, config.eval_share, seed, by_class)
    return split_by_input(*hashes, config.eval_share, seed, by_class)


def _split_off_fold(
    hashes: tuple[Hashes, Hashes],
    fold: int,
    num_folds: int,
    seed: int,
    by: Hashes | None = None,
    classes: Rows | None = None,
) -> Split:
    """Return one fold as the validation set; `hashes` are those of inputs and of whole rows.

    As in a plain split, rows with equal inputs stay together, unless a few inputs have most of the
    rows; and so do the groups of `by`.
    """
    inputs, whole = hashes
    groups = input_keys(inputs, whole)
    if by is not None:
        groups = join_groups(by, groups)
    else:
        _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        large = sizes > len(groups) // num_folds
        if 2 * int(sizes[large].sum()) > len(groups):
            groups = np.where(large[group_of], whole, groups)
    is_held = deal_rows(groups, num_folds, seed, classes) == fold
    split = Split(np.flatnonzero(~is_held), np.flatnonzero(is_held))
    return count_inputs(split, inputs)


def deal_rows(groups: Hashes, num_folds: int, seed: int, classes: Rows | None = None) -> Rows:
    """Return the fold of each row.

    The largest groups are dealt first, each to the fold that has the fewest rows of its classes,
    then the fewest rows in all.

    >>> np.bincount(deal_rows(np.arange(10, dtype=np.uint64), 5, seed=0)).tolist()
    [2, 2, 2, 2, 2]
    """
    shuffled = np.random.default_rng([seed, 0xF01D]).permutation(len(groups))
    _, first, group_of, sizes = np.unique(
        groups[shuffled], return_index=True, return_inverse=True, return_counts=True
    )
    kinds = np.zeros(len(groups), np.int64) if classes is None else classes - classes.min()
    kinds = kinds[shuffled]
    counts = np.zeros((num_folds, int(kinds.max(initial=0)) + 1), np.int64)
    folds = np.zeros(len(groups), np.int64)
    by_group, ends = np.argsort(group_of, kind="stable"), np.cumsum(sizes)
    for group in np.lexsort((first, kinds[first], -sizes)):
        rows = by_group[ends[group] - sizes[group] : ends[group]]
        own = np.bincount(kinds[rows], minlength=counts.shape[1])
        fold = (counts @ (own > 0) * len(groups) + counts.sum(1)).argmin()
        folds[shuffled[rows]] = fold
        counts[fold] += own
    return folds


def _check_folds(folds: int | None, eval_table: Table | None, num_rows: int) -> None:
    if folds is None:
        return
    if eval_table is not None:
        raise UsageError(
            "split.folds makes validation sets of the training rows, and there is validation data "
            "of its own.",
            "Leave out --eval-data, pass the training file alone, or leave split.folds out.",
        )
    if folds > num_rows:
        raise UsageError(
            f"split.folds is {folds}, and there are {num_rows} rows.", "Use fewer folds."
        )


def _note_split(
    split: Split, hashes: tuple[Hashes, Hashes], num_rows: int, by: str | None
) -> list[Finding]:
    found = []
    if by is not None:
        message = (
            f"Rows with the same value in {by!r} are in the same set (split.by); the validation "
            f"set has {len(split.evaluation)} of {num_rows} rows."
        )
        found.append(note(message, column=by))
    if split.num_shared:
        message = (
            f"{split.num_shared} of {len(split.evaluation)} validation rows have the input of a "
            f"training row. Different inputs of all {num_rows} rows: {count_distinct(hashes[0])}."
        )
        found.append(note(message))
    return found


def _shared_groups(table: Table, eval_table: Table, by: str | None) -> list[Finding]:
    """Groups that are in both of two given sets."""
    if by is None or by not in eval_table.columns:
        return []
    known, theirs = _group_names(table, by), _group_names(eval_table, by)
    shared = [value for name, value in theirs.items() if name in known]
    if not shared:
        return []
    named = ", ".join(repr(value) for value in shared[:3])
    message = (
        f"{len(shared)} of the {len(theirs)} groups of validation rows, by {by!r}, are in the "
        f"training set as well: {named}{' …' if len(shared) > 3 else '.'}"
    )
    return [GROUPS_IN_BOTH.finding(message, file=eval_table.sources[0].file, column=by)]


def _group_names(table: Table, by: str) -> dict[str, Any]:
    """Return groups in a column by their names as text: files may write 7, 7.0 and "7" for one."""
    column = table.arrow[by]
    nested = pa.types.is_nested(column.type)
    values = (column if nested else pc.unique(column)).to_pylist()
    whole = (int(v) if isinstance(v, float) and v.is_integer() else v for v in values)
    return {str(name): v for name, v in zip(whole, values, strict=True) if v is not None}


def row_parts(
    table: Table, task: TaskSpec, roles: Mapping[str, str], by: str | None = None
) -> RowParts:
    """Return which columns are the input of a row, and which its target.

    Without a role for the input, it is the whole row, without columns that number the rows, and
    without the column that groups them.
    """
    targets = tuple(role for role in task.targets if role in roles)
    given = task.reads.input_of(roles)
    content = None if given is None else given.content
    sign = _class_separator(table, roles["label"]) if targets == ("label",) else None
    if not task.reads.whole_rows or len(targets) < len(roles):
        return RowParts(roles, targets, task.reads.divide, content, sign)
    targets = tuple(roles[role] for role in targets)
    read = [name for name in table.columns if name != by]
    columns = [name for name in read if name in targets or not _numbers_rows(table, name)]
    if {*columns} == {*targets}:
        columns = read
    return RowParts({name: name for name in columns}, targets, task.reads.divide, content, sign)


def _class_separator(table: Table, label: str) -> str | None:
    """Return the sign between the classes of a row, empty for lists of them; None for one class."""
    if label not in table.columns:
        return None
    profile = table.profile(label)
    if not is_text(profile.kind):
        return "" if is_text_list(profile.kind) else None
    return find_separator({*(profile.counts or ())})


def _numbers_rows(table: Table, column: str) -> bool:
    """Return whether a column of integers or text has another value in each row, as an id has."""
    profile = table.profile(column)
    if table.num_rows < 2 or not (pa.types.is_integer(profile.kind) or is_text(profile.kind)):
        return False
    first = table.arrow[column][0].as_py()
    if isinstance(first, str) and is_date(first):  # a moment is an input, though each is another
        return False
    has_null = profile.values.null_count > 0
    return bool(profile.num_distinct + has_null == table.num_rows)


def _scanned(table: Table, scan: int | None, seed: int) -> tuple[Rows, list[Finding]]:
    """Return the rows to be read: all of them, or the sample that `scan` asks for."""
    rows = sample_rows(table.num_rows, scan, seed)
    if len(rows) == table.num_rows:
        return rows, []
    file = table.sources[0].file
    message = f"{len(rows)} of {table.num_rows} rows of {file} are checked, drawn by the seed."
    return rows, [note(message, file=file)]
