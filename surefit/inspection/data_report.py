"""A look at data before anything is trained: columns, arrays, and how features will be read.

The layout is planned by the same function as in `check`, so what is shown is what would be done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from surefit.config import Reading
from surefit.data.column_types import FLOAT_NAMES, describe_type, is_array, is_list
from surefit.data.formats.numpy_files import map_npy, map_npz
from surefit.data.formats.opened import Opened
from surefit.data.open_data import files_of, open_table, opener_of
from surefit.data.profile import Profile
from surefit.data.remote_data import reading_once
from surefit.data.roles import get_role, resolve_roles
from surefit.data.row_arrays import count_distinct
from surefit.data.row_parts import hash_columns
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.inputs.encoder import Encoder
from surefit.inputs.model_hints import Hints
from surefit.printable import one_line, redact
from surefit.progress import Progress, silent
from surefit.targets.task_spec import TaskSpec, account_columns, describe_unused
from surefit.tasks import INPUTS
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
class DataReport:
    """What is in a data set; prints itself."""

    files: list[str]
    rows: int
    duplicate_rows: int
    columns: list[ColumnReport]
    arrays: list[ArrayReport] = field(default_factory=list)
    """Arrays of numbers in the files, as they lie on disk."""
    layout: Any = None
    """How the input's rows will be read, where that depends on their axes."""
    task: str | None = None
    """The task that the columns suit, by which they have roles."""
    unclear: str | None = None
    """Why the columns suit no task."""

    @property
    def roles(self) -> dict[str, str | None]:
        """Each column and its role; None where it is not used."""
        return {column.name: column.role for column in self.columns}

    def as_dict(self) -> dict[str, Any]:
        """Return the report as `inspect --json` prints it."""
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
    duplicates = table.num_rows - count_distinct(hash_columns(table, table.columns))
    columns = []
    for number, name in enumerate(table.columns):
        progress("reading columns", number, len(table.columns))
        columns.append(_column_report(name, table.profile(name)))
    progress("reading columns", len(columns), len(columns))
    files = [redact(source.file) for source in table.sources]
    return DataReport(files, table.num_rows, duplicates, columns)


def _column_report(name: str, profile: Profile) -> ColumnReport:
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
    """Return the arrays of the files on disk; none for Python objects."""
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
    """Return the report on a table that is open already."""
    report = _with_roles(inspect_table(table, progress), table, asked, source)
    for role, given in INPUTS.items():
        if given.report_layout is None:
            continue
        chosen = {role: asked.columns[role]} if role in asked.columns else {}
        roles = resolve_roles(table, ((get_role(role),),), (get_role("mask"),), chosen)
        if roles is not None:
            hints, expects = _expected(source)
            hints = replace(hints, steps=asked.steps, width=asked.width)
            layout = given.report_layout(table, roles[role], hints, expects)
            return replace(report, arrays=arrays, layout=layout)
    return replace(report, arrays=arrays)


def _with_roles(
    report: DataReport, table: Table, asked: AskedReading, source: ModelSource | None
) -> DataReport:
    """Return report with the role of each column, as `check` gives it before anything is fitted."""
    heads = source.auto_classes if source is not None else None
    try:
        task, roles = choose_task(table, asked.task, asked.columns, heads)
    except FindingError as error:
        found = error.findings[0]
        return replace(report, unclear=f"{found.code} {found.message} {found.fix}")
    account = account_columns(table.columns, task, Encoder(task.name, roles))
    columns = [replace(column, role=account[column.name]) for column in report.columns]
    return replace(report, task=task.name, columns=columns)


def _expected(source: ModelSource | None) -> tuple[Hints, str | None]:
    """Return what a model expects of feature sequences, as hints and in words."""
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


CHUNK_VALUES = 1 << 21

Chunks = Sequence[Any]
"""Flat arrays of values, one after another."""


@dataclass(frozen=True)
class ArrayReport:
    """One array of a file. If the file could not be read, `fault` is why, and the rest is None."""

    file: str
    array: str | None
    shape: list[int | None] | None
    """Rows first; None for an axis whose size differs from row to row."""
    dtype: str | None
    smallest: float | None = None
    largest: float | None = None
    nan_share: float | None = None
    infinite: int = 0
    fault: str | None = None

    @property
    def shown_shape(self) -> str:
        """The shape in words, such as [270, *, 12]."""
        return f"[{', '.join('*' if size is None else str(size) for size in self.shape or [])}]"


@dataclass
class _Range:
    """Range and faults of values that are seen in chunks."""

    smallest: float | None = None
    largest: float | None = None
    count: int = 0
    nan: int = 0
    infinite: int = 0

    def add(self, values: Any) -> None:
        self.count += len(values)
        if values.dtype.kind == "f":
            self.nan += int(np.isnan(values).sum())
            self.infinite += int(np.isinf(values).sum())
            values = values[np.isfinite(values)]
        if len(values):
            low, high = float(values.min()), float(values.max())
            self.smallest = low if self.smallest is None else min(self.smallest, low)
            self.largest = high if self.largest is None else max(self.largest, high)


def inspect_arrays(
    files: Sequence[Path],
    opener_of: Callable[[Path], Callable[[Path, Reading], Opened]],
    reading: Reading,
    progress: Progress = silent,
) -> list[ArrayReport]:
    """A report on each array of numbers in the files, and on each file that cannot be read."""
    reports = []
    for place, file in enumerate(files):
        progress("inspecting arrays", place, len(files))
        try:
            for name, shape, dtype, chunks in _arrays(file, opener_of, reading):
                reports.append(_array_report(str(file), name, shape, dtype, chunks))
        except FindingError as error:
            fault = "; ".join(found.message for found in error.findings)
            reports.append(ArrayReport(str(file), None, None, None, fault=fault))
    progress("inspecting arrays", len(files), len(files))
    return reports


def _array_report(
    file: str, name: str, shape: list[int | None], dtype: str, chunks: Chunks
) -> ArrayReport:
    found = _Range()
    for chunk in chunks:
        for start in range(0, len(chunk), CHUNK_VALUES):
            found.add(chunk[start : start + CHUNK_VALUES])
    share = found.nan / found.count if found.count else 0.0
    return ArrayReport(
        file, name, shape, dtype, found.smallest, found.largest, share, found.infinite
    )


def _arrays(
    file: Path, opener_of: Callable[[Path], Any], reading: Reading
) -> Iterator[tuple[str, list[int | None], str, Chunks]]:
    """Name, shape, type and values of each array of numbers."""
    if file.suffix in (".npy", ".npz"):  # as they were saved, before any is read as rows
        mapped = {file.stem: map_npy(file, str(file))} if file.suffix == ".npy" else map_npz(file)
        for name, array in mapped.items():
            if array.dtype.kind in "biuf":
                yield name, list(array.shape), str(array.dtype), [array.reshape(-1)]
        return
    arrow = opener_of(file)(file, reading).arrow
    for name in arrow.column_names:
        if is_array(arrow.schema.field(name).type):
            yield name, *_flattened(arrow[name])


def _flattened(column: pa.ChunkedArray) -> tuple[list[int | None], str, Chunks]:
    kind, shape, chunks = column.type, [len(column)], column.chunks
    sizes: list[int | None] = [*shape]
    while not pa.types.is_primitive(kind):
        sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind, chunks = kind.value_type, [chunk.flatten() for chunk in chunks]
    name = FLOAT_NAMES.get(str(kind), str(kind))
    return sizes, name, [chunk.to_numpy(zero_copy_only=False) for chunk in chunks]


def describe_arrays(reports: Sequence[ArrayReport]) -> str:
    """Return the reports as a table of plain text."""
    head = ("file", "array", "shape", "type", "range", "NaN")
    rows = [head, *(_cells(report) for report in reports if report.fault is None)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    faults = [
        f"cannot be read: {one_line(report.fault)}"
        for report in reports
        if report.fault is not None
    ]
    return "\n".join([*(lines if len(rows) > 1 else []), *faults])


def _cells(report: ArrayReport) -> tuple[str, ...]:
    known = report.smallest is not None and report.largest is not None
    values = f"{report.smallest:.4g} … {report.largest:.4g}" if known else "–"
    share = report.nan_share or 0.0
    faults = f"{share:.2%}" if share else "0"
    if report.infinite:
        faults += f", {report.infinite} infinite"
    return (
        one_line(Path(report.file).name),
        one_line(report.array or ""),
        report.shown_shape,
        report.dtype or "",
        values,
        faults,
    )
