"""A LoRA run: what is meant to be trained moves, resuming is exact, processes agree."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import surefit
from builders import MeanPool, echo_rows, feature_rows, write_jsonl
from surefit.cli import run as command
from surefit.config import make_config
from surefit.errors import RunFailedError, UsageError
from surefit.run.checkpoints import latest_checkpoint
from surefit.run.run_folder import create_run
from surefit.training.check_updates import check_trained, watch_moves

TINY: dict[str, Any] = {
    "data": echo_rows(40),
    "model": "tiny:llama",
    "lora_r": 4,
    "generate": {"rows": 0},
}


def step(lr: float) -> dict[str, Any]:
    return {"event": "step", "lr": lr}


def test_exactly_what_is_meant_takes_gradients() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    check_trained(module, {"1.weight", "1.bias"})
    with pytest.raises(RunFailedError, match=r"take no gradient: 0\.bias\."):
        check_trained(module, {"0.bias", "1.weight", "1.bias"})
    with pytest.raises(RunFailedError, match=r"stay frozen take gradients: 1\.bias\."):
        check_trained(module, {"1.weight"})


def test_weights_that_rest_are_named_after_two_steps_that_count() -> None:
    module, seen, rests = nn.Linear(2, 2), [], [True]
    watched = watch_moves(
        module, {"weight", "bias"}, lambda: rests[0], lambda event: seen.append(event)
    )
    watched(step(1e-3))  # skipped for an overflow: nothing could move
    watched(step(0.0))
    rests[0] = False
    watched(step(1e-3))
    watched({"event": "eval"})
    nn.init.zeros_(module.weight)
    with pytest.raises(RunFailedError, match=r"1 of 2 weights .* have not moved: bias\."):
        watched(step(1e-3))
    watched(step(1e-3))  # checked once
    assert len(seen) == 6


def test_optimizer_without_the_adapters_is_found_out(tmp_path: Path) -> None:
    """The classic: adapters are there, the loss falls a little, and they are not trained."""

    def only_some(parameters: Any) -> Any:
        return torch.optim.AdamW(list(parameters)[2:], lr=1e-3)

    with pytest.raises(RunFailedError, match=r"2 of 28 .*layers\.0\.self_attn\.q_proj\.lora_A"):
        surefit.train(**TINY, max_steps=4, optimizer=only_some, output=str(tmp_path / "run"))


def test_frozen_behind_our_back_is_found_out(tmp_path: Path) -> None:
    from surefit.training import start

    plan = surefit.check(**TINY, max_steps=2)
    assert plan.job is not None
    assert plan.model.adaptation is not None
    name = min(plan.model.adaptation.trained)
    plan.job.pipeline.module.get_parameter(name).requires_grad_(False)
    run = create_run(tmp_path / "run", plan.config, plan.as_dict(), plan.task)
    with pytest.raises(RunFailedError, match=name.replace(".", r"\.")):
        start.run_plan(plan, run)


def test_only_adapters_change_and_checkpoints_are_small(tmp_path: Path) -> None:
    run = surefit.train(**TINY, max_steps=3, output=str(tmp_path / "run"))
    plan = surefit.check(**TINY, max_steps=3)
    assert plan.job is not None
    begun = dict(plan.job.pipeline.module.named_parameters())
    moved = {
        name for name, p in run.module_object.named_parameters() if not torch.equal(p, begun[name])
    }
    assert moved == plan.model.adaptation.trained
    assert len(moved) == 28
    latest = latest_checkpoint(run.checkpoints)
    assert latest is not None
    assert set(load_file(latest / "model.safetensors")) == moved
    size = sum(p.numel() for name, p in begun.items() if name in moved)
    assert run.plan["model"]["trainable_parameters"] == size
    assert (latest / "model.safetensors").stat().st_size < 4 * size + 10_000


def test_interrupted_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    options = {**TINY, "epochs": 2, "lora": {"dropout": 0.2}, "save_every": 2}
    whole = surefit.train(**options, output=str(tmp_path / "whole"))

    def interrupt(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(surefit.SurefitError, match="saved"):
        surefit.train(**options, callbacks=[interrupt], output=str(tmp_path / "cut"))
    with pytest.raises(UsageError, match=r"contradicts lora\.r"):
        surefit.train(resume=tmp_path / "cut", data=TINY["data"], lora_r=8)
    resumed = surefit.train(resume=tmp_path / "cut", data=TINY["data"], lora_r=4)
    both = [load_file(run.path / "model" / "adapter_model.safetensors") for run in (whole, resumed)]
    assert both[0].keys() == both[1].keys()
    assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])
    first, second = (
        [{k: v for k, v in event.items() if k != "seconds"} for event in run.history]
        for run in (whole, resumed)
    )
    assert first == second


def test_another_base_is_refused_on_resume(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": feature_rows(40), "lora_r": 2, "epochs": 2}

    def interrupt(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(surefit.SurefitError, match="saved"):
        surefit.train(
            model=MeanPool(), callbacks=[interrupt], output=str(tmp_path / "run"), **options
        )
    with pytest.raises(RunFailedError, match="another base"):
        surefit.train(model=MeanPool(), resume=tmp_path / "run", **options)


@pytest.mark.slow
def test_one_rank_however_it_is_spelled(tmp_path: Path, capsys: Any) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", echo_rows(20))
    (tmp_path / "c.yaml").write_text("lora:\n  r: 2\n  alpha: 5\n")
    shared = ["check", "--data", str(data), "--model", "tiny:llama", "--json"]

    def asked(*arguments: str) -> Any:
        capsys.readouterr()
        assert command([*shared[:1], *arguments, *shared[1:]]) == 0
        lora = json.loads(capsys.readouterr().out)["model"]["lora"]
        return lora and (lora["r"], lora["alpha"])

    for spelled in (["--lora-r", "16"], ["--lora_r", "16"], ["--set", "lora.r=16"]):
        assert asked(*spelled) == (16, 32)
    assert asked("--lora-r", "16", "--set", "lora.r=16") == (16, 32)
    assert asked(str(tmp_path / "c.yaml"), "--lora-r", "8") == (8, 5)
    assert asked("--lora-r", "0") is None
    assert command([*shared, "--lora-r", "16", "--set", "lora.r=8"]) == 2
    assert "lora.r is 8" in capsys.readouterr().out
    assert command([*shared, "--set", "lora.alpha=8"]) == 2
    assert "lora.r is 0" in capsys.readouterr().out
    with pytest.raises(UsageError, match="lora_r is 4"):
        make_config({"lora_r": 4, "lora": {"r": 5}})
    with pytest.raises(UsageError, match=r"lora\.r"):
        make_config({"lora_r": -1})


def test_learning_rate_and_plan_say_lora(tmp_path: Path, capsys: Any) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", echo_rows(20))
    assert command(["check", "--data", str(data), "--model", "tiny:llama", "--lora-r", "4"]) == 0
    said = capsys.readouterr().out
    assert "lr 0.0002" in said
    assert "r 4, alpha 8 on 14 layers (q_proj, k_proj" in said


@pytest.mark.slow
def test_peft_is_imported_for_lora_only(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import surefit\n"
        "from builders import feature_rows, MeanPool\n"
        "surefit.check(data=feature_rows(20), model=MeanPool())\n"
        "sys.exit('peft was imported' if 'peft' in sys.modules else 0)\n"
    )
    tests = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, tests], capture_output=True, text=True, cwd=tmp_path.parent
    )
    assert done.returncode == 0, done.stderr
