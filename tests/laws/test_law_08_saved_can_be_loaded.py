"""Law 8: what is saved can be loaded, by surefit and by plain transformers and peft.

Plain transformers with the export of every task: tests/tasks/test_after_training.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM

import surefit
from builders import (
    MeanPool,
    assert_close,
    assert_same_predictions,
    assert_same_weights,
    echo_rows,
    feature_rows,
    save_ragged,
    write_module,
)
from surefit.cli import run as command


def test_adapters_load_in_plain_peft(tmp_path: Path) -> None:
    run = surefit.train(
        data=echo_rows(40),
        model="tiny:llama",
        lora_r=4,
        lr=1e-2,
        max_steps=3,
        output=str(tmp_path / "run"),
    )
    assert command(["export", str(run.path), str(tmp_path / "out")]) == 0
    assert command(["export", str(run.path), str(tmp_path / "merged"), "--merge"]) == 0
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        trained = run.module_object.eval()(ids).logits
        loaded = surefit.load(tmp_path / "run")
        assert_same_weights(loaded, run.module_object)
        assert_close(loaded(ids).logits, trained)
        plain = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out")
        assert_close(plain(ids).logits, trained)
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        assert torch.allclose(merged(ids).logits, trained, atol=1e-5)
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "base")
        assert not torch.allclose(base(ids).logits, trained, atol=1e-3)
        run.path.rename(tmp_path / "moved")
        assert_same_weights(surefit.load(tmp_path / "moved"), run.module_object)
    assert not (tmp_path / "merged" / "adapter_config.json").exists()


def test_own_module_comes_back_from_its_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = save_ragged(tmp_path / "data.npz", feature_rows(40))
    name = write_module(tmp_path, "law8net")
    run = surefit.train(data=str(data), model=name, max_steps=3, output="run")
    saved = {k: v.clone() for k, v in run.model.state_dict().items()}
    monkeypatch.chdir("/")
    again = surefit.load(tmp_path / "run")
    assert all(torch.equal(again.state_dict()[key], saved[key]) for key in saved)


def test_own_module_object_is_given_again(tmp_path: Path) -> None:
    rows = feature_rows(40)
    run = surefit.train(data=rows, model=MeanPool(), max_steps=3, output=str(tmp_path / "run"))
    before = surefit.predict(run, rows[:5])
    with pytest.raises(surefit.UsageError, match="MeanPool"):
        surefit.load(tmp_path / "run")
    fresh = surefit.load(tmp_path / "run", model=MeanPool())
    assert_same_predictions(surefit.predict(tmp_path / "run", rows[:5], model=fresh), before)
