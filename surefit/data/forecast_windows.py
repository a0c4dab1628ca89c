"""Long tables of series (group, time, values) as windows: a history and the steps that follow it.

A row of the result is one window. Windows of one group overlap, so they are split by time: the
targets of training windows end before those of validation windows begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.config import RunConfig
from surefit.data.arrow_types import in_cache
from surefit.data.cache import fingerprint
from surefit.data.column_types import is_number
from surefit.data.formats.numpy_files import to_arrow
from surefit.data.split_columns import read_times
from surefit.data.table import CHUNK_ROWS, Source, Table
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule

REPEATED_TIME = rule(
    "SF192",
    "error",
    "two rows of a series have one time",
    why="A series has one value per step, and it is not known which of the two comes first.",
    fix="Name the column that tells the series apart with forecast.group, or remove one row.",
)
IRREGULAR_TIMES = rule(
    "SF193",
    "warning",
    "a series has steps of different length",
    why="A window is a number of rows; with rows missing, it spans another time.",
    fix="Fill in the missing rows, or resample the series.",
    accept="Rows that follow each other are steps.",
)
FIRST_STEP, SCALE, LAST, SEASON = "forecast_step", "naive_scale", "last_value", "season_values"
"""Columns of windows: when the targets begin, the mean error of a naive forecast in the series up
to there, and what the baselines forecast."""
FORECASTING = "forecasting"
"""The name of the task."""
JUDGING = (SCALE, LAST, SEASON)
REGULAR = 0.2
"""Steps that differ by more than this share from most are irregular; months differ by less."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Windows:
    """How a long table is cut into windows."""

    time: str
    value: str
    inputs: tuple[str, ...]
    """The columns of a step: the value first."""
    history: int
    horizon: int
    group: str | None = None
    season: int = 1

    @property
    def roles(self) -> dict[str, str]:
        """The roles of the columns of a Table of windows."""
        return {"features": "features", "label": self.value}


def is_forecast(config: RunConfig) -> bool:
    """Return whether a config asks for windows."""
    return config.task == FORECASTING or config.forecast.horizon is not None


def with_split(config: RunConfig) -> RunConfig:
    """Return the config that splits windows by time, unless whole groups are kept together."""
    split = config.split
    ways = {"time": split.time, "column": split.column, "folds": split.folds and not split.by}
    given = next((name for name, value in ways.items() if value), None)
    if given is not None:
        raise UsageError(
            f"split.{given} is set, and windows of series overlap: they are split by time, so that "
            "no validation target is in a training window.",
            f"Leave split.{given} out, or keep whole series together with split.by.",
        )
    if split.by is None:
        gap = float(config.forecast.horizon or 0)
        split = split.model_copy(update={"time": FIRST_STEP, "gap": gap})
    return config.model_copy(update={"split": split})


def plan_windows(table: Table, config: RunConfig) -> Windows:
    """Return which columns are what, and how long a window is; refuse what is missing."""
    asked = config.forecast
    needed = {name: getattr(asked, name) for name in ("time", "history", "horizon")}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise UsageError(
            f"Forecasting needs {', '.join(f'forecast.{name}' for name in missing)}.",
            "Set forecast.time=COLUMN, forecast.history=STEPS and forecast.horizon=STEPS; for "
            "several series in one table also forecast.group=COLUMN.",
        )
    for key, column in (("forecast.time", asked.time), ("forecast.group", asked.group)):
        if column is not None:
            table.require_column(key, column)
    numbers = [
        name
        for name in table.columns
        if is_number(table.column_type(name)) and name not in (asked.time, asked.group)
    ]
    label = config.columns.get("label")
    if label is None and len(numbers) != 1:
        raise UsageError(
            f"There are {len(numbers)} columns of numbers that may be forecast: "
            f"{', '.join(numbers) or 'none'}.",
            "Name one with columns.label.",
        )
    value = label or numbers[0]
    table.require_column("columns.label", value)
    if value not in numbers:
        raise UsageError(
            f"columns.label is {value!r}, which is no column of numbers to forecast.",
            f"Name one of: {', '.join(numbers)}." if numbers else "Store the values as numbers.",
        )
    season = asked.season or 1
    if season > (asked.history or 0):
        raise UsageError(
            f"forecast.season is {season} steps, and forecast.history {asked.history}.",
            "A seasonal forecast repeats a season of the history: make the history as long.",
        )
    inputs = (value, *(name for name in numbers if name != value))
    assert asked.time is not None
    assert asked.history is not None
    assert asked.horizon is not None
    sizes = asked.history, asked.horizon
    return Windows(asked.time, value, inputs, *sizes, asked.group, season)


def cut_windows(table: Table, windows: Windows, last: bool = False) -> Table:
    """Return a Table of windows; with `last`, the last history of each group, without targets.

    A table that has been cut already stays as it is.
    """
    if FIRST_STEP in table.columns:
        return table
    series = _Series.of(table, windows, last)
    source = table.sources[0].file
    found = [*table.findings, *series.notes(table)]
    if not len(series.starts):
        raise UsageError(
            f"{source}: no series has {series.size} rows: {windows.history} of history"
            + (f" and {windows.horizon} to forecast." if not last else "."),
            "Use a shorter forecast.history, or longer series.",
        )
    key = fingerprint("windows", table.key, repr(windows), last)
    schema = series.batch(series.starts[:1]).schema
    arrow = in_cache(key, schema, source, series.batches)
    return replace(table, arrow=arrow, sources=(Source(f"windows of {source}", 0),), key=key,
                   findings=tuple(found), live=None)  # fmt: skip


@dataclass(frozen=True)
class _Series:
    """Rows in the order of group and time, and where windows begin among them."""

    windows: Windows
    last: bool
    table: Table
    order: Array
    values: Array  # (N, W), in that order
    steps: Array  # which of the distinct times a row has
    begins: Array  # where the group of a row begins
    starts: Array
    irregular: int
    left_out: int

    @property
    def size(self) -> int:
        """Rows of a window."""
        return self.windows.history + (0 if self.last else self.windows.horizon)

    @classmethod
    def of(cls, table: Table, windows: Windows, last: bool) -> _Series:
        """Sort the rows, and find the windows that have all values."""
        for name in windows.inputs:
            table.require_column("forecast", name)
        times = read_times(table, windows.time, "forecast.time")
        groups = np.zeros(table.num_rows, np.int64)
        if windows.group is not None:
            table.require_column("forecast.group", windows.group)
            coded = table.arrow[windows.group].combine_chunks().dictionary_encode("encode")
            groups = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        order = np.lexsort((times, groups))
        groups, times = groups[order], times[order]
        same = np.diff(groups, prepend=-1) == 0
        repeated = same & (np.diff(times, prepend=np.nan) == 0)
        if repeated.any():
            row = int(order[np.argmax(repeated)])
            message = f"row {row} has the {windows.time} of another row of its series"
            raise REPEATED_TIME.error(f"{message}.", table.where(row), column=windows.time)
        values = np.stack(
            [table.arrow[name].to_numpy().astype(np.float64) for name in windows.inputs], axis=1
        )[order]
        begins = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
        lengths = np.diff(times)[same[1:]]
        usual = np.median(lengths) if len(lengths) else 1.0
        irregular = int((np.abs(lengths - usual) > REGULAR * usual).sum())
        size = windows.history + (0 if last else windows.horizon)
        ends = np.append(np.flatnonzero(~same)[1:], len(order))
        end_of = ends[np.searchsorted(ends, np.arange(len(order)), "right")]
        fits = np.arange(len(order)) + size <= end_of
        if last:
            fits &= np.arange(len(order)) + size == end_of
        gone = np.cumsum(np.append(0, ~np.isfinite(values).all(1)))
        starts = np.flatnonzero(fits)
        whole = gone[starts + size] == gone[starts]
        steps = np.searchsorted(np.unique(times), times)
        return cls(windows, last, table, order, values, steps, begins, starts[whole], irregular,
                   int((~whole).sum()))  # fmt: skip

    def notes(self, table: Table) -> Iterator[Finding]:
        """Yield what the windows are, and what is left out."""
        windows = self.windows
        of = f" of each {windows.group}" if windows.group else ""
        message = (
            f"{len(self.starts):,} windows{of}: {windows.history} steps of "
            f"{', '.join(windows.inputs)} by {windows.time}; the next {windows.horizon} of "
            f"{windows.value} are forecast"
        )
        if self.left_out:
            message += f"; {self.left_out:,} windows with missing values are left out"
        yield note(f"{message}.")
        if self.irregular:
            message = (
                f"{self.irregular:,} steps of {windows.time!r} are longer or shorter than most"
            )
            yield IRREGULAR_TIMES.finding(f"{message}.", column=windows.time)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the windows, some at a time."""
        for start in range(0, len(self.starts), CHUNK_ROWS):
            yield self.batch(self.starts[start : start + CHUNK_ROWS])

    def batch(self, starts: Array) -> pa.RecordBatch:
        """Return windows that begin at these places."""
        windows = self.windows
        first = starts + windows.history
        history = self.values[starts[:, None] + np.arange(windows.history)]
        made = {"features": to_arrow(history.astype(np.float32))}
        rows = pa.array(self.order[first - 1])
        for name in (windows.group, windows.time):
            if name is not None and name not in made:
                made[name] = self.table.arrow[name].take(rows).combine_chunks()
        places = np.minimum(first, len(self.steps) - 1)
        made[FIRST_STEP] = pa.array(self.steps[places].astype(np.int64))
        if not self.last:
            value, m = self.values[:, 0], windows.season
            ahead = np.arange(windows.horizon)
            made[windows.value] = to_arrow(value[first[:, None] + ahead])
            made[SCALE] = pa.array([self._scale(at, m) for at in first.tolist()])
            made[LAST] = pa.array(value[first - 1])
            made[SEASON] = to_arrow(value[first[:, None] - m + ahead % m])
        return pa.RecordBatch.from_arrays([*made.values()], names=[*made])

    def _scale(self, first: int, season: int) -> float:
        """Return the mean error of repeating the season before, in the series up to a forecast."""
        known = self.values[self.begins[first - 1] : first, 0]
        errors = np.abs(known[season:] - known[:-season])
        errors = errors[np.isfinite(errors)]
        return float(errors.mean()) if len(errors) else 0.0


def shown_columns(windows: Windows | None, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the group and the last time of a window, which are shown with its forecast."""
    names = (windows.group, windows.time) if windows is not None else ()
    return {name: row[name] for name in names if name is not None and name in row}
