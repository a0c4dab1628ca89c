"""A `loss_fn` may count otherwise than by targets: one divisor per step, its own."""

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
from builders import MeanPool, feature_rows

WEIGHTS = (1.0, 5.0, 0.5)
SCRIPT = """
import sys
import torch
import surefit
from builders import MeanPool, feature_rows

def weighted(outputs, batch):
    weight = torch.tensor([1.0, 5.0, 0.5])[batch["labels"]]
    losses = torch.nn.functional.cross_entropy(outputs, batch["labels"], reduction="none")
    return (weight * losses).sum(), weight.sum()

torch.manual_seed(0)
surefit.train(data=feature_rows(60), model=MeanPool(), loss_fn=weighted, batch_size=4, lr=0.01,
              epochs=2, eval_share=0.2, grad_accum=int(sys.argv[2]), parallel=sys.argv[3],
              output=sys.argv[1])
"""


def weighted(outputs: Any, batch: Any) -> tuple[Any, Any]:
    """As torch's `cross_entropy(weight=…)` divides its mean."""
    weight = torch.tensor(WEIGHTS)[batch["labels"]]
    losses = torch.nn.functional.cross_entropy(outputs, batch["labels"], reduction="none")
    return (weight * losses).sum(), weight.sum()


def losses(history: list[dict[str, Any]]) -> list[float]:
    return [e["loss"] if e["event"] == "step" else e["metrics"]["loss"] for e in history]


def train(output: Path, **settings: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = MeanPool()
    run = surefit.train(
        data=feature_rows(60),
        model=model,
        lr=0.01,
        epochs=2,
        eval_share=0.2,
        output=str(output),
        **settings,
    )
    return losses([e for e in run.history if e["event"] in ("step", "eval")]), model.state_dict()


def test_a_sum_of_weights_is_the_divisor_of_the_whole_step(tmp_path: Path) -> None:
    named = dict(zip(("0", "1", "2"), WEIGHTS, strict=True))
    known, weights = train(tmp_path / "a", batch_size=8, loss={"class_weights": named})
    for name, sizes in {"whole": (8, 1), "parts": (2, 4)}.items():
        found, trained = train(
            tmp_path / name, batch_size=sizes[0], grad_accum=sizes[1], loss_fn=weighted
        )
        assert found == pytest.approx(known, rel=1e-5)
        torch.testing.assert_close(trained, weights, rtol=1e-4, atol=1e-6)


def test_a_count_of_targets_changes_nothing(tmp_path: Path) -> None:
    def plain(outputs: Any, batch: Any) -> tuple[Any, int]:
        labels = batch["labels"]
        return torch.nn.functional.cross_entropy(outputs, labels, reduction="sum"), len(labels)

    known, weights = train(tmp_path / "a", batch_size=4, grad_accum=2)
    found, trained = train(tmp_path / "b", batch_size=4, grad_accum=2, loss_fn=plain)
    assert found == pytest.approx(known, rel=1e-6)
    torch.testing.assert_close(trained, weights)


@pytest.mark.parametrize("count", [0, -3.0, float("nan")])
def test_a_count_that_nothing_can_be_divided_by_is_refused(count: float) -> None:
    def bad(outputs: Any, batch: Any) -> tuple[Any, float]:
        return weighted(outputs, batch)[0], count

    plan = surefit.check(data=feature_rows(30), model=MeanPool(), loss_fn=bad)
    errors = [found for found in plan.findings if found.severity == "error"]
    assert [found.code for found in errors] == ["SF312"]
    assert "Return a count above 0" in errors[0].fix


@pytest.mark.processes
def test_several_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)
    tests = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join((str(tests.parent), str(tests)))
    found = {}
    for processes, parallel in ((1, "ddp"), (2, "ddp"), (2, "fsdp")):
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        prefix = torchrun if processes > 1 else []
        name = f"{parallel}{processes}"
        done = subprocess.run(
            [sys.executable, *prefix, "own.py", name, str(2 // processes), parallel],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        lines = (tmp_path / name / "events.jsonl").read_text().splitlines()
        events = [event for event in map(json.loads, lines) if event["event"] in ("step", "eval")]
        found[name] = losses(events)
    assert found["ddp2"] == pytest.approx(found["ddp1"], abs=1e-5)
    assert found["fsdp2"] == pytest.approx(found["ddp1"], abs=1e-5)
