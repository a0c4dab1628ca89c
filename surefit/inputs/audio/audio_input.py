"""Audio as the input of a row: the form is planned, measured on training rows, and encoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from surefit.batches.field import Field
from surefit.config import Audio, set_option
from surefit.data.cell_files import is_empty
from surefit.data.data_rules import UNREADABLE_MEDIA
from surefit.data.profile import Profile
from surefit.data.several_columns import extra_roles
from surefit.data.split import sample_rows
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule
from surefit.inputs.audio.audio_format import (
    About,
    AudioFormat,
    extract,
    extracted_form,
    look_at,
    num_frames,
    require_audio,
)
from surefit.inputs.augment.array_augment import SeriesChanges
from surefit.inputs.encoded_row import (
    DropReason,
    Encoding,
    RowFaultError,
    drop_row,
    encoded,
    refuse_overlong,
)
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput, as_fitted
from surefit.inputs.features.feature_sequences import Spread
from surefit.inputs.file_names import holds_files
from surefit.inputs.model_hints import KIND, AudioInputs
from surefit.inputs.row_input import Planned, ReadBy, RowInput

NO_FORM_ACCEPTED = rule(
    "SF195",
    "error",
    "module that reads no form of audio",
    why="The module was tried on waveforms and on log-mel spectrograms, and failed on each.",
    fix=(
        "Let forward read waveforms [rows, samples] or log-mel [rows, 1, mels, frames]. A module "
        "for one length needs it: --set audio.seconds=1."
    ),
)

TINY_MELS = 64
LONGEST_SECONDS = 30.0
DEFAULT_RATE = 16_000
HEADERS = 2048
"""Rows whose headers are looked at."""
USUAL_MELS = (64, 80, 40, 128, 32)
WAVEFORMS = (("time",), ("channel", "time"))
SPECTROGRAMS = (("channel", "mel", "time"), ("mel", "time"), ("time", "mel"))


def plan_audio(given: Planned) -> tuple[FittedInput, list[Finding]]:
    """Choose how audio is read: as the model's feature extractor does it, else by trial."""
    table, rows, roles, asked = given.table, given.rows, given.encoder.roles, given.config.audio
    column = roles["audio"]
    require_audio()
    chosen = rows[sample_rows(len(rows), HEADERS, seed=0)]
    columns = [column, *(roles[role] for role in extra_roles(roles))]
    named = replace(table, arrow=table.arrow.select(columns))
    rows_read = named.rows(chosen.tolist())
    sample = sample_headers(row[name] for row in rows_read for name in columns)
    if not sample.rates:
        fault = sample.fault
        message = f"No training row has readable audio in column {column!r}"
        if fault is None:
            fix = "Check the files that the column names."
            raise UNREADABLE_MEDIA.error(f"{message}.", fix=fix, column=column)
        raise fault.rule.error(f"{message}: {fault.message}.", fix=fault.fix, column=column)
    inputs = given.audio() or AudioInputs()
    if len(columns) > 1 and inputs.gives_rows is not None:
        inputs = replace(inputs, gives_rows=partial(inputs.gives_rows, columns=columns))
    form = _by_extractor(inputs, sample, asked) if inputs.extractor else None
    form = form or _by_trial(inputs, sample, asked)
    found = sample.findings(form, column, asked.rate)
    return replace(given.encoder.input, audio=form), found


def _by_extractor(inputs: AudioInputs, sample: AudioSample, asked: Audio) -> AudioFormat:
    """As the model's feature extractor makes it; that of an untrained model follows the data."""
    if asked.form is not None or asked.mels is not None:
        raise UsageError(
            "audio.form and audio.mels are for custom modules; this model has its own "
            f"{inputs.extractor[KIND]}.",
            "Leave them out.",
        )
    state: dict[str, Any] = dict(inputs.extractor)
    config: dict[str, Any] = {}
    rate = int(state["sampling_rate"])
    if inputs.untrained:
        rate = state["sampling_rate"] = asked.rate or rate
        seconds = min(asked.seconds or sample.longest, asked.seconds or LONGEST_SECONDS)
        state, config = _fitted(state, seconds)
    elif asked.rate not in (None, rate):
        raise UsageError(
            f"audio.rate is {asked.rate}, but the model was trained with {rate} Hz.",
            "Leave audio.rate out: audio is resampled for the model.",
        )
    limit = _limit(state)
    if limit is not None and asked.seconds is not None and asked.seconds > limit + 0.02:
        raise UsageError(
            f"audio.seconds is {asked.seconds:g}, but the model reads up to {limit:.4g} s.",
            "Leave audio.seconds out, or lower it.",
        )
    known = extracted_form(state)
    return AudioFormat(
        rate,
        asked.seconds or limit or LONGEST_SECONDS,
        known["column"],
        tuple(known["axes"]),
        least_samples=inputs.least_samples,
        extractor=state,
        masked=known["masked"],
        fixed=asked.pad,
        config=config,
    )


def _fitted(state: dict[str, Any], seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The extractor of an untrained model with room for so much audio; and the model's config."""
    samples = ceil(seconds * state["sampling_rate"])
    if state[KIND] == "ASTFeatureExtractor":
        sizes = {"max_length": max(32, 1 + samples // 160), "num_mel_bins": TINY_MELS}
        return {**state, **sizes}, sizes
    if state[KIND] == "WhisperFeatureExtractor":
        length = max(1, ceil(seconds))
        frames = length * state["sampling_rate"] // 160
        return {**state, "chunk_length": length}, {"max_source_positions": frames // 2}
    return state, {}


def _limit(state: Mapping[str, Any]) -> float | None:
    """Return how many seconds an extractor reads; None where it reads any length."""
    rate = state["sampling_rate"]
    if state[KIND] == "ASTFeatureExtractor":
        return float((160 * state.get("max_length", 1024) + 240) / rate)
    if state[KIND] == "WhisperFeatureExtractor":
        return float(state.get("chunk_length", 30))
    return None


def _by_trial(inputs: AudioInputs, sample: AudioSample, asked: Audio) -> AudioFormat:
    """Return the first form that the module accepts."""
    rate = asked.rate or sample.common_rate or DEFAULT_RATE
    seconds = asked.seconds or LONGEST_SECONDS
    tried = asked.seconds or 1.0
    for form in _forms(inputs, asked, AudioFormat(rate, seconds)):
        if inputs.gives_rows is None or _accepts(inputs, form, tried):
            one_length = asked.seconds is not None and not _accepts(inputs, form, tried / 2)
            return replace(form, fixed=one_length or asked.pad)
    raise NO_FORM_ACCEPTED.error(
        f"The module accepts neither waveforms nor log-mel spectrograms of {tried:g} s at "
        f"{rate} Hz."
    )


def _forms(inputs: AudioInputs, asked: Audio, plain: AudioFormat) -> Iterator[AudioFormat]:
    if asked.form != "log-mel" and asked.mels is None:
        yield from (replace(plain, axes=axes) for axes in WAVEFORMS)
    if asked.form == "waveform":
        return
    of_layers = [size for size in inputs.sizes[:2] if 8 <= size <= 512]
    mels = [asked.mels] if asked.mels is not None else [*dict.fromkeys([*of_layers, *USUAL_MELS])]
    for axes in SPECTROGRAMS:
        order = [*USUAL_MELS, *of_layers] if "channel" in axes and asked.mels is None else mels
        yield from (replace(plain, axes=axes, mels=number) for number in order)


def _accepts(inputs: AudioInputs, form: AudioFormat, seconds: float) -> bool:
    samples = max(1, round(seconds * form.rate))
    length = samples if form.mels is None else num_frames(samples, form.rate)
    sizes = {"channel": 1, "mel": form.mels or 0, "time": length}
    if inputs.gives_rows is None:
        return True
    return inputs.gives_rows(tuple(sizes[axis] for axis in form.axes), form.axes.index("time"))


UNKNOWN_RATE = rule(
    "SF194",
    "warning",
    "arrays of unknown sampling rate",
    why="An array does not say how many samples a second has; the model hears another pitch.",
    fix="Give their rate, such as --set audio.rate=16000, or pass rows of {array, sampling_rate}.",
    accept="The arrays are read as if they had the model's rate.",
)


@dataclass
class AudioSample:
    """The headers of some rows."""

    rates: Counter[int | None] = field(default_factory=Counter)
    channels: Counter[int] = field(default_factory=Counter)
    longest: float = 0.0
    """Seconds; of arrays without a rate, as many as there are samples at 16 kHz."""
    fault: RowFaultError | None = None

    def add(self, about: About) -> None:
        """Take in one row."""
        if about.samples:
            self.rates[about.rate] += 1
            self.channels[about.channels] += 1
            self.longest = max(self.longest, about.samples / (about.rate or 16_000))

    @property
    def common_rate(self) -> int | None:
        """The most frequent rate of the files; None for arrays without one."""
        known = [(count, rate) for rate, count in self.rates.items() if rate is not None]
        return max(known)[1] if known else None

    def findings(self, form: AudioFormat, column: str, asked_rate: int | None) -> list[Finding]:
        """Return how the audio is read, and what is converted on the way."""
        total = self.rates.total()
        others = {r: n for r, n in self.rates.items() if r not in (None, form.rate)}
        steps = [f"{n} of {total} rows resampled from {r} Hz" for r, n in sorted(others.items())]
        mixed = sum(count for channels, count in self.channels.items() if channels > 1)
        if mixed:
            steps.append(f"{mixed} of {total} rows mixed down from several channels")
        shown = f"; {'; '.join(steps)}" if steps else ""
        message = (
            f"audio of column {column!r} is read as {described(form)} at {form.rate} Hz, up to "
            f"{form.seconds:.4g} s of each row{shown}."
        )
        found = [note(message, column=column)]
        if self.rates[None] and asked_rate is None:
            message = (
                f"column {column!r} has arrays without a sampling rate ({self.rates[None]} of "
                f"{total} rows); they are read at {form.rate} Hz."
            )
            found.append(UNKNOWN_RATE.finding(message, column=column))
        return found


def sample_headers(values: Iterable[Any]) -> AudioSample:
    """Return the headers of rows; a file that cannot be read is reported later, by the encoding."""
    sample = AudioSample()
    for value in values:
        try:
            if not is_empty(value):
                sample.add(look_at(value))
        except RowFaultError as fault:
            sample.fault = sample.fault or fault
    return sample


def described(form: AudioFormat) -> str:
    """Return what the model gets of each row, in words.

    >>> described(AudioFormat(8000, 2.0, axes=("channel", "mel", "time"), mels=64))
    'log-mel [1, 64, frames]'
    """
    if form.extractor is not None:
        return f"features of {form.extractor['feature_extractor_type']}"
    sizes = {"channel": "1", "mel": str(form.mels), "time": "frames" if form.mels else "samples"}
    shape = ", ".join(sizes[axis] for axis in form.axes)
    return f"{'waveforms' if form.mels is None else 'log-mel'} [{shape}]"


SAMPLE_ROWS = 256
"""Rows whose spectrograms give mean and standard deviation."""


class AudioReader:
    """Passes rows on; of every n-th, the log-mel spectrograms are measured on the way."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.form = encoder, as_fitted(encoder.input.audio)
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
    form = as_fitted(encoder.input.audio)
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
        **as_fitted(encoder.input.audio).config,
    }


def audio_changes(
    changes: Mapping[str, float], encoder: Encoder, fields: Mapping[str, Field]
) -> SeriesChanges:
    """Return the changes of waveforms or spectrograms, along their time and their bands."""
    form = as_fitted(encoder.input.audio)
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
    ReadBy("AutoModelForAudioClassification", audio_config),
    AudioReader,
    takes=partial(holds_files, role="audio"),
    holds_amounts=partial(Profile.holds_amounts, whole=False),
    section="audio",
    content_name="recordings",
    changes=audio_changes,
    plan=plan_audio,
    one_length=f"Pad all rows to S seconds: {set_option('audio.pad', True)} --set audio.seconds=S",
)
