"""Two processes take the rows of one and reach its losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from builders import echo_rows, feature_rows, save_ragged, write_jsonl, write_module


def launch(
    folder: Path, processes: int, *arguments: str, timeout: int = 600
) -> list[dict[str, Any]]:
    prefix = [sys.executable, "-m"]
    if processes > 1:
        prefix += ["accelerate.commands.launch", "--multi_gpu", "--num_processes", str(processes)]
        prefix += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        prefix += ["--main_process_port", "0", "-m"]  # one that is free
    done = subprocess.run(
        [*prefix, "surefit", "train", *arguments],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = folder / arguments[arguments.index("--output") + 1]
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(tmp_path: Path) -> None:
    # 100 rows, effective batch 8: the last step has 4 rows, which leaves one process idle.
    save_ragged(tmp_path / "data.npz", feature_rows(100))
    save_ragged(tmp_path / "few.npz", feature_rows(3, seed=1))
    shared = ["--data", "data.npz", "--model", write_module(tmp_path), "--epochs", "2"]
    shared += ["--batch-size", "4"]
    # Three rows to evaluate on are one batch, which leaves one process idle there, too.
    shared += ["--eval-data", "few.npz"]
    alone = launch(tmp_path, 1, *shared, "--grad-accum", "2", "--output", "alone")
    both = launch(tmp_path, 2, *shared, "--grad-accum", "1", "--output", "both")
    assert len(alone) == len(both) == 2 * (13 + 1)
    for one, two in zip(alone, both, strict=True):
        assert one["event"] == two["event"]
        if one["event"] == "step":
            assert one["tokens"] == two["tokens"]  # the same rows in each step
            assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
        else:
            assert two["metrics"]["loss"] == pytest.approx(one["metrics"]["loss"], abs=1e-5)
            assert two["metrics"]["confusion"] == one["metrics"]["confusion"]


@pytest.mark.slow
def test_processes_may_take_different_times_to_measure_the_first_step(tmp_path: Path) -> None:
    save_ragged(tmp_path / "data.npz", feature_rows(40))
    model, source = write_module(tmp_path), tmp_path / "net.py"
    slow = "import os, time; time.sleep(0.3 * (os.environ.get('LOCAL_RANK') == '1'))"
    lines = source.read_text().replace("        hidden =", f"        {slow}\n        hidden =")
    source.write_text(lines)
    shared = ["--data", "data.npz", "--model", model, "--batch-size", "4"]
    both = launch(tmp_path, 2, *shared, "--max-steps", "2", "--output", "both", timeout=120)
    assert [event["event"] for event in both].count("step") == 2


@pytest.mark.slow
def test_two_processes_train_the_same_adapters(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", echo_rows(40))
    shared = ["--data", "rows.jsonl", "--model", "tiny:llama", "--lora-r", "4"]
    shared += ["--batch-size", "4", "--max-steps", "4", "--set", "generate.rows=0"]
    alone = launch(tmp_path, 1, *shared, "--grad-accum", "2", "--output", "alone")
    both = launch(tmp_path, 2, *shared, "--output", "both")
    for one, two in zip(alone, both, strict=True):
        assert one["event"] == two["event"]
        if one["event"] == "step":
            assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
    first, second = (surefit.load(tmp_path / name) for name in ("alone", "both"))
    ids = torch.tensor([[5, 6, 7]])
    assert torch.allclose(first(ids).logits, second(ids).logits, atol=1e-4)


@pytest.mark.slow
def test_two_processes_add_the_auxiliary_loss_of_their_micro_batches(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", echo_rows(40))
    surefit.train(data=str(rows), model="tiny:mixtral", max_steps=1, output=tmp_path / "made")
    config = tmp_path / "made" / "model" / "config.json"
    settings = {**json.loads(config.read_text()), "output_router_logits": True}
    config.write_text(json.dumps(settings))
    shared = ["--data", "rows.jsonl", "--model", str(config.parent), "--batch-size", "4"]
    shared += ["--max-steps", "3", "--set", "generate.rows=0", "--set", "eval_share=0"]
    alone = launch(tmp_path, 1, *shared, "--grad-accum", "2", "--output", "alone")
    both = launch(tmp_path, 2, *shared, "--output", "both")
    for one, two in zip(alone, both, strict=True):
        assert one["aux_loss"] > 0
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)
        # The micro-batches of the processes are those that one process accumulates.
        assert two["aux_loss"] == pytest.approx(one["aux_loss"], rel=1e-3)
