"""Recordings with a known class, the pitch of a tone, and modules that can learn it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

PITCHES = {"low": 300, "mid": 900, "high": 2200}
RATES = (8_000, 16_000, 22_050)

MODULES = {
    "log-mel as an image": (
        "nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d((8, 1)),"
        " nn.Flatten(), nn.Linear(64, n))"
    ),
    "log-mel as channels": (
        "nn.Sequential(nn.Conv1d(40, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),"
        " nn.Linear(8, n))"
    ),
    "waveform": (
        "nn.Sequential(nn.Conv1d(1, 8, 64, stride=16), nn.ReLU(), nn.AdaptiveAvgPool1d(1),"
        " nn.Flatten(), nn.Linear(8, n))"
    ),
    "one length": "nn.Sequential(nn.Flatten(), nn.Linear(2000, n))",
}


def tone(name: str, seed: int, rate: int = 8_000, channels: int = 1) -> np.ndarray[Any, Any]:
    """A tone of some length in noise, float32 [samples] or [samples, channels]."""
    numbers = np.random.default_rng(seed)
    time = np.arange(int(numbers.uniform(0.1, 0.4) * rate)) / rate
    pitch = PITCHES[name] * numbers.uniform(0.95, 1.05)
    heard = 0.3 * np.sin(2 * np.pi * pitch * time + numbers.uniform(0, 6))
    heard = (heard + numbers.normal(0, 0.02, len(time))).astype(np.float32)
    return heard if channels == 1 else np.stack([heard] * channels, 1)


def tone_rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Arrays with their rate."""
    names = [*PITCHES]
    return [
        {
            "audio": {"array": tone(names[n % 3], first + n), "sampling_rate": 8_000},
            "label": names[n % 3],
        }
        for n in range(count)
    ]


def write_tones(folder: Path, count: int, first: int = 0, flat: bool = False) -> list[Path]:
    """Files of different formats, rates and channels; in class folders, or `low_7.wav` in one."""
    files = []
    for n in range(first, first + count):
        name, rate = [*PITCHES][n % 3], RATES[n // 3 % 3]
        ending = ("wav", "flac", "wav", "mp3")[n % 4]
        place = folder / f"{name}_{n:03}.{ending}" if flat else folder / name / f"{n:03}.{ending}"
        place.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(place, tone(name, n, rate, 1 + n % 2), rate)
        files.append(place)
    return sorted(files)


def wav(samples: Any, rate: int = 8_000, kind: str = "WAV") -> bytes:
    """The bytes of an audio file."""
    sink = io.BytesIO()
    soundfile.write(sink, samples, rate, format=kind)
    return sink.getvalue()


def write_module(folder: Path, kind: str, name: str = "ears") -> str:
    """Write a user's module and return its `module:function` name."""
    source = f"from torch import nn\n\n\ndef make(n):\n    return {MODULES[kind]}\n"
    (folder / f"{name}.py").write_text(source)
    return f"{name}:make"
