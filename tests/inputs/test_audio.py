"""Audio as waveforms: every format, rate and number of channels; damaged files; log-mel."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from tones import wav

import surefit
from surefit.errors import UsageError
from surefit.inputs.audio import audio_format
from surefit.inputs.audio.audio_format import (
    SILENCE,
    AudioFormat,
    log_mel,
    look_at,
    num_frames,
    read_waveform,
    require_audio,
)
from surefit.inputs.encoded_row import RowFaultError

RATE = 8_000
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)


def changed(place: slice, content: bytes) -> bytes:
    """A WAV file with another header."""
    raw = bytearray(wav(TONE))
    raw[place] = content
    return bytes(raw)


HEALTHY = {
    "wav": wav(TONE),
    "flac": wav(TONE, kind="FLAC"),
    "mp3": wav(TONE, kind="MP3"),
    "stereo": wav(np.stack([TONE, TONE], 1)),
    "another rate": wav(np.repeat(TONE, 2)[: 2 * RATE], 2 * RATE),
    "streamed, of unknown length": changed(slice(40, 44), b"\xff\xff\xff\xff"),
    "array with its rate": {"array": TONE, "sampling_rate": RATE},
    "array of two channels": np.stack([TONE, TONE]),
    "16-bit array": (TONE * 32767).astype(np.int16),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_audio_of_every_kind_is_one_waveform(kind: str) -> None:
    made, total = read_waveform(HEALTHY[kind], RATE, 10 * RATE)
    assert made.dtype == np.float32
    assert total == len(made) == RATE
    if kind != "another rate":
        assert np.abs(made - TONE).max() < (0.1 if kind == "mp3" else 1e-3)


DAMAGED: dict[str, tuple[Any, str]] = {
    "cut off": (wav(TONE)[:9000], "ends after"),
    "cut off, flac": (wav(TONE, kind="FLAC")[:4000], "cannot be read"),
    "cut off, mp3": (wav(TONE, kind="MP3")[:900], "cannot be read"),
    "no bytes": (b"", "cannot be read"),
    "a text": (b"these are no samples at all", "Format not recognised"),
    "header alone": (wav(TONE)[:20], "cannot be read"),
    "huge rate": (changed(slice(24, 28), struct.pack("<I", 2**31 - 1)), "2,147,483,647 Hz"),
    "rate of 0": (changed(slice(24, 28), b"\0\0\0\0"), "cannot be read"),
    "a thousand channels": (changed(slice(22, 24), struct.pack("<H", 1000)), "1,000 channels"),
    "array of texts": (np.array(["a"]), "not audio"),
    "image": (np.zeros((40, 50, 3), np.float32), "not audio"),
    "absurd rate of an array": ({"array": TONE, "sampling_rate": 3}, "not audio"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_audio_is_a_fault_of_its_row(kind: str) -> None:
    value, shown = DAMAGED[kind]
    with pytest.raises(RowFaultError, match=shown) as raised:
        read_waveform(value, RATE, 10 * RATE)
    assert raised.value.column == "audio"


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    samples = TONE.copy()
    samples[7] = np.nan
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    with pytest.raises(RowFaultError, match="not finite"):
        read_waveform(str(tmp_path / "a.wav"), RATE, RATE)


def test_missing_files_and_pipes_are_named(tmp_path: Path) -> None:
    with pytest.raises(RowFaultError, match="there is no file"):
        read_waveform(str(tmp_path / "none.wav"), RATE, RATE)
    os.mkfifo(tmp_path / "pipe.wav")
    with pytest.raises(RowFaultError, match="a named pipe"):
        read_waveform(str(tmp_path / "pipe.wav"), RATE, RATE)


def test_a_long_file_is_read_as_far_as_it_is_used(tmp_path: Path) -> None:
    seconds = 600
    with soundfile.SoundFile(tmp_path / "long.wav", "w", RATE, 2) as file:
        for _ in range(seconds // 10):
            file.write(np.zeros((10 * RATE, 2), np.float32))
    path = str(tmp_path / "long.wav")
    read_waveform(path, 2 * RATE, RATE)  # imports
    tracemalloc.start()
    made, total = read_waveform(path, 2 * RATE, RATE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(made), total) == (RATE, seconds * 2 * RATE)
    assert peak < 4e6  # all of it would be 38 MB
    assert look_at(path).samples == seconds * RATE


def test_missing_packages_are_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_format, "find_spec", lambda name: None if name == "soxr" else name)
    with pytest.raises(UsageError) as raised:
        require_audio()
    assert "soxr" in str(raised.value)
    assert "soundfile" not in str(raised.value)
    assert "pip install 'surefit[audio]'" in raised.value.fix


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
def test_log_mel_is_the_energy_of_each_band(rate: int) -> None:
    time = np.arange(rate // 2) / rate
    found = [
        log_mel(np.sin(2 * np.pi * hz * time).astype(np.float32), rate, 40).mean(1).argmax()
        for hz in (100, 300, 900, 1800, 3500)
    ]
    assert found == sorted({*found})
    quiet = log_mel(np.zeros(rate // 2, np.float32), rate, 40)
    assert quiet.shape == (40, num_frames(rate // 2, rate))
    assert np.allclose(quiet, SILENCE)


def test_a_module_that_padding_disturbs_is_told_of_rows_of_one_length() -> None:
    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = torch.nn.Conv1d(1, 4, 9, 4), torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x).relu().mean(2))

    rows = [
        {
            "audio": {"array": np.tile(TONE, 2)[: 4000 + 200 * n], "sampling_rate": RATE},
            "label": n % 2,
        }
        for n in range(20)
    ]
    plan = surefit.check(data=rows, model=Mean(), quiet=True)
    (found,) = (f for f in plan.findings if f.code == "SF701")
    assert "--set audio.pad=true --set audio.seconds=S" in found.fix


def test_padding_of_a_batch_is_silence() -> None:
    form = AudioFormat(RATE, 2.0, axes=("channel", "mel", "time"), mels=40, mean=-3.0, std=2.0)
    quiet = form.values(np.zeros(RATE, np.float32))
    assert quiet.shape == (1, 40, 101)
    assert np.allclose(quiet, form.batch_field.pad)
