"""Waveforms to log-mel spectrograms, with NumPy: windows of 25 ms, every 10 ms."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

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
    """How many frames a waveform has.

    >>> num_frames(16_000, 16_000)
    101
    """
    return 1 + num_samples // hop(rate)


def log_mel(waveform: Floats, rate: int, num_mels: int) -> Floats:
    """The logarithm of the energy in each mel band, (mels, frames).

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
    mels = np.linspace(0, _mel(rate / 2), num_mels + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    low, center, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (frequencies - low) / (center - low)
    falling = (high - frequencies) / (high - center)
    return np.maximum(0, np.minimum(rising, falling))


def _mel(frequency: float) -> float:
    return float(2595 * np.log10(1 + frequency / 700))
