"""regression: one number, or several, per text, row of features, or row of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from surefit.batches.field import Field
from surefit.config import joint_parts
from surefit.data.column_meanings import OF_TEXTS
from surefit.data.column_types import list_axes
from surefit.data.label_columns import is_continuous
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Encoding, SkipRowError, encoded
from surefit.encode.encoder import Encoder
from surefit.tasks import feature_sequences, tabular
from surefit.tasks.baselines import judge_numbers, number_baselines
from surefit.tasks.metrics.number_metrics import NUMBER_METRICS, predicted_numbers
from surefit.tasks.number_targets import (
    TargetSpread,
    name_targets,
    num_targets,
    scale_targets,
    target_field,
)
from surefit.tasks.task_spec import Batch, Head, TaskSpec
from surefit.tasks.text_classification import adapt_to_pairs, encode_text, misread, text_fields

if TYPE_CHECKING:
    import torch


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> dict[str, Any]:
    """Mean and scale of the targets; how features or the columns of tabular rows are read."""
    targets = TargetSpread(encoder.roles["label"])
    reader = feature_sequences.Reader(encoder) if "features" in encoder.roles else None
    is_tabular = reader is None and "text" not in encoder.roles
    gathered = tabular.Gathered(encoder) if is_tabular else None
    for row in reader.watch(rows) if reader is not None else rows:
        if targets.add(row) and gathered is not None:
            gathered.add(row)
    fitted = targets.fitted()
    read = reader or gathered
    return {**(read.fitted() if read is not None else {}), **fitted}


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The row's tokens, steps or vector, and the targets in units of their spread."""
    targets = {}
    if "label" in encoder.roles:
        targets["labels"] = scale_targets(row["label"], encoder)
        if targets["labels"] is None:
            raise SkipRowError(DropReason.NO_LABEL)
    if "text" in encoder.roles:
        return encode_text(row, encoder, targets)
    if "features" in encoder.roles:
        return feature_sequences.encode_steps(row, encoder, targets)
    return encoded({"features": tabular.encode_columns(row, encoder), **targets})


def fields_of(encoder: Encoder) -> dict[str, Field]:
    """Tokens of text, steps or a vector of features, else a table's vector; and the targets."""
    targets = {"labels": target_field(encoder)}
    if "text" in encoder.roles:
        return {**text_fields(encoder), **targets}
    if "features" in encoder.roles:
        return {**feature_sequences.feature_fields(encoder), **targets}
    return {"features": tabular.FIELD, **targets}


def head_of(encoder: Encoder) -> Head:
    """A class of transformers for texts; a body and an output of ours for feature_sequences."""
    if "features" in encoder.roles:
        return replace(feature_sequences.row_head(num_targets, encoder), unit=HEAD.unit)
    return HEAD


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether the label is a continuous number, and the table has input columns."""
    known = "text" in roles or "features" in roles or tabular.has_columns(table, roles)
    label = roles["label"]
    if (
        "features" in roles
        and not joint_parts(label)
        and not pa.types.is_floating(list_axes(table.column_type(label))[1])
        and label.lower() not in get_role("label").names
    ):
        return False  # the numbers of rows, rather than amounts
    return known and is_continuous(table, label)


def loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
    """Squared errors, in units of the target's spread, summed over the rows, and their number.

    Of several targets, a row's loss is the mean of their squared errors.
    """
    labels = batch["labels"].reshape(len(batch["labels"]), -1)
    errors = predicted_numbers(outputs, labels.shape[1]) - labels
    return errors.square().mean(-1).sum(), len(errors)


def _in_units(outputs: Any, batch: Batch, encoder: Encoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions and targets in the units of the data: (B,) each, or (B, K)."""
    labels = batch["labels"].double()
    made = predicted_numbers(outputs, num_targets(encoder)).double().reshape(labels.shape)
    mean, scale = (labels.new_tensor(encoder.fitted[name]) for name in ("mean", "scale"))
    return made * scale + mean, labels * scale + mean


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """The numbers for each row, in the units of the data."""
    values = predicted_numbers(outputs, num_targets(encoder)).double()
    mean, scale = (values.new_tensor(encoder.fitted[name]) for name in ("mean", "scale"))
    return [{"prediction": name_targets(row, encoder)} for row in (values * scale + mean).tolist()]


def _settings(encoder: Encoder) -> dict[str, Any]:
    fitted, names = encoder.fitted, encoder.fitted.get("targets", ())
    settings = {"target_mean": fitted["mean"], "target_scale": fitted["scale"]}
    if names:
        settings["id2label"] = dict(enumerate(names))
        settings["label2id"] = {name: place for place, name in enumerate(names)}
    return {"problem_type": "regression", **settings}


HEAD = Head(
    auto_class="AutoModelForSequenceClassification",
    size=num_targets,
    config=_settings,
    unit="numbers per row",
)

SPEC = TaskSpec(
    name="regression",
    summary="one number, or several, per text, row of features, or row of numbers, categories and "
    "dates",
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
    fields={"features": tabular.FIELD, "labels": Field((), "float32")},
    fields_of=fields_of,
    adapt_tokenizer=adapt_to_pairs,
    encode=encode,
    fit=fit,
    loss=loss,
    metrics=NUMBER_METRICS,
    best="rmse",
    baselines=number_baselines,
    judge=judge_numbers,
    decode=decode,
    predicted_values=_in_units,
    head=HEAD,
    head_of=head_of,
)
