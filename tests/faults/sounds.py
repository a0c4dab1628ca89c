"""Faults of audio: files that cannot be read, arrays that are none, modules that read no audio."""

from __future__ import annotations

from typing import Any

import numpy as np
from tones import PITCHES, tone, wav

from faults.case import Case

AST = "tiny:ast"
TASK = "--task audio-classification"
LINEAR = """
from torch import nn


def make(num_classes):
    return nn.Linear(7, num_classes)
"""
CNN = """
from torch import nn


def make(num_classes):
    pooled = nn.AdaptiveMaxPool2d((8, 1)), nn.Flatten()
    return nn.Sequential(nn.Conv2d(1, 6, 3), *pooled, nn.Linear(48, num_classes))
"""


def sounds(**more: Any) -> dict[str, Any]:
    """Folders of tones of three pitches, and what else is in them."""
    made = {f"d/{name}/{n}.wav": wav(tone(name, n)) for name in PITCHES for n in range(8)}
    return {**made, **{f"d/{name.replace('__', '/')}.wav": raw for name, raw in more.items()}}


EQUAL = {f"d/{name}/{n}.wav": wav(tone(name, n)[:1000]) for name in PITCHES for n in range(8)}
"""All of one length: the pooling of CNN would take padded frames in."""
WAVEFORMS = np.stack([tone("low", 0)[:800] + n for n in range(24)])
CASES = [
    Case("SF250 audio cut off", sounds(low__x=wav(tone("low", 1))[:-900]), AST, data="d"),
    Case("SF250 audio of no bytes", sounds(low__x=b""), AST, data="d"),
    Case(
        "SF191 images as audio",
        {"a.npz": {"audio": np.zeros((24, 40, 50), np.float32), "label": np.arange(24) % 2}},
        AST,
        TASK,
    ),
    Case("SF195 module that reads no audio", sounds(), module=LINEAR, data="d"),
    Case(
        "SF194 waveforms without a sampling rate",
        {"a.npz": {"audio": WAVEFORMS, "label": np.arange(24) % 2}},
        AST,
        TASK,
        also=(" Hz, up to",),
    ),
]
HEALTHY = [
    Case("tones for a module on log-mel", EQUAL, module=CNN, data="d", also=(" Hz, up to",)),
    Case(
        "waveforms with their sampling rate",
        {"a.npz": {"audio": WAVEFORMS, "label": np.arange(24) % 2}},
        AST,
        f"{TASK} --set audio.rate=8000",
        also=(" Hz, up to",),
    ),
]
