"""audio-classification: one class, or several, per recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from surefit.batches.field import Field
from surefit.data.cell_files import is_empty, names_files
from surefit.data.column_types import is_text
from surefit.data.file_kinds import AUDIO
from surefit.data.further_columns import further_roles
from surefit.data.table import Table
from surefit.encode.audio.audio_files import UNREADABLE_AUDIO
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
from surefit.tasks.baselines import class_baselines
from surefit.tasks.classes import (
    CONFUSION,
    MACRO_F1,
    accuracy,
    class_id,
    class_loss,
    class_scores,
    class_settings,
    decode_classes,
    fit_classes,
    label_field,
    probabilities,
)
from surefit.tasks.feature_sequences import Spread
from surefit.tasks.task_spec import Head, TaskSpec

SAMPLE_ROWS = 256
"""Rows whose spectrograms give mean and standard deviation."""


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether the audio column holds audio or, if it is text, names of audio files."""
    column = roles["audio"]
    return not is_text(table.column_type(column)) or names_files(table, column, AUDIO)


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> dict[str, Any]:
    """The classes; and mean and standard deviation of log-mel spectrograms."""
    form = read_audio_format(encoder.settings["audio"])
    sample = _SpectrumSample(form, ("audio", *further_roles(encoder.roles)))
    watched = rows if form.mels is None else sample.watch(rows)
    return {**fit_classes(watched, encoder), "audio": _as_json(sample.fitted())}


class _SpectrumSample:
    """Every n-th row on the way, the spectrogram of each of its columns measured."""

    def __init__(self, form: AudioFormat, roles: Sequence[str]) -> None:
        self.form = form
        self._roles = roles
        self.spread = Spread()
        self._stride = 1

    def watch(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The rows, unchanged; unreadable files are reported later, by the encoding."""
        plain = replace(self.form, axes=("time", "mel"), fixed=False)
        for place, row in enumerate(rows):
            for role in self._roles if place % self._stride == 0 else ():
                if is_empty(row[role]):
                    continue
                with suppress(RowFaultError):
                    waveform, _ = plain.waveform(row[role])
                    self.spread.add(plain.values(waveform).reshape(-1, 1))
                if self.spread.rows >= SAMPLE_ROWS * self._stride:
                    self._stride *= 2
            yield row

    def fitted(self) -> AudioFormat:
        """The form with the mean and the standard deviation of all values."""
        if self.form.mels is None or not self.spread.steps:
            return self.form
        fitted = self.spread.fitted()
        return replace(self.form, mean=fitted["feature_mean"][0], std=fitted["feature_scale"][0])


def _as_json(form: AudioFormat) -> dict[str, Any]:
    return {**asdict(form), "axes": list(form.axes)}


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """What the model reads of the audio, and the class."""
    if is_empty(row["audio"]):
        raise SkipRowError(DropReason.EMPTY)
    columns: dict[str, Any] = {}
    if "label" in row:
        columns["labels"] = class_id(row, encoder)
    form = read_audio_format(encoder.fitted["audio"])
    try:
        waveform, truncated = form.waveform(row["audio"])
    except RowFaultError as fault:
        if fault.rule is UNREADABLE_AUDIO and encoder.settings.get("on_bad_file") == "skip":
            raise SkipRowError(DropReason.BAD_FILE) from None
        raise
    if not len(waveform):
        raise SkipRowError(DropReason.EMPTY)
    if truncated:
        limit = f"audio.seconds is {form.seconds:g}"
        samples = len(waveform) + truncated
        refuse_overlong(samples, encoder, "samples", encoder.roles["audio"], limit)
    values = form.values(waveform)
    return encoded({form.column: values, **columns}, truncated=form.positions(truncated))


def fields(encoder: Encoder) -> dict[str, Field]:
    """The column that the model reads, and the class or classes."""
    state = encoder.fitted.get("audio") or encoder.settings.get("audio")
    form = read_audio_format(state) if state else AudioFormat(16_000, 1.0)
    return {form.column: form.batch_field, "labels": label_field(encoder)}


def _config(encoder: Encoder) -> dict[str, Any]:
    return {
        **class_settings(encoder),
        # drawn by NumPy's global generator, so that no run could be resumed exactly
        "apply_spec_augment": False,
        **encoder.fitted["audio"]["config"],
    }


SPEC = TaskSpec(
    name="audio-classification",
    summary="one class, or several, per recording: wav, flac or mp3",
    needs=(("audio", "label"),),
    takes=takes,
    arrays=lambda roles: "audio",
    fields=fields(Encoder("audio-classification", {})),
    fields_of=fields,
    encode=encode,
    fit=fit,
    baselines=class_baselines,
    loss=class_loss,
    class_scores=class_scores,
    predicted_values=probabilities,
    metrics={"accuracy": accuracy, "macro_f1": MACRO_F1, "confusion": CONFUSION},
    best="accuracy",
    decode=decode_classes,
    head=Head(
        auto_class="AutoModelForAudioClassification",
        size=lambda encoder: len(encoder.classes),
        config=_config,
    ),
)
