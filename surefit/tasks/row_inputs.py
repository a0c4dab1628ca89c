"""The input side of a row, by its role: what regression shares with the classifications.

Each modality has one reader, one encoding and one set of Fields, whatever is learned beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from surefit.batches.field import Field
from surefit.data.file_kinds import AUDIO, IMAGES, FileKind
from surefit.data.roles import Role, get_role
from surefit.data.table import Table
from surefit.encode.encoded_row import Encoding, encoded
from surefit.encode.encoder import Encoder
from surefit.tasks import audio_reading, feature_sequences, image_reading, tabular
from surefit.tasks.text_classification import encode_text, labels_rows, text_fields

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
