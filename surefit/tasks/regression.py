"""regression: one number, or several, per image, recording, text, row of features or table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from surefit.config import joint_parts
from surefit.core.float64 import to_float64
from surefit.data.cell_files import AUDIO, IMAGES, FileKind
from surefit.data.column_types import list_axes
from surefit.data.roles import Role, get_role
from surefit.data.table import Table
from surefit.findings import Finding
from surefit.inputs.audio.audio_input import AUDIO_INPUT
from surefit.inputs.encoded_row import DropReason, SkipRowError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedTarget
from surefit.inputs.features.feature_sequences import FEATURES
from surefit.inputs.image.image_reading import IMAGE
from surefit.inputs.table.table_input import TABLE, columns_read
from surefit.inputs.text.text_reading import AUTO_CLASS, IDS, TEXT, misread
from surefit.targets.baselines import judge_numbers, number_baselines
from surefit.targets.number_targets import (
    NUMBER_METRICS,
    TargetSpread,
    name_targets,
    num_targets,
    number_scales,
    predicted_numbers,
    scale_targets,
    target_field,
)
from surefit.targets.task_spec import Batch, Figures, Reads
from surefit.tasks.row_task import READS_TEXT, RowTarget, row_task

if TYPE_CHECKING:
    import torch


def _names_files(kind: FileKind) -> Role:
    """The role for files of one kind: a text under its name must name such a file."""

    def holds(values: Any) -> bool:
        texts = [value for value in values if isinstance(value, str)]
        return not texts or any(kind.has(text) for text in texts)

    return replace(get_role(kind.role), holds=holds)


FILE_ROLES = (_names_files(IMAGES), _names_files(AUDIO))
"""Roles of a task that also reads tables, of which the path of a file may be one column."""


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> tuple[FittedTarget, list[Finding]]:
    """Mean and scale of the targets."""
    targets = TargetSpread(encoder.roles["label"])
    for row in rows:
        targets.add(row)
    return FittedTarget(numbers=targets.fitted()), []


def encode(row: Mapping[str, Any], encoder: Encoder) -> Any:
    """The targets in units of their spread."""
    scaled = scale_targets(row["label"], encoder)
    if scaled is None:
        raise SkipRowError(DropReason.NO_LABEL)
    return scaled


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether the label is a continuous number, and the table has inputs."""
    label = roles["label"]
    if (
        "features" in roles
        and not joint_parts(label)
        and not pa.types.is_floating(list_axes(table.column_type(label))[1])
        and label.lower() not in get_role("label").names
    ):
        return False  # the numbers of rows, rather than amounts
    given = next((each for each in INPUTS if each.role in roles), INPUTS[-1])
    numbers = table.profile(label)
    is_amount = numbers.is_continuous if given.role == "features" else given.holds_amounts(numbers)
    return is_amount and given.takes(table, roles)


def loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
    """Squared errors, in units of the target's spread, summed over the rows, and their number.

    Of several targets, a row's loss is the mean of their squared errors.
    """
    labels = batch["labels"].reshape(len(batch["labels"]), -1)
    errors = predicted_numbers(outputs, labels.shape[1]) - labels
    return errors.square().mean(-1).sum(), len(errors)


def _in_units(outputs: Any, batch: Batch, encoder: Encoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions and targets in the units of the data: (B,) each, or (B, K)."""
    labels = to_float64(batch["labels"])
    made = to_float64(predicted_numbers(outputs, num_targets(encoder))).reshape(labels.shape)
    scales = number_scales(encoder)
    mean, scale = labels.new_tensor(scales.mean), labels.new_tensor(scales.scale)
    return made * scale + mean, labels * scale + mean


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """The numbers for each row, in the units of the data."""
    values = to_float64(predicted_numbers(outputs, num_targets(encoder)))
    scales = number_scales(encoder)
    mean, scale = values.new_tensor(scales.mean), values.new_tensor(scales.scale)
    return [{"prediction": name_targets(row, encoder)} for row in (values * scale + mean).tolist()]


def _settings(encoder: Encoder) -> dict[str, Any]:
    scales, kind = number_scales(encoder), {"problem_type": "regression"}
    if not scales.names:
        return {**kind, "target_mean": scales.mean[0], "target_scale": scales.scale[0]}
    return {
        **kind,
        "target_mean": list(scales.mean),
        "target_scale": list(scales.scale),
        "id2label": dict(enumerate(scales.names)),
        "label2id": {name: place for place, name in enumerate(scales.names)},
    }


NUMBERS = RowTarget(
    fit,
    encode,
    target_field,
    num_targets,
    _settings,
    loss,
    NUMBER_METRICS,
    decode,
    Figures(
        predicted_values=_in_units, best="rmse", baselines=number_baselines, judge=judge_numbers
    ),
    unit="numbers per row",
)
INPUTS = (IMAGE, AUDIO_INPUT, TEXT, IDS, FEATURES, replace(TABLE, auto_class=AUTO_CLASS))

SPEC = row_task(
    "regression",
    INPUTS,
    NUMBERS,
    summary="one number, or several, per image, recording, text, row of features, or row of "
    "numbers, categories and dates",
    roles=FILE_ROLES,
    reads=Reads(takes, misread, exact_targets=False, whole_rows=True, columns_read=columns_read),
    **READS_TEXT,
)
