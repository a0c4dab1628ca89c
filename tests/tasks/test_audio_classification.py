"""audio-classification: tones of known pitch are learned, whatever form they come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_transformers import spoken_classes
from tones import MODULES, tone_rows, write_module, write_tones

import surefit
from builders import mostly_slow
from surefit.cli import run as command


def test_a_cnn_on_log_mel_learns_files_of_all_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tones(tmp_path / "tones", 60)
    write_tones(tmp_path / "held", 15, first=900)
    files = write_tones(tmp_path / "new", 15, first=900, flat=True)
    model = write_module(tmp_path, "log-mel as an image")
    arguments = ["train", "--data", "tones", "--model", model, "--set", "audio.rate=8000"]
    assert command([*arguments, "--epochs", "6", "--lr", "1e-2", "--output", "run"]) == 0
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["task"] == "audio-classification"
    assert plan["ledger"]["unit"] == "time steps"
    read = next(note for note in plan["notes"] if "log-mel [1, 64, frames] at 8000 Hz" in note)
    assert "resampled from 22050 Hz" in read
    assert "mixed down" in read
    assert surefit.evaluate("run", "held")["accuracy"] == 1
    capsys.readouterr()
    expected = [file.name.split("_")[0] for file in files]
    for data, count in (("new", 15), ("new/high_*", 5), (str(files[7]), 1)):
        assert command(["predict", "run", "--data", data]) == 0
        answers = [json.loads(line)["prediction"] for line in capsys.readouterr().out.splitlines()]
        assert len(answers) == count
        assert answers == (expected if count == 15 else [expected[0 if count == 5 else 7]] * count)


TINY = ["wav2vec2", "ast", "whisper", "hubert", "wavlm"]


@pytest.mark.parametrize("arch", [*TINY[:2], *mostly_slow(["", *TINY[2:]], every=99)[1:]])
def test_plain_transformers_predicts_the_same(arch: str, tmp_path: Path) -> None:
    files = write_tones(tmp_path / "tones", 12)
    run = surefit.train(
        data=str(tmp_path / "tones"),
        model=f"tiny:{arch}",
        max_steps=2,
        batch_size=9,
        output=str(tmp_path / "run"),
        eval_share=0.25,
    )
    exported = tmp_path / "exported"
    assert command(["export", str(run.path), str(exported)]) == 0
    theirs = spoken_classes(exported, files)
    for source in (run, str(exported)):
        ours = surefit.predict(source, [str(file) for file in files])
        assert [row["prediction"] for row in ours] == [name for name, _ in theirs]
        assert [row["probability"] for row in ours] == pytest.approx(
            [chance for _, chance in theirs], abs=1e-4
        )


FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "log-mel as an image": ("log-mel [1, 64, frames]", {}),
    "log-mel as channels": ("log-mel [40, frames]", {}),
    "waveform": ("waveforms [1, samples]", {}),
    "one length": ("waveforms [samples]", {"audio": {"seconds": 0.25}}),
}


@pytest.mark.parametrize("kind", mostly_slow(FORMS, every=3))
def test_the_form_that_forward_accepts_decides(kind: str) -> None:
    from torch import nn

    module = eval(MODULES[kind], {"nn": nn, "n": 3})
    expected, options = FORMS[kind]
    plan = surefit.check(data=tone_rows(24), model=module, **options)
    assert plan.ok, plan.findings
    assert any(expected in note for note in plan.notes)
    assert plan.job is not None
    lengths = {*plan.job.train.lengths.tolist()}
    assert (lengths == {2000}) == (kind == "one length")


def test_audio_that_is_too_long_is_cut_and_counted() -> None:
    rows = tone_rows(24)
    rows[5]["audio"] = {"array": np.zeros(16_000, np.float32), "sampling_rate": 8_000}
    plan = surefit.check(data=rows, model="tiny:ast", audio={"seconds": 0.5})
    assert plan.ledger is not None
    assert plan.ledger.truncated_rows == 1
    refused = surefit.check(
        data=rows, model="tiny:ast", audio={"seconds": 0.5}, overlong="error"
    ).findings
    assert [f.message for f in refused if f.severity == "error"] == [
        "row 5: 32000 samples, but audio.seconds is 0.5"
    ]
