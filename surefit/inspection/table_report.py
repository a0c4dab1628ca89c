"""A look at a data set: columns, types, lengths, empties, duplicates."""

from __future__ import annotations

from array import array
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from surefit.data.column_types import describe_type
from surefit.data.split import hash_rows
from surefit.data.table import Table
from surefit.inspection.array_report import ArrayReport, describe_arrays
from surefit.printable import one_line, redact
from surefit.progress import Progress, silent
from surefit.tasks.numeric_columns import describe_unused

BAR_WIDTH = 24
NUM_BARS = 8
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
    """Read every row once and report on each column."""
    hashes = hash_rows(table, table.columns)
    counters: dict[str, dict[str, int]] = {name: {} for name in table.columns}
    lengths = {name: array("q") for name in table.columns}
    empty = dict.fromkeys(table.columns, 0)
    for number, row in enumerate(table.rows()):
        if number % 256 == 0:
            progress("reading rows", number, table.num_rows)
        for name, value in row.items():
            if value is None or (hasattr(value, "__len__") and len(value) == 0):
                empty[name] += 1
            elif isinstance(value, str):
                empty[name] += not value.strip()
                lengths[name].append(len(value))
            elif hasattr(value, "__len__"):
                lengths[name].append(len(value))
            counter = counters[name]
            if isinstance(value, str | int | float) and len(counter) <= 1000:
                key = str(value)[:60]
                counter[key] = counter.get(key, 0) + 1
    progress("reading rows", table.num_rows, table.num_rows)
    return DataReport(
        [redact(source.file) for source in table.sources],
        table.num_rows,
        table.num_rows - len(np.unique(hashes)),
        [
            _report(name, table, empty[name], np.array(lengths[name]), counters[name])
            for name in table.columns
        ],
    )


def _report(
    name: str, table: Table, empty: int, lengths: Any, counter: dict[str, int]
) -> ColumnReport:
    few = 0 < len(counter) <= 1000 and len(counter) <= 0.5 * table.num_rows
    common = sorted(counter.items(), key=lambda pair: -pair[1])[:8] if few else None
    summary = histogram = None
    if len(lengths):
        summary = {
            "shortest": float(lengths.min()),
            "median": float(np.median(lengths)),
            "longest": float(lengths.max()),
        }
        if lengths.min() != lengths.max():
            bars = min(NUM_BARS, int(lengths.max() - lengths.min()) + 1)
            counts, edges = np.histogram(lengths, bins=bars)
            histogram = [(int(edges[i]), int(edges[i + 1]), int(counts[i])) for i in range(bars)]
    return ColumnReport(
        name,
        describe_type(table.column_type(name)),
        empty,
        summary,
        len(counter) if few else None,
        dict(common) if common else None,
        histogram,
    )
