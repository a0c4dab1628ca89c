"""Audio of every kind (files, bytes, arrays) as one waveform: mono float32 at one rate.

Files are read in blocks and only as far as they are used, so that memory does not depend on their
length or on what their header states.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.core.files import special_kind
from surefit.data.cell_files import shown_name, unwrapped
from surefit.data.data_rules import NOT_FINITE, UNREADABLE_MEDIA
from surefit.errors import UsageError
from surefit.findings import rule
from surefit.inputs.encoded_row import RowFaultError

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
