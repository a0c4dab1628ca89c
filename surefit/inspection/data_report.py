"""A look at data before anything is trained: columns, arrays, and how features will be read.

The layout is planned by the same function as in `check`, so what is shown is what would be done.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from surefit.config import RunConfig
from surefit.data.data_rules import STRAY_AXIS_DROPPED
from surefit.data.formats.array_shards import SHARD_RESHAPED
from surefit.data.open_data import as_paths, files_of, open_table, opener_of
from surefit.data.roles import get_role, resolve_roles
from surefit.data.row_shapes import row_shape
from surefit.data.table import Table
from surefit.encode.features.feature_layout import Hints, plan_layout, planned_axes
from surefit.errors import FindingError
from surefit.findings import Finding
from surefit.inspection.array_report import ArrayReport, inspect_arrays
from surefit.inspection.table_report import DataReport, LayoutReport, inspect_table
from surefit.progress import Progress, silent


def inspect_data(
    data: Any, config: RunConfig, model: Any = None, progress: Progress = silent
) -> DataReport:
    """Report on data; with a model, also on what it expects of feature sequences."""
    arrays = look_at_files(data, config, progress)
    return inspect_opened(
        open_table(data, config.read, config.on_bad_file), arrays, config, model, progress
    )


def look_at_files(data: Any, config: RunConfig, progress: Progress = silent) -> list[ArrayReport]:
    """The arrays of the files as they lie on disk; none where data was given from Python."""
    paths = [data] if isinstance(data, str | Path) else data
    if not isinstance(paths, list | tuple) or not all(isinstance(p, str | Path) for p in paths):
        return []
    files = [file for file in files_of(as_paths(paths))[0] if not file.is_dir()]
    return inspect_arrays(files, opener_of, config.read, progress)


def inspect_opened(
    table: Table,
    arrays: list[ArrayReport],
    config: RunConfig,
    model: Any = None,
    progress: Progress = silent,
) -> DataReport:
    """The report on a table that is open already."""
    report = inspect_table(table, progress)
    roles = resolve_roles(table, ((get_role("features"),),), (get_role("mask"),), _chosen(config))
    if roles is None:
        return replace(report, arrays=arrays)
    layout = _layout(table, roles["features"], config, model)
    return replace(report, arrays=arrays, layout=layout)


def _chosen(config: RunConfig) -> dict[str, str]:
    return {role: column for role, column in config.columns.items() if role == "features"}


def _layout(table: Table, column: str, config: RunConfig, model: Any) -> LayoutReport:
    """How rows of features will be read, and why; what keeps them from it is `fault`."""
    hints, expects = _expected(model, config)
    shape = row_shape(table, column)
    applied = [
        found
        for found in table.findings
        if found.code in (STRAY_AXIS_DROPPED.code, SHARD_RESHAPED.code)
    ]
    try:
        layout, notes = plan_layout(
            shape, replace(hints, steps=config.features.steps, width=config.features.width), column
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


def _expected(model: Any, config: RunConfig) -> tuple[Hints, str | None]:
    """What a model expects of feature sequences, as hints and in words."""
    if model is None:
        return Hints(), None
    from surefit.models.open_model import open_model

    source = open_model(model, trust_remote_code=config.trust_remote_code, beside=None)
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
