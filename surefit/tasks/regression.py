"""regression: one number per text, row of features, or row of numbers, categories and dates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.field import Field
from surefit.config import joint_parts, set_option
from surefit.data.column_meanings import OF_TEXTS
from surefit.data.data_rules import NOT_FINITE
from surefit.data.label_columns import is_continuous
from surefit.data.numbers import read_number
from surefit.data.roles import get_role
from surefit.data.table import Table, is_fractional
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Encoding, RowFaultError, SkipRowError, encoded
from surefit.encode.encoder import Encoder
from surefit.findings import rule
from surefit.tasks import feature_sequences, tabular
from surefit.tasks.baselines import number_baselines
from surefit.tasks.metrics.r2 import r2_of
from surefit.tasks.task_spec import Batch, Head, Metric, TaskSpec, full_precision
from surefit.tasks.text_classification import adapt_to_pairs, encode_text, misread, text_fields

if TYPE_CHECKING:
    import torch

UNSUITABLE_TARGET = rule(
    "SF230",
    "error",
    "target does not suit regression",
    why="Regression learns a number, and the numbers must differ.",
    fix="Choose a column of numbers with columns.label, or a classification task.",
)


TARGET = Field((), "float32")


def number(value: Any) -> float | None:
    """The target of a row; None where it has none. An array of one number is that number.

    The text of a number counts as one: then the row that made its column text is at fault.
    """
    if isinstance(value, np.ndarray | list) and np.size(value) == 1:
        value = np.asarray(value).reshape(-1)[0].item()
    if isinstance(value, str):
        read = read_number(value)
        value = value if read is None else read
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, bool | int | float):
        raise RowFaultError(
            UNSUITABLE_TARGET,
            f"the target {str(value)[:40]!r} is not a number",
            "label",
            fix="Correct the value, or choose a column of numbers with columns.label.",
        )
    if math.isinf(value):
        raise RowFaultError(NOT_FINITE, f"the target is {value}", "label")
    return float(value)


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> dict[str, Any]:
    """Mean and scale of the target; how features or the columns of tabular rows are read."""
    column = encoder.roles["label"]
    if parts := joint_parts(column):
        raise UNSUITABLE_TARGET.error(
            f"columns.label names {len(parts)} columns; regression predicts one number per row.",
            fix=f"Name one of them, such as {set_option('columns.label', parts[0])}.",
            column=parts[0],
        )
    reader = feature_sequences.Reader(encoder) if "features" in encoder.roles else None
    is_tabular = reader is None and "text" not in encoder.roles
    gathered = tabular.Gathered(encoder) if is_tabular else None
    count, mean, squares = 0, 0.0, 0.0
    for row in reader.watch(rows) if reader is not None else rows:
        target = number(row["label"])
        if target is None:
            continue
        count += 1
        step = target - mean
        mean += step / count
        squares += step * (target - mean)
        if gathered is not None:
            gathered.add(row)
    scale = math.sqrt(squares / count) if count else 0.0
    if scale == 0:
        what = f"is {mean:g} in all {count} training rows" if count else "is blank everywhere"
        raise UNSUITABLE_TARGET.error(f"column {column!r} {what}.", column=column)
    read = reader or gathered
    return {**(read.fitted() if read is not None else {}), "mean": mean, "scale": scale}


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The row's tokens, steps or vector, and the target in units of its spread."""
    targets = {}
    if "label" in encoder.roles:
        target = number(row["label"])
        if target is None:
            raise SkipRowError(DropReason.NO_LABEL)
        targets["labels"] = (target - encoder.fitted["mean"]) / encoder.fitted["scale"]
    if "text" in encoder.roles:
        return encode_text(row, encoder, targets)
    if "features" in encoder.roles:
        return feature_sequences.encode_steps(row, encoder, targets)
    return encoded({"features": tabular.encode_columns(row, encoder), **targets})


def fields_of(encoder: Encoder) -> dict[str, Field]:
    """Tokens of text, steps or a vector of features, else a table's vector; and the target."""
    if "text" in encoder.roles:
        return {**text_fields(encoder), "labels": TARGET}
    if "features" in encoder.roles:
        return {**feature_sequences.feature_fields(encoder), "labels": TARGET}
    return {"features": tabular.FIELD, "labels": TARGET}


def head_of(encoder: Encoder) -> Head:
    """A class of transformers for texts; a body and an output of ours for feature_sequences."""
    if "features" in encoder.roles:
        return feature_sequences.row_head(lambda _: 1, encoder)
    return HEAD


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether the label is a continuous number, and the table has input columns."""
    known = "text" in roles or "features" in roles or tabular.has_columns(table, roles)
    label = roles["label"]
    if (
        "features" in roles
        and not is_fractional(table, label)
        and label.lower() not in get_role("label").names
    ):
        return False  # the numbers of rows, rather than amounts
    return known and is_continuous(table, label)


def _values(outputs: Any) -> torch.Tensor:
    """One number per row, of logits (B, 1) or (B,)."""
    logits = full_precision(outputs.logits)
    return logits.reshape(len(logits), -1)[:, 0]


def loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
    """Squared errors, in units of the target's spread, summed over the rows, and their number."""
    errors = _values(outputs) - batch["labels"]
    return errors.square().sum(), len(errors)


def _error_sums(outputs: Any, batch: Batch, encoder: Encoder) -> dict[str, Any]:
    errors = (_values(outputs) - batch["labels"]).double() * encoder.fitted["scale"]
    return {"absolute": errors.abs().sum(), "squared": errors.square().sum(), "count": len(errors)}


def _spread_sums(outputs: Any, batch: Batch) -> dict[str, Any]:
    labels = batch["labels"].double()
    return {
        "errors": (_values(outputs).double() - labels).square().sum(),
        "labels": labels.sum(),
        "squares": labels.square().sum(),
        "count": len(labels),
    }


def _in_units(outputs: Any, batch: Batch, encoder: Encoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions and targets in the units of the data: (B,) each."""
    mean, scale = encoder.fitted["mean"], encoder.fitted["scale"]
    return _values(outputs).double() * scale + mean, batch["labels"].double() * scale + mean


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """The number for each row, in the units of the data."""
    values = _values(outputs).double() * encoder.fitted["scale"] + encoder.fitted["mean"]
    return [{"prediction": value} for value in values.tolist()]


MAE = Metric(_error_sums, lambda sums: float(sums["absolute"] / sums["count"]), uses_encoder=True)
RMSE = Metric(
    _error_sums, lambda sums: float((sums["squared"] / sums["count"]) ** 0.5), uses_encoder=True
)

HEAD = Head(
    auto_class="AutoModelForSequenceClassification",
    size=lambda encoder: 1,
    config=lambda encoder: {
        "problem_type": "regression",
        "target_mean": encoder.fitted["mean"],
        "target_scale": encoder.fitted["scale"],
    },
)

SPEC = TaskSpec(
    name="regression",
    summary="one number per text, row of features, or row of numbers, categories and dates",
    needs=(("text", "label"), ("features", "label"), ("label",)),
    exact_targets=False,
    optional=("text_pair", "mask"),
    augments=("text", "text_pair"),
    arrays=feature_sequences.augmented_features,
    takes=takes,
    meanings=OF_TEXTS,
    misread=misread,
    whole_rows=True,
    columns_read=tabular.columns_read,
    fields={"features": tabular.FIELD, "labels": TARGET},
    fields_of=fields_of,
    adapt_tokenizer=adapt_to_pairs,
    encode=encode,
    fit=fit,
    loss=loss,
    metrics={"mae": MAE, "rmse": RMSE, "r2": Metric(_spread_sums, r2_of)},
    best="rmse",
    baselines=number_baselines,
    decode=decode,
    predicted_values=_in_units,
    head=HEAD,
    head_of=head_of,
)
