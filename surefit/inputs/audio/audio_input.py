"""Audio as the input of a row: what is measured on training rows, and how a row is encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from surefit.batches.field import Field
from surefit.data.cell_files import is_empty
from surefit.data.profile import Profile
from surefit.data.several_columns import extra_roles
from surefit.findings import Finding
from surefit.inputs.audio.audio_format import AudioFormat, extract
from surefit.inputs.audio.audio_planning import plan_audio
from surefit.inputs.encoded_row import (
    DropReason,
    Encoding,
    RowFaultError,
    drop_row,
    encoded,
    refuse_overlong,
)
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput
from surefit.inputs.features.feature_sequences import Spread
from surefit.inputs.features.series_changes import SeriesChanges
from surefit.inputs.file_names import holds_files
from surefit.inputs.row_input import RowInput

SAMPLE_ROWS = 256
"""Rows whose spectrograms give mean and standard deviation."""


def audio_format(encoder: Encoder) -> AudioFormat:
    """Return how audio is read, once that is planned."""
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
        """Yield the rows, unchanged; unreadable files are reported later, by the encoding."""
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
        """Return form, with the mean and the standard deviation of all values of spectrograms."""
        form = self.form
        if form.mels is not None and self.spread.steps:
            fitted = self.spread.fitted(1)
            form = replace(form, mean=fitted.mean[0], std=fitted.scale[0])
        return replace(self.encoder.input, audio=form), []


def encode_audio(row: Mapping[str, Any], encoder: Encoder, targets: Mapping[str, Any]) -> Encoding:
    """Return what the model reads of the audio, and the targets of the row."""
    form = audio_format(encoder)
    waveform, truncated = form.waveform(row["audio"])
    if not len(waveform):
        raise drop_row(DropReason.EMPTY)
    if truncated:
        limit = f"audio.seconds is {form.seconds:g}"
        samples = len(waveform) + truncated
        refuse_overlong(samples, encoder, "samples", encoder.roles["audio"], limit)
    columns = {form.column: form.values(waveform), **targets}
    return encoded(columns, truncated=form.positions(truncated))


def audio_fields(encoder: Encoder) -> dict[str, Field]:
    """Return the column that the model reads."""
    form = encoder.input.audio or AudioFormat(16_000, 1.0)
    return {form.column: form.batch_field}


def audio_config(encoder: Encoder) -> dict[str, Any]:
    """Return what the audio sets in a transformers config."""
    return {
        # drawn by NumPy's global generator, so that no run could be resumed exactly
        "apply_spec_augment": False,
        **audio_format(encoder).config,
    }


def audio_changes(
    changes: Mapping[str, float], encoder: Encoder, fields: Mapping[str, Field]
) -> SeriesChanges:
    """Return the changes of waveforms or spectrograms, along their time and their bands."""
    form = audio_format(encoder)
    value = fields[form.column]
    if "time" in value.axes:
        time = value.axes.index("time")
    else:  # an extractor pads all rows to one length: the axis that the mel bands are not
        made = form.extractor or {}
        shape = extract(made, np.zeros(form.rate, np.float32))[form.column].shape
        bands = made.get("num_mel_bins") or made.get("feature_size")
        time = next((axis for axis, size in enumerate(shape) if size != bands), 0)
    others = [axis for axis in range(value.rank) if axis != time and value.axes[axis] != "channel"]
    spread = (1.0,) if form.mels is not None and form.extractor is None else None
    channel = others[-1] if others else None
    made_ready = SeriesChanges(changes, form.column, time, channel, spread=spread)
    made_ready.require_axes("audio", "the model reads waveforms, of one channel")
    return made_ready


AUDIO_INPUT = RowInput(
    "audio",
    encode_audio,
    audio_fields,
    "AutoModelForAudioClassification",
    AudioReader,
    audio_config,
    takes=partial(holds_files, role="audio"),
    holds_amounts=partial(Profile.holds_amounts, whole=False),
    section="audio",
    content_name="recordings",
    changes=audio_changes,
    plan=plan_audio,
)
