"""Adapters that --model brings: trained further, below new ones, or merged first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

import surefit
from builders import (
    assert_close,
    echo_rows,
    events_of,
    mostly_slow,
    save_tiny_base,
    sentiment_rows,
    stop_at,
    weights_of,
    write_jsonl,
)
from surefit.cli import run as command
from surefit.errors import UsageError
from surefit.findings import FindingError

ROWS = echo_rows(24)
IDS = torch.tensor([[5, 6, 7, 8, 9]])
OPTIONS: dict[str, Any] = {"data": ROWS, "generate": {"rows": 0}, "lr": 0.01, "max_steps": 2}
HOW = [("continue", 0), ("stack", 2), ("merge", 2), ("merge", 0)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base model, a run with LoRA on it, and adapters that peft wrote."""
    folder = tmp_path_factory.mktemp("adapted")
    base = save_tiny_base(folder / "base", ROWS)
    surefit.train(**OPTIONS, model=base, lora_r=4, output=str(folder / "run"))
    torch.manual_seed(1)
    config = LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "up_proj"], use_rslora=True)
    foreign = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    write_jsonl(folder / "rows.jsonl", ROWS)
    for name, weight in foreign.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)
    foreign.save_pretrained(folder / "foreign")
    return folder


def logits(module: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = module.eval()(input_ids=IDS).logits
    return found


def plain(folder: Path, base: Path) -> torch.Tensor:
    """What peft and transformers make of a folder alone."""
    if not (folder / "adapter_config.json").is_file():
        return logits(AutoModelForCausalLM.from_pretrained(folder))
    model = AutoModelForCausalLM.from_pretrained(base)
    return logits(PeftModel.from_pretrained(model, folder))


@pytest.mark.parametrize(("how", "lora_r"), HOW)
@pytest.mark.parametrize("start", ["run", "foreign"])
def test_each_begins_with_the_model_that_the_adapters_make(
    place: Path, start: str, how: str, lora_r: int
) -> None:
    options = {**OPTIONS, "tokenizer": str(place / "base")}
    plan = surefit.check(**options, model=str(place / start), adapter=how, lora_r=lora_r)
    assert plan.ok, plan.findings
    folder = place / "run/model" if start == "run" else place / "foreign"
    assert_close(logits(plan.job.pipeline.module), plain(folder, place / "base"))
    assert f"The adapters of {folder} (rank" in " ".join(plan.notes)
    rank = {"run": 4, "foreign": 3}[start] if how == "continue" else lora_r
    assert (plan.model.adaptation.r if plan.model.adaptation else 0) == rank
    own = {n for n, p in plan.job.pipeline.module.named_parameters() if p.requires_grad}
    assert all(".lora_" in name for name in own) == bool(rank)


def test_adapters_with_heads_on_a_base_without_a_name(tmp_path: Path) -> None:
    rows = sentiment_rows(24)
    options: dict[str, Any] = {"data": rows, "lr": 0.01, "max_steps": 2, "lora_r": 2}
    first = surefit.train(**options, model="tiny:bert", output=str(tmp_path / "first"))
    options |= {"model": str(first.path), "adapter": "stack"}
    run = surefit.train(**options, output=str(tmp_path / "second"))
    assert "start untrained" not in " ".join(run.plan["notes"])
    assert surefit.predict(run.path, rows) == surefit.predict(run, rows)
    assert surefit.predict(run, rows) != surefit.predict(first, rows)


def test_adapters_of_another_kind_are_refused(place: Path, tmp_path: Path) -> None:
    config = {"peft_type": "IA3", "base_model_name_or_path": str(place / "base")}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="of IA3 adapters"):
        surefit.check(**OPTIONS, model=str(tmp_path))


@pytest.mark.parametrize(("how", "lora_r"), mostly_slow(HOW[1:] + HOW[:1], every=4))
def test_runs_load_in_peft_and_resume_to_the_bit(
    place: Path, how: str, lora_r: int, tmp_path: Path
) -> None:
    options = {**OPTIONS, "model": str(place / "run"), "adapter": how, "lora_r": lora_r}
    options |= {"save_every": 1, "data": str(place / "rows.jsonl")}
    run = surefit.train(**options, output=str(tmp_path / "whole"))
    base = run.path / "model/base" if how == "merge" else place / "base"
    assert_close(plain(run.path / "model", base), logits(run.model))
    assert (run.path / "model/base").is_dir() == (how == "merge" and lora_r > 0)
    moved = logits(run.model) - plain(place / "run/model", place / "base")
    assert moved.abs().max() > 1e-4
    with pytest.raises(KeyboardInterrupt):
        surefit.train(**options, output=str(tmp_path / "cut"), callbacks=[stop_at(1)])
    cut = surefit.train(resume=str(tmp_path / "cut"))
    assert events_of(cut) == events_of(run)
    assert weights_of(cut) == weights_of(run)
    assert command(["export", str(run.path), str(tmp_path / "out"), "--merge"]) == 0
    assert_close(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), logits(run.model))


def test_an_export_is_trained_further_and_a_finished_run_has_more_epochs(
    place: Path, tmp_path: Path
) -> None:
    assert command(["export", str(place / "run"), str(tmp_path / "out")]) == 0
    options = {**OPTIONS, "model": str(tmp_path / "out"), "max_steps": None, "epochs": 1}
    options["data"] = str(place / "rows.jsonl")
    run = surefit.train(**options, output=str(tmp_path / "again"))
    steps = len([each for each in run.history if each["event"] == "step"])
    assert command(["train", "--resume", str(run.path), "--epochs", "2"]) == 0
    assert len([each for each in run.history if each["event"] == "step"]) == 2 * steps


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lora_r": 8}, "have r=4; lora.r is 8"),
        ({"lora_r": 4, "lora": {"alpha": 3}}, "have alpha=8; lora.alpha is 3"),
        ({"lora_r": 4, "lora": {"dropout": 0.1}}, "have dropout=0.0; lora.dropout is 0.1"),
        ({"lora_r": 4, "lora": {"targets": ["q_proj"]}}, "stay on their layers; lora.targets"),
        ({"add_tokens": ["<say>"]}, "the embeddings of 1 tokens would be new"),
    ],
)
def test_what_adapters_contradict_is_refused(
    place: Path, options: dict[str, Any], said: str
) -> None:
    plan = surefit.check(**OPTIONS, model=str(place / "run"), **options)
    assert said in " ".join(found.message for found in plan.findings)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"adapter": "stack"}, "set lora.r"),
        ({"adapter": "merge", "model": "base"}, "brings none"),
        ({"from_scratch": True}, "has trained adapters"),
        ({"adapter": "merge", "lora_r": 4, "lora": {"quantize": "4bit"}}, "Merge them first"),
    ],
)
def test_what_cannot_be_meant_is_refused(place: Path, options: dict[str, Any], said: str) -> None:
    named = str(place / options.get("model", "run"))
    with pytest.raises((UsageError, FindingError), match=said):
        surefit.check(**{**OPTIONS, **options, "model": named})


def test_preferences_are_compared_with_the_adapted_model(place: Path, tmp_path: Path) -> None:
    pairs = [{**row, "rejected": "no " + row["completion"]} for row in ROWS]
    rows = [
        {"prompt": row["prompt"], "chosen": row["completion"], "rejected": row["rejected"]}
        for row in pairs
    ]
    options = {**OPTIONS, "data": rows, "model": str(place / "run"), "task": "preference"}
    run = surefit.train(**options, output=str(tmp_path / "dpo"))
    first = next(each for each in run.history if each["event"] == "step")
    assert first["loss"] == pytest.approx(0.6931, abs=1e-3)  # it is its own reference
    assert "A reference is the model with them." in " ".join(run.plan["notes"])
    surefit.evaluate(run, [{**row, "rejected": "other"} for row in rows])  # opens it again
