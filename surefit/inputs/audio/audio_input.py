"""Audio as the input of a row: what is measured on training rows, and how a row is encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from surefit.batches.field import Field
from surefit.data.cell_files import AUDIO, is_empty, names_files
from surefit.data.column_types import is_text
from surefit.data.profile import Profile
from surefit.data.several_columns import extra_roles
from surefit.data.table import Table
from surefit.findings import Finding
from surefit.inputs.audio.audio_format import AudioFormat
from surefit.inputs.audio.audio_planning import plan_audio
from surefit.inputs.encoded_row import (
    DropReason,
    Encoding,
    RowFaultError,
    SkipRowError,
    encoded,
    refuse_overlong,
)
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput
from surefit.inputs.features.feature_sequences import Spread
from surefit.inputs.row_input import RowInput

SAMPLE_ROWS = 256
"""Rows whose spectrograms give mean and standard deviation."""


def holds_audio(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether the audio column holds audio or, if it is text, names of audio files."""
    column = roles["audio"]
    return not is_text(table.column_type(column)) or names_files(table, column, AUDIO)


def audio_format(encoder: Encoder) -> AudioFormat:
    """How audio is read, once that is planned."""
    assert encoder.input.audio is not None
    return encoder.input.audio


class AudioReader:
    """Passes rows on; of every n-th, the log-mel spectrograms are measured on the way."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.form = encoder, audio_format(encoder)
        self._roles = ("audio", *extra_roles(encoder.roles))
        self.spread = Spread()
        self._stride = 1

    def watch(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The rows, unchanged; unreadable files are reported later, by the encoding."""
        plain = replace(self.form, axes=("time", "mel"), fixed=False)
        roles = self._roles if self.form.mels is not None else ()
        for place, row in enumerate(rows):
            for role in roles if place % self._stride == 0 else ():
                if is_empty(row[role]):
                    continue
                with suppress(RowFaultError):
                    waveform, _ = plain.waveform(row[role])
                    self.spread.add(plain.values(waveform).reshape(-1, 1))
                if self.spread.rows >= SAMPLE_ROWS * self._stride:
                    self._stride *= 2
            yield row

    def fitted(self) -> tuple[FittedInput, list[Finding]]:
        """The form, with the mean and the standard deviation of all values of spectrograms."""
        form = self.form
        if form.mels is not None and self.spread.steps:
            fitted = self.spread.fitted(1)
            form = replace(form, mean=fitted.mean[0], std=fitted.scale[0])
        return replace(self.encoder.input, audio=form), []


def encode_audio(row: Mapping[str, Any], encoder: Encoder, targets: Mapping[str, Any]) -> Encoding:
    """What the model reads of the audio, and the targets of the row."""
    form = audio_format(encoder)
    waveform, truncated = form.waveform(row["audio"])
    if not len(waveform):
        raise SkipRowError(DropReason.EMPTY)
    if truncated:
        limit = f"audio.seconds is {form.seconds:g}"
        samples = len(waveform) + truncated
        refuse_overlong(samples, encoder, "samples", encoder.roles["audio"], limit)
    columns = {form.column: form.values(waveform), **targets}
    return encoded(columns, truncated=form.positions(truncated))


def audio_fields(encoder: Encoder) -> dict[str, Field]:
    """The column that the model reads."""
    form = encoder.input.audio or AudioFormat(16_000, 1.0)
    return {form.column: form.batch_field}


def audio_config(encoder: Encoder) -> dict[str, Any]:
    """What the audio sets in a transformers config."""
    return {
        # drawn by NumPy's global generator, so that no run could be resumed exactly
        "apply_spec_augment": False,
        **audio_format(encoder).config,
    }


AUDIO_INPUT = RowInput(
    "audio",
    encode_audio,
    audio_fields,
    "AutoModelForAudioClassification",
    AudioReader,
    audio_config,
    takes=holds_audio,
    holds_amounts=partial(Profile.holds_amounts, whole=False),
    section="audio",
    plan=plan_audio,
)
