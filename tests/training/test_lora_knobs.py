"""What LoRA trains beside its adapters: modules named by the user, and tokens that are added."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import surefit
from builders import echo_rows, events_of, save_tiny_base, stop_at
from surefit.cli import run as command
from surefit.errors import UsageError

ROWS = [
    {"prompt": row["prompt"], "completion": f"<say>{row['completion']}</say>"}
    for row in echo_rows(40)
]
TOKENS = ("<say>", "</say>")
OPTIONS: dict[str, Any] = {"data": ROWS, "lora_r": 4, "generate": {"rows": 0}, "lr": 0.01}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_base(tmp_path_factory.mktemp("base"), echo_rows(40))


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


def test_named_modules_are_trained_and_load_in_peft(base: str, tmp_path: Path) -> None:
    settings = {**OPTIONS, "model": base, "lora": {"modules_to_save": ["lm_head", "norm"]}}
    before = AutoModelForCausalLM.from_pretrained(base)
    run = surefit.train(**settings, max_steps=3, output=str(tmp_path / "run"))
    told = run.plan["model"]["lora"]["trained_in_full"]
    assert {"lm_head", "model.norm"} <= set(told)
    again = AutoModelForCausalLM.from_pretrained(base)
    plain = PeftModel.from_pretrained(again, run.path / "model")
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, run.model.eval()(ids).logits)
    merged = plain.merge_and_unload()
    assert not torch.equal(merged.lm_head.weight, before.lm_head.weight)
    assert not torch.equal(merged.model.norm.weight, before.model.norm.weight)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lm_hed", "close matches: lm_head."),
        ("act_fn", "no module with weights is named 'act_fn'."),
    ],
)
def test_a_name_of_no_module_is_refused(base: str, name: str, said: str) -> None:
    plan = surefit.check(**OPTIONS, model=base, lora={"modules_to_save": [name]})
    [error] = [found for found in plan.findings if found.severity == "error"]
    assert said in error.message


def test_tied_embeddings_are_refused() -> None:
    plan = surefit.check(**OPTIONS, model="tiny:gpt2", lora={"modules_to_save": ["lm_head"]})
    assert "shares its weights" in plan.findings[0].message
    assert "add_tokens" in plan.findings[0].fix


@pytest.mark.parametrize("lora_r", [0, 4])
def test_added_tokens_are_single_trained_and_saved(base: str, lora_r: int, tmp_path: Path) -> None:
    settings = {**OPTIONS, "model": base, "lora_r": lora_r, "add_tokens": TOKENS}
    begun = surefit.check(**settings).job
    assert begun is not None
    tokenizer = begun.pipeline.encoder.tokenizer
    new = tokenizer.convert_tokens_to_ids([*TOKENS])
    assert tokenizer("red<say>blue", add_special_tokens=False)["input_ids"].count(new[0]) == 1
    assert all(new[0] in begun.train.row(number)["labels"] for number in range(len(begun.train)))
    start = begun.pipeline.module.get_input_embeddings().weight.detach()[new].clone()
    run = surefit.train(**settings, max_steps=3, output=str(tmp_path / "run"))
    loaded = surefit.load(run.path)
    out = tmp_path / "out"
    assert command(["export", str(run.path), str(out), *(["--merge"] if lora_r else [])]) == 0
    plain = AutoModelForCausalLM.from_pretrained(out)
    assert AutoTokenizer.from_pretrained(out).convert_tokens_to_ids([*TOKENS]) == new
    ids = torch.tensor([[5, *new, 8]])
    with torch.no_grad():
        expected = run.model.eval()(ids).logits
        torch.testing.assert_close(loaded(ids).logits, expected)
        torch.testing.assert_close(plain(ids).logits, expected)
    moved = plain.get_input_embeddings().weight.detach()[new] - start
    assert moved.abs().amax(1).min() > 1e-3


def test_both_are_resumed_to_the_bit(base: str, tmp_path: Path) -> None:
    lora = {"modules_to_save": ["norm"], "dora": True}
    options = {**OPTIONS, "model": base, "add_tokens": TOKENS, "lora": lora, "neftune": 5}
    options |= {"epochs": 2, "save_every": 2}
    whole = surefit.train(**options, output=str(tmp_path / "whole"))
    stop = stop_at(7, signal.SIGINT)
    with pytest.raises(surefit.SurefitError, match="saved"):
        surefit.train(**options, callbacks=[stop], output=str(tmp_path / "cut"))
    resumed = surefit.train(resume=tmp_path / "cut", data=ROWS)
    assert events_of(whole) == events_of(resumed)
    ours, theirs = weights(whole.model), weights(resumed.model)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_tokens_need_a_tokenizer() -> None:
    rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 20
    with pytest.raises(UsageError, match="add_tokens needs a tokenizer"):
        surefit.check(data=rows, model="tiny:llama", task="causal-lm", add_tokens=["<x>"])


@pytest.mark.parametrize(
    ("padding_free", "said"), [("auto", "batches are padding-free"), ("off", "batches are padded")]
)
def test_packing_is_accepted_and_says_what_is_done(padding_free: str, said: str) -> None:
    options = {**OPTIONS, "model": "tiny:llama", "packing": True, "padding_free": padding_free}
    notes = surefit.check(**options).notes
    assert any(note.startswith("packing: ") and said in note for note in notes)
