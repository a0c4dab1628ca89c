"""A look at data before anything is trained: columns, arrays, and how features will be read.

The layout is planned by the same function as in `check`, so what is shown is what would be done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.config import Reading
from surefit.data.data_rules import STRAY_AXIS_DROPPED
from surefit.data.formats.array_shards import SHARD_RESHAPED
from surefit.data.open_data import files_of, open_table, opener_of
from surefit.data.remote.remote_copy import reading_once
from surefit.data.roles import get_role, resolve_roles
from surefit.data.row_arrays import row_shape
from surefit.data.table import Table
from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import Hints, plan_layout, planned_axes
from surefit.errors import FindingError
from surefit.findings import Finding
from surefit.inspection.array_report import ArrayReport, inspect_arrays
from surefit.inspection.table_report import DataReport, LayoutReport, inspect_table
from surefit.progress import Progress, silent
from surefit.tasks.choose_task import choose_task
from surefit.tasks.numeric_columns import account_columns
from surefit.tasks.task_spec import TaskSpec

if TYPE_CHECKING:
    from surefit.models.model_source import ModelSource


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
    applied = [
        found
        for found in table.findings
        if found.code in (STRAY_AXIS_DROPPED.code, SHARD_RESHAPED.code)
    ]
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
