"""What tasks on audio share: which columns are audio, how it is measured and encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from surefit.batches.field import Field
from surefit.data.cell_files import is_empty, names_files
from surefit.data.column_types import is_text
from surefit.data.data_rules import UNREADABLE_MEDIA
from surefit.data.extra_columns import extra_roles
from surefit.data.file_kinds import AUDIO
from surefit.data.table import Table
from surefit.encode.audio.audio_format import AudioFormat, read_audio_format
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import (
    Encoding,
    RowFaultError,
    SkipRowError,
    encoded,
    refuse_overlong,
)
from surefit.encode.encoder import Encoder
from surefit.tasks.feature_sequences import Spread

SAMPLE_ROWS = 256
"""Rows whose spectrograms give mean and standard deviation."""


def holds_audio(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether the audio column holds audio or, if it is text, names of audio files."""
    column = roles["audio"]
    return not is_text(table.column_type(column)) or names_files(table, column, AUDIO)


class AudioReader:
    """Passes rows on; of every n-th, the log-mel spectrograms are measured on the way."""

    def __init__(self, encoder: Encoder) -> None:
        self.form = read_audio_format(encoder.settings["audio"])
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

    def fitted(self) -> dict[str, Any]:
        """The form, with the mean and the standard deviation of all values of spectrograms."""
        form = self.form
        if form.mels is not None and self.spread.steps:
            fitted = self.spread.fitted()
            form = replace(form, mean=fitted["feature_mean"][0], std=fitted["feature_scale"][0])
        return {"audio": {**asdict(form), "axes": list(form.axes)}}


def encode_audio(
    row: Mapping[str, Any], encoder: Encoder, targets: Mapping[str, Any] | None = None
) -> Encoding:
    """What the model reads of the audio, and the targets of the row."""
    if is_empty(row["audio"]):
        raise SkipRowError(DropReason.EMPTY)
    form = read_audio_format(encoder.fitted["audio"])
    try:
        waveform, truncated = form.waveform(row["audio"])
    except RowFaultError as fault:
        if fault.rule is UNREADABLE_MEDIA and encoder.settings.get("on_bad_file") == "skip":
            raise SkipRowError(DropReason.BAD_FILE) from None
        raise
    if not len(waveform):
        raise SkipRowError(DropReason.EMPTY)
    if truncated:
        limit = f"audio.seconds is {form.seconds:g}"
        samples = len(waveform) + truncated
        refuse_overlong(samples, encoder, "samples", encoder.roles["audio"], limit)
    columns = {form.column: form.values(waveform), **(targets or {})}
    return encoded(columns, truncated=form.positions(truncated))


def audio_fields(encoder: Encoder) -> dict[str, Field]:
    """The column that the model reads."""
    state = encoder.fitted.get("audio") or encoder.settings.get("audio")
    form = read_audio_format(state) if state else AudioFormat(16_000, 1.0)
    return {form.column: form.batch_field}


def audio_config(encoder: Encoder) -> dict[str, Any]:
    """What the audio sets in a transformers config."""
    return {
        # drawn by NumPy's global generator, so that no run could be resumed exactly
        "apply_spec_augment": False,
        **encoder.fitted["audio"]["config"],
    }
