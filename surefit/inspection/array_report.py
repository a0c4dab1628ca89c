"""Every array of every file, as it lies on disk: shape, type, range, share of NaN.

Values are looked at a chunk at a time where they are mapped; nothing is loaded whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.config import Reading
from surefit.data.column_types import FLOAT_NAMES, is_array
from surefit.data.formats.numpy_files import map_npy, map_npz
from surefit.data.formats.opened import Opened
from surefit.errors import FindingError
from surefit.printable import one_line
from surefit.progress import Progress, silent

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
                reports.append(_report(str(file), name, shape, dtype, chunks))
        except FindingError as error:
            fault = "; ".join(found.message for found in error.findings)
            reports.append(ArrayReport(str(file), None, None, None, fault=fault))
    progress("inspecting arrays", len(files), len(files))
    return reports


def _report(
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
    """The reports as a table of plain text."""
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
