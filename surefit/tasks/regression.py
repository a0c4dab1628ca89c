"""regression: one number, or several, per image, recording, text, row of features or table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from surefit.batches.field import Field
from surefit.config import joint_parts
from surefit.core.float64 import to_float64
from surefit.data.column_meanings import OF_TEXTS
from surefit.data.column_types import list_axes
from surefit.data.file_kinds import AUDIO, IMAGES, FileKind
from surefit.data.label_columns import holds_amounts, is_continuous
from surefit.data.roles import Role, get_role
from surefit.data.table import Table
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Encoding, SkipRowError, encoded
from surefit.encode.encoder import Encoder
from surefit.tasks import audio_reading, feature_sequences, image_reading, tabular
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
from surefit.tasks.text_classification import (
    ALONGSIDE,
    adapt_to_pairs,
    encode_text,
    labels_rows,
    misread,
    text_fields,
)

if TYPE_CHECKING:
    import torch


Row = Mapping[str, Any]
Roles = Mapping[str, str]


class Reader(Protocol):
    """Measures the inputs of training rows that pass by."""

    def watch(self, rows: Iterable[Row]) -> Iterable[Row]:
        """The rows, unchanged."""

    def fitted(self) -> dict[str, Any]:
        """What was measured, as the Encoder keeps it."""


@dataclass(frozen=True)
class RowInput:
    """How the input of a row is recognised, read and encoded."""

    encode: Callable[[Row, Encoder, Row], Encoding]
    """The encoded row, with the targets given."""
    fields: Callable[[Encoder], Mapping[str, Field]]
    auto_class: str | None = None
    """The class of transformers with an output per row; None: a body and an output of ours."""
    reader: Callable[[Encoder], Reader] | None = None
    config: Callable[[Encoder], dict[str, Any]] = lambda encoder: {}
    """What the input sets in the config of a transformers model."""
    takes: Callable[[Table, Roles], bool] = lambda table, roles: True


INPUTS: dict[str, RowInput] = {
    "image": RowInput(
        image_reading.encode_image,
        lambda encoder: {"pixel_values": image_reading.PIXELS},
        "AutoModelForImageClassification",
        image_reading.ImageReader,
        takes=image_reading.holds_images,
    ),
    "audio": RowInput(
        audio_reading.encode_audio,
        audio_reading.audio_fields,
        "AutoModelForAudioClassification",
        audio_reading.AudioReader,
        audio_reading.audio_config,
        audio_reading.holds_audio,
    ),
    "text": RowInput(encode_text, text_fields, "AutoModelForSequenceClassification"),
    "input_ids": RowInput(
        encode_text, text_fields, "AutoModelForSequenceClassification", takes=labels_rows
    ),
    "features": RowInput(
        feature_sequences.encode_steps,
        feature_sequences.feature_fields,
        reader=feature_sequences.Reader,
    ),
}
"""By role, in the order in which they are looked for."""

TABLE = RowInput(
    lambda row, encoder, targets: encoded(
        {"features": tabular.encode_columns(row, encoder), **targets}
    ),
    lambda encoder: {"features": tabular.FIELD},
    "AutoModelForSequenceClassification",
    takes=tabular.has_columns,
)
"""Rows without such a role: all other columns."""


def input_of(roles: Roles) -> RowInput:
    """The input of rows with these roles."""
    return next((given for role, given in INPUTS.items() if role in roles), TABLE)


def arrays_of(roles: Roles) -> str | None:
    """The section of the config that augments these rows."""
    return next((role for role in ("image", "audio", "features") if role in roles), None)


def _names_files(kind: FileKind) -> Role:
    """The role for files of one kind: a text under its name must name such a file."""

    def holds(values: Any) -> bool:
        texts = [value for value in values if isinstance(value, str)]
        return not texts or any(kind.has(text) for text in texts)

    return replace(get_role(kind.role), holds=holds)


FILE_ROLES = (_names_files(IMAGES), _names_files(AUDIO))
"""Roles of a task that also reads tables, of which the path of a file may be one column."""


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> dict[str, Any]:
    """Mean and scale of the targets; how the inputs are read."""
    targets, given = TargetSpread(encoder.roles["label"]), input_of(encoder.roles)
    reader = given.reader(encoder) if given.reader is not None else None
    gathered = tabular.Gathered(encoder) if given is TABLE else None
    for row in reader.watch(rows) if reader is not None else rows:
        if targets.add(row) and gathered is not None:
            gathered.add(row)
    fitted = targets.fitted()
    read = reader or gathered
    return {**(read.fitted() if read is not None else {}), **fitted}


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The input of the row, and the targets in units of their spread."""
    targets = {}
    if "label" in encoder.roles:
        targets["labels"] = scale_targets(row["label"], encoder)
        if targets["labels"] is None:
            raise SkipRowError(DropReason.NO_LABEL)
    return input_of(encoder.roles).encode(row, encoder, targets)


def fields_of(encoder: Encoder) -> dict[str, Field]:
    """The columns of the input, and the targets."""
    return {**input_of(encoder.roles).fields(encoder), "labels": target_field(encoder)}


def head_of(encoder: Encoder) -> Head:
    """A class of transformers, or a body and an output of ours for features."""
    if "features" in encoder.roles:
        return replace(feature_sequences.row_head(num_targets, encoder), unit=HEAD.unit)
    given = input_of(encoder.roles)
    return replace(
        HEAD,
        auto_class=given.auto_class,
        config=lambda encoder: {**_settings(encoder), **given.config(encoder)},
    )


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
    if "image" in roles or "audio" in roles:  # whose integers are classes
        amounts = holds_amounts(table, label, whole=False)
    else:
        amounts = is_continuous(table, label)
    return amounts and input_of(roles).takes(table, roles)


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
    mean, scale = (labels.new_tensor(encoder.fitted[name]) for name in ("mean", "scale"))
    return made * scale + mean, labels * scale + mean


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """The numbers for each row, in the units of the data."""
    values = to_float64(predicted_numbers(outputs, num_targets(encoder)))
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
    summary="one number, or several, per image, recording, text, row of features, or row of "
    "numbers, categories and dates",
    needs=(*((role, "label") for role in INPUTS), ("label",)),
    roles=FILE_ROLES,
    exact_targets=False,
    optional=("text_pair", *ALONGSIDE),
    augments=("text", "text_pair"),
    arrays=arrays_of,
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
