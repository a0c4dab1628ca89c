"""Every task learns data with a known answer, from the command line and from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from builders import (
    MeanPool,
    echo_rows,
    feature_rows,
    learn,
    sentiment_rows,
)
from surefit.cli import run as command


def test_sft_learns_to_repeat_the_last_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"epochs": 3, "batch_size": 16, "lr": 4e-3, "generate": {"max_new_tokens": 4}}
    run = learn(tmp_path, echo_rows(1500, longest=4), "tiny:llama", **options)
    assert run.metrics["token_f1"] > 0.9
    assert run.metrics["perplexity"] == pytest.approx(np.exp(run.metrics["loss"]))
    assert command(["predict", str(run.path), "--text", "red cat moon"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"] == "moon"


def test_text_classification_learns_the_deciding_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["label,text", *(f"{row['label']},{row['text']}" for row in sentiment_rows(150))]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    run = learn(tmp_path, "rows.csv", "tiny:bert", epochs=3, batch_size=8, lr=2e-3)
    assert run.metrics["accuracy"] > 0.95
    (tmp_path / "new.csv").write_text('text\nred good\n""\nbad tree\n')
    assert command(["predict", "run", "--data", "new.csv"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["prediction"] for answer in answers] == ["good", None, "bad"]
    assert [answer["row"] for answer in answers] == [0, 1, 2]
    assert answers[1]["skipped"] == "empty"


def test_further_columns_reach_a_module_that_names_them(tmp_path: Path) -> None:
    class Weighted(MeanPool):
        def forward(self, inputs_embeds: Any, attention_mask: Any, bonus: Any) -> Any:  # type: ignore[override]
            assert bonus.shape == (len(inputs_embeds),)
            return super().forward(inputs_embeds, attention_mask) + 0 * bonus.unsqueeze(-1)

    rows = [{**row, "bonus": 0.5, "unused": 1.0} for row in feature_rows(60)]
    run = surefit.train(data=rows, model=Weighted(), epochs=1, output=str(tmp_path / "run"))
    assert run.plan["model"]["columns"]["bonus"] == "bonus"
    assert len(surefit.predict(run, rows[:3])) == 3
