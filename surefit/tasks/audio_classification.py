"""audio-classification: one class, or several, per recording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from surefit.batches.field import Field
from surefit.data.cell_files import is_empty
from surefit.data.label_columns import holds_amounts
from surefit.data.table import Table
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Encoding, SkipRowError
from surefit.encode.encoder import Encoder
from surefit.tasks.audio_reading import (
    AudioReader,
    audio_config,
    audio_fields,
    encode_audio,
    holds_audio,
)
from surefit.tasks.class_task import class_head, class_targets, class_task
from surefit.tasks.classes import class_settings, fit_classes, label_field


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether there is audio or names of its files, and float labels are no amounts."""
    return holds_audio(table, roles) and not holds_amounts(table, roles["label"], whole=False)


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> dict[str, Any]:
    """The classes; and mean and standard deviation of log-mel spectrograms."""
    reader = AudioReader(encoder)
    return {**fit_classes(reader.watch(rows), encoder), **reader.fitted()}


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """What the model reads of the audio, and the class."""
    if is_empty(row["audio"]):
        raise SkipRowError(DropReason.EMPTY)
    return encode_audio(row, encoder, class_targets(row, encoder))


def fields(encoder: Encoder) -> dict[str, Field]:
    """The column that the model reads, and the class or classes."""
    return {**audio_fields(encoder), "labels": label_field(encoder)}


SPEC = class_task(
    name="audio-classification",
    summary="one class, or several, per recording: wav, flac or mp3",
    needs=(("audio", "label"),),
    takes=takes,
    arrays=lambda roles: "audio",
    fields=fields(Encoder("audio-classification", {})),
    fields_of=fields,
    encode=encode,
    fit=fit,
    head=class_head(
        auto_class="AutoModelForAudioClassification",
        config=lambda encoder: {**class_settings(encoder), **audio_config(encoder)},
    ),
)
