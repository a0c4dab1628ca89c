"""forecasting: the next steps of series, from the steps before them; MASE, sMAPE and baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from surefit.batches.field import Field
from surefit.data.forecast_windows import FIRST_STEP, JUDGING, LAST, SCALE, SEASON
from surefit.inputs.encoded_row import Encoding
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import as_fitted
from surefit.inputs.features.feature_sequences import FEATURES
from surefit.inputs.row_input import Row
from surefit.inputs.store import Store
from surefit.targets.number_targets import (
    num_targets,
    number_figures,
    numbers_in_units,
)
from surefit.targets.row_target import NUMBERS
from surefit.targets.task_spec import Batch, Metric, Reads
from surefit.tasks.row_task import row_task

LAST_VALUE, SEASONAL = "last value", "seasonal naive"
"""Baselines: every step is the last value, or that of a season before."""


def encode(row: Row, encoder: Encoder, targets: Mapping[str, Any]) -> Encoding:
    """Return the history and, of rows with targets, what their forecast is judged by."""
    judging = {name: row[name] for name in JUDGING} if targets else {}
    if judging:
        judging[SEASON] = np.asarray(judging[SEASON]).reshape(-1)
    return FEATURES.encode(row, encoder, {**targets, **judging})


def fields(encoder: Encoder) -> dict[str, Field]:
    """Return the Fields of the history and of what forecasts are judged by."""
    judging = {SCALE: Field(), LAST: Field(), SEASON: Field(("class",))}
    return {**FEATURES.fields(encoder), **judging}


def _sums(outputs: Any, batch: Batch, encoder: Encoder) -> dict[str, Any]:
    made, labels = numbers_in_units(outputs, batch, encoder)
    count = len(labels)
    return error_sums(made.reshape(count, -1), labels.reshape(count, -1), batch[SCALE])


def error_sums(made: Any, labels: Any, scale: Any) -> dict[str, Any]:
    """Return the sums of scaled errors (MASE) and of symmetric percentage errors (sMAPE).

    A series that never changed before the forecast has no scale, and is left out of MASE. Equal
    forecasts and values have no percentage error, also where both are 0.
    """
    errors = (made - labels).abs()
    size = made.abs() + labels.abs()
    known = scale > 0
    return {
        "scaled": (errors.mean(1)[known] / scale[known]).sum(),
        "scaled_count": known.sum(),
        "percent": (200 * errors / size.where(size > 0, size + 1)).mean(1).sum(),
        "count": labels.new_tensor(len(labels)),
    }


FIGURES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "mase": lambda sums: float(sums["scaled"] / sums["scaled_count"]),
    "smape": lambda sums: float(sums["percent"] / sums["count"]),
}


def baselines(train: Store | None, validation: Store, encoder: Encoder) -> dict[str, Any]:
    """Return the figures of repeating the last value, and the last season."""
    import torch

    if not len(validation):
        return {}
    count, horizon, scales = (
        len(validation),
        num_targets(encoder),
        as_fitted(encoder.target.numbers),
    )
    judged = np.asarray(validation.values("labels"), np.float64).reshape(count, horizon)
    made = {LAST_VALUE: validation.values(LAST)[:, None].repeat(horizon, 1)}
    windows = encoder.settings.windows
    if windows is not None and windows.season > 1:
        made[SEASONAL] = validation.values(SEASON).reshape(count, horizon)
    found = {}
    for name, values in made.items():
        scaled = (values.astype(np.float64) - scales.mean) / scales.scale
        labels = judged * scales.scale + scales.mean
        known = (values, labels, validation.values(SCALE))
        made_of, of, scale = (torch.from_numpy(each.astype(np.float64)) for each in known)
        sums = error_sums(made_of, of, scale)
        figures = {metric: figure(sums) for metric, figure in FIGURES.items()}
        found[name] = {**number_figures(scaled, judged, encoder), **figures}
    return found


TARGET = replace(
    NUMBERS,
    metrics={
        **NUMBERS.metrics,
        **{n: Metric(_sums, f, better="lower", uses_encoder=True) for n, f in FIGURES.items()},
    },
    figures=replace(NUMBERS.figures, best="mase", baselines=baselines, judge=None),
)

SPEC = row_task(
    "forecasting",
    (replace(FEATURES, encode=encode, fields=fields),),
    TARGET,
    summary="the next steps of series in a long table (forecast.group, time, history, horizon)",
    reads=Reads(
        by_name=True,
        exact_targets=False,
        whole_rows=True,
        columns_read=lambda encoder, names: [n for n in names if n in (*JUDGING, FIRST_STEP)],
    ),
)
