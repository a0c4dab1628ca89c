"""What the headers of audio files have in common: rates, channels and lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from surefit.data.cell_files import is_empty
from surefit.encode.audio.audio_files import About, look_at
from surefit.encode.audio.audio_format import AudioFormat
from surefit.encode.encoded_row import RowFaultError
from surefit.findings import Finding, note, rule

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
        """How the audio is read, and what is converted on the way."""
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
    """The headers of rows; a file that cannot be read is reported later, by the encoding."""
    sample = AudioSample()
    for value in values:
        try:
            if not is_empty(value):
                sample.add(look_at(value))
        except RowFaultError as fault:
            sample.fault = sample.fault or fault
    return sample


def described(form: AudioFormat) -> str:
    """What the model gets of each row, in words.

    >>> described(AudioFormat(8000, 2.0, axes=("channel", "mel", "time"), mels=64))
    'log-mel [1, 64, frames]'
    """
    if form.extractor is not None:
        return f"features of {form.extractor['feature_extractor_type']}"
    sizes = {"channel": "1", "mel": str(form.mels), "time": "frames" if form.mels else "samples"}
    shape = ", ".join(sizes[axis] for axis in form.axes)
    return f"{'waveforms' if form.mels is None else 'log-mel'} [{shape}]"
