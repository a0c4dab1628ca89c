"""Audio of every kind (files, bytes, arrays) as the model reads it: a waveform, mono float32 at one
rate; a log-mel spectrogram; or an extractor's features.

Files are read in blocks and only as far as they are used, so that memory does not depend on their
length or on what their header states.
"""

from __future__ import annotations

import io
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import Field
from surefit.core.files import special_kind
from surefit.data.cell_files import shown_name, unwrapped
from surefit.data.data_rules import NOT_FINITE, UNREADABLE_MEDIA
from surefit.errors import UsageError
from surefit.findings import rule
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.model_hints import KIND

ARRAY_NOT_AUDIO = rule(
    "SF191",
    "error",
    "array that is not audio",
    why="Audio is one value per sample, [samples], or [channels, samples] for a few channels.",
    fix="Save each waveform as a float array [samples], with values from -1 to 1.",
)

Waveform = npt.NDArray[np.float32]
NEEDED = ("soundfile", "soxr")
BLOCK_SAMPLES = 1 << 16
RATES = range(1_000, 1_000_001)
"""Sampling rates of audio, in Hz; a header with another one is damaged."""
MOST_CHANNELS = 32
OPEN_END = 0x7FFF0000
"""Sizes in a header from which on they stand for "until the end", as streamed files have them."""
_CUT_OFF = re.compile(r"^\s*(?:data|SSND)\s*:\s*(\d+) \(should be (\d+)\)", re.MULTILINE)
"""What libsndfile notes of a header that promises more bytes than the file has."""


@dataclass(frozen=True)
class About:
    """What is known of audio before it is decoded; `rate` is None for an array without one."""

    rate: int | None
    channels: int
    samples: int


def require_audio() -> None:
    """Refuse to begin without the packages that read and resample audio."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"To read audio needs {' and '.join(missing)}, which {are} not installed.",
            "Install the extra: pip install 'surefit[audio]'",
        )


def look_at(value: Any) -> About:
    """Rate, channels and length of audio, from its header; a RowFaultError if it has none."""
    if not isinstance(unwrapped(value), str | bytes):
        array, rate = _array(value)
        return About(rate, array.shape[1], len(array))
    with _opened(value) as file:
        return About(int(file.samplerate), int(file.channels), max(0, int(file.frames)))


def read_waveform(value: Any, rate: int, most_samples: int) -> tuple[Waveform, int]:
    """Return the first samples of audio, as a mono waveform at `rate`; and how many there are in
    all.

    `value` is a file, bytes, `{bytes, path}`, `{array, sampling_rate}` or an array, whose rate is
    taken to be `rate`. Channels are averaged.
    """
    if not isinstance(unwrapped(value), str | bytes):
        array, own = _array(value)
        blocks: Iterator[Waveform] = iter([array.mean(1)])
        return _resampled(blocks, own or rate, rate, most_samples, len(array))
    with _opened(value) as file:
        total = max(0, int(file.frames))
        return _resampled(_blocks(file), int(file.samplerate), rate, most_samples, total)


def _resampled(
    blocks: Iterator[Waveform], own: int, rate: int, most: int, total: int
) -> tuple[Waveform, int]:
    """Return the blocks joined, at another rate, up to `most` samples."""
    import soxr

    stream = soxr.ResampleStream(own, rate, 1, dtype="float32") if own != rate else None
    parts, length = [], 0
    for block in blocks:
        parts.append(block if stream is None else stream.resample_chunk(block))
        length += len(parts[-1])
        if length >= most:
            break
    else:
        if stream is not None:
            parts.append(stream.resample_chunk(np.zeros(0, np.float32), last=True))
    made = np.concatenate([np.zeros(0, np.float32), *parts])[:most]
    if not np.isfinite(made).all():
        message = "the audio contains values that are not finite"
        raise RowFaultError(NOT_FINITE, message, "audio")
    return made, max(len(made), round(total * rate / own))


def _blocks(file: Any) -> Iterator[Waveform]:
    """Yield the samples of a file, mixed down to one channel, a block at a time."""
    size, count, expected = max(1, BLOCK_SAMPLES // file.channels), 0, int(file.frames)
    while len(block := file.read(size, dtype="float32", always_2d=True)):
        count += len(block)
        yield block.mean(1)
    if count < expected:
        raise _cut_off(count, expected)


def _cut_off(found: int, expected: int, unit: str = "samples") -> ValueError:
    return ValueError(f"it ends after {found:,} of {expected:,} {unit}")


@contextmanager
def _opened(value: Any) -> Iterator[Any]:
    """A file or bytes, opened by libsndfile; whatever fails is a fault of the row."""
    import soundfile

    source, shown = unwrapped(value), shown_name(value)
    kind = None if isinstance(source, bytes) else special_kind(source)
    if kind is not None:
        raise RowFaultError(UNREADABLE_MEDIA, f"{shown} is {kind}, not a file", "audio")
    try:
        opened = io.BytesIO(source) if isinstance(source, bytes) else source
        with soundfile.SoundFile(opened) as file:
            _check_header(file)
            yield file
    except RowFaultError as fault:
        raise RowFaultError(fault.rule, f"{shown}: {fault.message}", fault.column) from None
    except Exception as error:  # libsndfile, and the system it opens files with
        if isinstance(source, str) and not os.path.exists(source):
            message = f"there is no file {shown}"
        else:
            reason = str(error).removeprefix(f"Error opening {source!r}: ").rstrip(".")
            is_empty = isinstance(source, str) and os.path.getsize(source) == 0
            message = f"{shown} cannot be read: {'it is empty' if is_empty else reason}"
        raise RowFaultError(UNREADABLE_MEDIA, message, "audio") from None


def _check_header(file: Any) -> None:
    """A ValueError for a header that no recording has, or of a file that was cut off."""
    if file.samplerate not in RATES:
        raise ValueError(f"its header has a rate of {file.samplerate:,} Hz")
    if file.channels > MOST_CHANNELS:
        raise ValueError(f"its header has {file.channels:,} channels")
    for promised, found in _CUT_OFF.findall(file.extra_info):
        if int(found) < int(promised) < OPEN_END:
            raise _cut_off(int(found), int(promised), "bytes")


def _array(value: Any) -> tuple[Waveform, int | None]:
    """An array, or `{array, sampling_rate}`, as [samples, channels] of float32, and its rate."""
    rate = None
    if isinstance(value, Mapping):
        rate, value = value.get("sampling_rate"), value.get("array", ())
    array = np.asarray(value)
    if array.ndim == 2 and array.shape[0] < array.shape[1]:
        array = array.T
    if array.dtype.kind not in "if" or array.ndim not in (1, 2) or array.size == 0:
        raise _not_audio(f"shape {list(array.shape)} of {array.dtype}")
    if array.ndim == 2 and array.shape[1] > MOST_CHANNELS:
        raise _not_audio(f"shape {list(array.shape)}")
    if rate is not None and (not isinstance(rate, int) or rate not in RATES):
        raise _not_audio(f"sampling_rate {rate!r}")
    if array.dtype.kind == "i":  # 16 bits, as scipy and wave return them
        array = array.astype(np.float32) / np.iinfo(array.dtype).max
    return array.reshape(len(array), -1).astype(np.float32), rate


def _not_audio(found: str) -> RowFaultError:
    return RowFaultError(ARRAY_NOT_AUDIO, f"the array is not audio: {found}", "audio")


Floats = npt.NDArray[np.float32]
WINDOW_SECONDS, HOP_SECONDS = 0.025, 0.010
FLOOR = 1e-6
"""Energies below it count as silence."""
SILENCE = float(np.log(FLOOR))
FRAMES_AT_ONCE = 512
"""So that memory does not depend on the length."""


def hop(rate: int) -> int:
    """Samples from one frame to the next."""
    return max(1, round(rate * HOP_SECONDS))


def num_frames(num_samples: int, rate: int) -> int:
    """Return how many frames a waveform has.

    >>> num_frames(16_000, 16_000)
    101
    """
    return 1 + num_samples // hop(rate)


def log_mel(waveform: Floats, rate: int, num_mels: int) -> Floats:
    """Return the logarithm of the energy in each mel band, (mels, frames).

    >>> tone = np.sin(np.arange(800) * 2 * np.pi * 1000 / 8000).astype(np.float32)
    >>> log_mel(tone, 8000, 40).shape, int(log_mel(tone, 8000, 40).mean(1).argmax())
    ((40, 11), 18)
    """
    size, step = round(rate * WINDOW_SECONDS), hop(rate)
    padded = np.pad(waveform, (size // 2, size))
    count = num_frames(len(waveform), rate)
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::step][:count]
    filters, window = mel_filters(rate, num_mels), np.hanning(size + 1)[:-1]
    window /= np.sqrt((window**2).sum())
    made = np.empty((num_mels, count), np.float32)
    for start in range(0, count, FRAMES_AT_ONCE):
        chunk = frames[start : start + FRAMES_AT_ONCE] * window
        power = np.abs(np.fft.rfft(chunk, _transform_size(rate))) ** 2
        made[:, start : start + len(chunk)] = np.log(np.maximum(filters @ power.T, FLOOR))
    return made


def _transform_size(rate: int) -> int:
    """A power of 2 of at least two windows, so that low mel bands have frequencies of their own."""
    return 1 << (2 * round(rate * WINDOW_SECONDS) - 1).bit_length()


@cache
def mel_filters(rate: int, num_mels: int) -> npt.NDArray[np.float64]:
    """Triangles that are equally spaced in mels, (mels, frequencies)."""
    frequencies = np.linspace(0, rate / 2, _transform_size(rate) // 2 + 1)
    mels = np.linspace(0, float(2595 * np.log10(1 + rate / 2 / 700)), num_mels + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    low, center, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (frequencies - low) / (center - low)
    falling = (high - frequencies) / (high - center)
    return np.maximum(0, np.minimum(rising, falling))


@dataclass(frozen=True)
class AudioFormat:
    """How audio becomes one column of a row, with the axes that the model expects.

    With an `extractor`, transformers' feature extractor makes it. Otherwise it is the waveform, or
    with `mels` the log-mel spectrogram, minus `mean`, divided by `std`.
    """

    rate: int
    seconds: float
    """How much of a row is read; the rest is truncated."""
    column: str = "input_values"
    axes: tuple[str, ...] = ("time",)
    mels: int | None = None
    mean: float = 0.0
    std: float = 1.0
    fixed: bool = False
    """Whether shorter rows are padded with silence, so that all have one length."""
    least_samples: int = 1
    """Shorter rows are padded with silence: the model's first layers need as many."""
    extractor: Mapping[str, Any] | None = None
    masked: bool = True
    """Whether the model gets an attention mask."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the model's config that follow from the extractor, for an untrained model."""

    @property
    def most_samples(self) -> int:
        """How many samples of a row are read."""
        return max(1, round(self.seconds * self.rate))

    @property
    def batch_field(self) -> Field:
        """How the column is batched: padded with silence."""
        pad = 0.0 if self.mels is None else (SILENCE - self.mean) / self.std
        if self.extractor is not None:
            pad = float(self.extractor.get("padding_value", 0.0))
        return Field(self.axes, "float32", pad, masked=self.masked)

    def waveform(self, value: Any) -> tuple[Waveform, int]:
        """Return the samples that the model gets, and how many are truncated."""
        made, total = read_waveform(value, self.rate, self.most_samples)
        if not len(made):
            return made, 0
        missing = (self.most_samples if self.fixed else self.least_samples) - len(made)
        return np.pad(made, (0, max(0, missing))), max(0, total - self.most_samples)

    def values(self, waveform: Waveform) -> Floats:
        """Return the column of a row."""
        if self.extractor is not None:
            made = extract(self.extractor, waveform)
            if "attention_mask" not in made or self.axes[0] != "time":
                return made[self.column]
            return made[self.column][: int(made["attention_mask"].sum())]  # without its padding
        if self.mels is None:
            return arranged(waveform, ("time",), self.axes)
        spectrum = (log_mel(waveform, self.rate, self.mels) - self.mean) / self.std
        return arranged(spectrum.astype(np.float32), ("mel", "time"), self.axes)

    def processor_config(self) -> Mapping[str, Any] | None:
        """The settings in the format of transformers' preprocessor_config.json, if it has any."""
        return self.extractor

    def positions(self, num_samples: int) -> int:
        """Return how many time steps of the column so many samples are."""
        return num_samples if self.mels is None else -(-num_samples // hop(self.rate))


def arranged(values: Floats, own: tuple[str, ...], wanted: tuple[str, ...]) -> Floats:
    """Return an array with axes in another order; an axis that it does not have gets length 1.

    >>> arranged(np.zeros((64, 10), np.float32), ("mel", "time"), ("time", "mel")).shape
    (10, 64)
    """
    ordered = values.transpose([own.index(axis) for axis in wanted if axis in own])
    for place, axis in enumerate(wanted):
        if axis not in own:
            ordered = np.expand_dims(ordered, place)
    return np.ascontiguousarray(ordered)


def extract(state: Mapping[str, Any], waveform: Waveform) -> dict[str, Floats]:
    """Return what transformers' feature extractor makes of one row, by column."""
    made = _extractor(json.dumps(dict(state), sort_keys=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mel bands without a frequency of their own
        found = made(waveform, sampling_rate=made.sampling_rate, return_tensors="np")
    return {name: np.asarray(value[0]) for name, value in found.items()}


@cache
def _extractor(state: str) -> Any:
    import transformers

    settings = json.loads(state)
    return getattr(transformers, settings.pop(KIND))(**settings)


def extracted_form(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return column, axes and mask of what an extractor makes, found by trying two lengths.

    >>> extracted_form({KIND: "Wav2Vec2FeatureExtractor"})["axes"]
    ['time']
    """
    rate = state.get("sampling_rate", 16_000)
    long, short = (extract(state, np.zeros(size, np.float32)) for size in (rate, rate // 2))
    column = next(name for name in long if name.startswith("input"))
    shapes = zip(long[column].shape, short[column].shape, strict=True)
    axes = ["time" if a != b else f"{column}.{n}" for n, (a, b) in enumerate(shapes)]
    masked = "time" in axes and bool(state.get("return_attention_mask"))
    return {"column": column, "axes": axes, "masked": masked}
