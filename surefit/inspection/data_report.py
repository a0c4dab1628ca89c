"""A look at data before anything is trained: columns, arrays, and how features will be read.

The layout is planned by the same function as in `check`, so what is shown is what would be done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.config import Reading
from surefit.data.column_types import describe_type, is_list
from surefit.data.data_rules import ROWS_RESHAPED
from surefit.data.open_data import files_of, open_table, opener_of
from surefit.data.profile import Profile
from surefit.data.remote_data import reading_once
from surefit.data.roles import get_role, resolve_roles
from surefit.data.row_arrays import row_shape
from surefit.data.split import hash_rows
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.findings import Finding
from surefit.inputs.encoder import Encoder
from surefit.inputs.features.feature_layout import Hints, plan_layout, planned_axes
from surefit.inspection.array_report import ArrayReport, describe_arrays, inspect_arrays
from surefit.printable import one_line, redact
from surefit.progress import Progress, silent
from surefit.targets.numeric_columns import account_columns, describe_unused
from surefit.targets.task_spec import TaskSpec
from surefit.tasks.choose_task import choose_task

if TYPE_CHECKING:
    from surefit.models.model_source import ModelSource

BAR_WIDTH = 24
NUM_BARS = 8
MAX_COUNTED = 1000
"""Of more different values, none is shown."""
SHOWN_FILES = 4


@dataclass(frozen=True)
class ColumnReport:
    """One column: its type, missing or empty rows, lengths, and values that occur often."""

    name: str
    type: str
    empty_rows: int
    lengths: dict[str, float] | None
    distinct: int | None
    common: dict[str, int] | None
    histogram: list[tuple[int, int, int]] | None  # (from, to, rows)
    role: str | None = None
    """What the task uses it for; None if it is not used, or if the task is not known."""


@dataclass(frozen=True)
class LayoutReport:
    """How rows of features will be read; `fault` where that cannot be decided."""

    column: str
    rows: str
    """The axes of a row as it is, such as [7…29, 12]."""
    steps: list[int] | None  # shortest and longest
    width: int | None
    expects: str | None
    """What the model expects, where one was given."""
    fixes: list[str]
    fault: str | None

    def __str__(self) -> str:
        lines = [f"\nlayout: rows of column {self.column!r} are {self.rows}"]
        if self.steps is not None:
            least, most = self.steps
            steps = str(least) if least == most else f"{least} to {most}"
            size = self.width or "differs from row to row"
            lines.append(f"  read as   sequence length {steps}, feature size {size}")
        if self.expects is not None:
            lines.append(f"  model     {one_line(self.expects)}")
        lines += [f"  fix       {one_line(fix)}" for fix in self.fixes]
        return "\n".join([*lines, *([f"  unclear   {one_line(self.fault)}"] if self.fault else [])])


@dataclass(frozen=True)
class DataReport:
    """What is in a data set; prints itself."""

    files: list[str]
    rows: int
    duplicate_rows: int
    columns: list[ColumnReport]
    arrays: list[ArrayReport] = field(default_factory=list)
    """Arrays of numbers in the files, as they lie on disk."""
    layout: LayoutReport | None = None
    task: str | None = None
    """The task that the columns suit, by which they have roles."""
    unclear: str | None = None
    """Why the columns suit no task."""

    @property
    def roles(self) -> dict[str, str | None]:
        """Each column and its role; None where it is not used."""
        return {column.name: column.role for column in self.columns}

    def as_dict(self) -> dict[str, Any]:
        """The report as `inspect --json` prints it."""
        return asdict(self)

    def __str__(self) -> str:
        files = one_line(", ".join(self.files[:SHOWN_FILES]))
        more = f" and {len(self.files) - SHOWN_FILES} more" if len(self.files) > SHOWN_FILES else ""
        parts = [f"{files}{more}: {self.rows} rows, {self.duplicate_rows} duplicates"]
        if self.arrays:
            parts.append(f"\n{describe_arrays(self.arrays)}")
        if self.task is not None:
            parts.append(f"task: {self.task}")
            unused = describe_unused(self.roles)
            parts += [f"columns not used: {one_line(unused)}"] if unused else []
        elif self.unclear is not None:
            parts.append(f"task: unclear. {one_line(self.unclear)}")
        parts += [_describe(column) for column in self.columns]
        return "\n".join([*parts, *([str(self.layout)] if self.layout is not None else [])])


def _describe(column: ColumnReport) -> str:
    role = f", role {column.role}" if column.role is not None else ""
    lines = [f"\n{one_line(column.name)}: {one_line(column.type)}, {column.empty_rows} empty{role}"]
    if column.lengths is not None:
        parts = ", ".join(f"{name} {value:g}" for name, value in column.lengths.items())
        lines.append(f"  lengths: {parts}")
    for low, high, count in column.histogram or []:
        most = max(bar[2] for bar in column.histogram or [])
        bar = "█" * round(BAR_WIDTH * count / most)
        lines.append(f"  {low:>6} … {high:<6} {bar:<{BAR_WIDTH}} {count}")
    if column.distinct is not None:
        shown = ", ".join(
            f"{one_line(name)} ({count})" for name, count in (column.common or {}).items()
        )
        lines.append(f"  {column.distinct} distinct values; most common: {shown}")
    return "\n".join(lines)


def inspect_table(table: Table, progress: Progress = silent) -> DataReport:
    """Report on each column by its Profile."""
    duplicates = table.num_rows - len(np.unique(hash_rows(table, table.columns)))
    columns = []
    for number, name in enumerate(table.columns):
        progress("reading columns", number, len(table.columns))
        columns.append(_report(name, table.profile(name)))
    progress("reading columns", len(columns), len(columns))
    files = [redact(source.file) for source in table.sources]
    return DataReport(files, table.num_rows, duplicates, columns)


def _report(name: str, profile: Profile) -> ColumnReport:
    num_rows, counts, lengths = len(profile.values), profile.counts or {}, profile.lengths
    few = 0 < len(counts) <= MAX_COUNTED and len(counts) <= 0.5 * num_rows
    common = sorted(counts.items(), key=lambda pair: -pair[1])[:8] if few else None
    summary = histogram = None
    if len(lengths):
        least, most = int(lengths.min()), int(lengths.max())
        middle = float(np.median(lengths))
        summary = {"shortest": float(least), "median": middle, "longest": float(most)}
        if least != most:
            bars, edges = np.histogram(lengths, bins=min(NUM_BARS, most - least + 1))
            histogram = [
                (int(low), int(high), int(count))
                for low, high, count in zip(edges, edges[1:], bars, strict=False)
            ]
    empty = num_rows - len(lengths) if is_list(profile.kind) else len(profile.blanks())
    return ColumnReport(
        name,
        describe_type(profile.kind),
        empty,
        summary,
        len(counts) if few else None,
        {str(value)[:60]: count for value, count in common} if common else None,
        histogram,
    )


@dataclass(frozen=True)
class AskedReading:
    """What the user says: columns by role, the task, length and size of feature sequences."""

    columns: Mapping[str, str] = field(default_factory=dict)
    task: TaskSpec | tuple[TaskSpec, ...] | None = None
    steps: int | None = None
    width: int | None = None


ANYTHING = AskedReading()


def inspect_data(
    data: Any, source: ModelSource | None = None, progress: Progress = silent
) -> DataReport:
    """Report on data; with a model, also on what it expects of feature sequences."""
    reading = Reading()
    with reading_once(progress):
        arrays = look_at_files(data, reading, progress)
        return inspect_opened(open_table(data, reading), arrays, source, progress=progress)


def look_at_files(data: Any, reading: Reading, progress: Progress = silent) -> list[ArrayReport]:
    """The arrays of the files on disk; none for Python objects."""
    paths = [data] if isinstance(data, str | Path) else data
    if not isinstance(paths, list | tuple) or not all(isinstance(p, str | Path) for p in paths):
        return []
    files = [file for file in files_of(paths) if not file.is_dir()]
    return inspect_arrays(files, opener_of, reading, progress)


def inspect_opened(
    table: Table,
    arrays: list[ArrayReport],
    source: ModelSource | None = None,
    asked: AskedReading = ANYTHING,
    progress: Progress = silent,
) -> DataReport:
    """The report on a table that is open already."""
    report = _with_roles(inspect_table(table, progress), table, asked, source)
    column = asked.columns.get("features")
    chosen = {"features": column} if column is not None else {}
    roles = resolve_roles(table, ((get_role("features"),),), (get_role("mask"),), chosen)
    if roles is None:
        return replace(report, arrays=arrays)
    layout = _layout(table, roles["features"], asked, source)
    return replace(report, arrays=arrays, layout=layout)


def _with_roles(
    report: DataReport, table: Table, asked: AskedReading, source: ModelSource | None
) -> DataReport:
    """The report with the role of each column, as `check` gives it before anything is fitted."""
    heads = source.auto_classes if source is not None else None
    try:
        task, roles = choose_task(table, asked.task, asked.columns, heads)
    except FindingError as error:
        found = error.findings[0]
        return replace(report, unclear=f"{found.code} {found.message} {found.fix}")
    account = account_columns(table.columns, task, Encoder(task.name, roles))
    columns = [replace(column, role=account[column.name]) for column in report.columns]
    return replace(report, task=task.name, columns=columns)


def _layout(
    table: Table, column: str, asked: AskedReading, source: ModelSource | None
) -> LayoutReport:
    """How rows of features will be read, and why; what keeps them from it is `fault`."""
    hints, expects = _expected(source)
    shape = row_shape(table, column)
    applied = [found for found in table.findings if found.code == ROWS_RESHAPED.code]
    try:
        layout, notes = plan_layout(
            shape, replace(hints, steps=asked.steps, width=asked.width), column
        )
    except FindingError as error:
        shown = [_shown(found) for found in applied]
        fault = "; ".join(f"{found.message} {found.fix}" for found in error.findings)
        return LayoutReport(column, str(shape), None, None, expects, shown, fault)
    steps, width = planned_axes(shape, layout)
    fixes = [_shown(found) for found in (*applied, *notes)]
    if hints.hidden_size is not None and width.size is not None:
        fixes.append(f"SF325 a projection maps feature size {width} to {hints.hidden_size}.")
    return LayoutReport(
        column, str(shape), [steps.least, steps.most], width.size, expects, fixes, None
    )


def _shown(found: Finding) -> str:
    return f"{found.code} {found.message}"


def _expected(source: ModelSource | None) -> tuple[Hints, str | None]:
    """What a model expects of feature sequences, as hints and in words."""
    if source is None:
        return Hints(), None
    hints = source.hints()
    said = []
    if hints.trained is not None:
        said.append(f"feature size {hints.trained}, as in training")
    if hints.hidden_size is not None:
        said.append(f"any feature size, projected to {hints.hidden_size}")
    if hints.layers:
        said.append(f"layers of feature size {', '.join(map(str, hints.layers))}")
    if hints.positions is not None:
        said.append(f"sequence length up to {hints.positions}")
    return hints, f"{source.name}: {'; '.join(said) or 'any feature size and sequence length'}"
