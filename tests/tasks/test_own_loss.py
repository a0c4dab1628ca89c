"""A loss_fn of parts, metrics and predictions of one's own, compared with a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from surefit.cli import run as run_command
from surefit.training.loop import seed_step

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, 6)).astype("float32")
TRAIN, TEST = {"x": X[:32]}, {"x": X[32:]}
PLAIN = {"schedule": "constant", "warmup": 0, "clip": 0, "batch_size": 32, "epochs": 5}
"""One batch of all rows per step, so that a plain loop has the same steps."""

Batch = Mapping[str, torch.Tensor]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.encode, self.decode = nn.Linear(6, 4), nn.Linear(2, 6)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        mean, log = self.encode(x).chunk(2, dim=1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return {"mean": mean, "log": log, "made": self.decode(mean + noise * (log / 2).exp())}


def elbo(outputs: Any, batch: Batch) -> dict[str, Any]:
    mean, log = outputs["mean"], outputs["log"]
    rebuilt = (outputs["made"] - batch["x"]).square().sum()
    kl = -0.5 * (1 + log - mean.square() - log.exp()).sum()
    count = len(batch["x"])
    return {
        "loss": (rebuilt + kl, count), "rebuilt": (rebuilt, count), "kl": (kl / count).detach()
    }  # fmt: skip


class Twin(nn.Module):
    """Siamese and triplet networks: one tower for several columns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.tower = nn.Linear(6, 3, bias=False)

    def forward(self, anchor: Any, near: Any, far: Any) -> list[Any]:
        return [self.tower(each) for each in (anchor, near, far)]


def triplet(outputs: Any, batch: Batch) -> torch.Tensor:
    return nn.functional.triplet_margin_loss(*outputs)


class Student(nn.Module):
    """A teacher that is not trained gives the targets."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.teacher, self.student = nn.Linear(6, 3).requires_grad_(False), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.student(x), self.teacher(x)


def distil(outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
    made, wanted = (each.log_softmax(1) for each in outputs)
    loss = nn.functional.kl_div(made, wanted, log_target=True, reduction="batchmean")
    return {"loss": loss, "agree": (made.argmax(1) == wanted.argmax(1)).float().mean()}


TRIPLES = {
    "anchor": X[:32], "near": X[:32] + 0.1, "far": RANDOM.normal(size=(32, 6)).astype("float32")
}  # fmt: skip
CASES: dict[str, tuple[type[nn.Module], Callable[..., Any], dict[str, Any]]] = {
    "a VAE": (Vae, elbo, TRAIN),
    "triplets": (Twin, triplet, TRIPLES),
    "distillation": (Student, distil, TRAIN),
}


def plain_losses(
    module: nn.Module, loss_fn: Callable[..., Any], batches: list[Any]
) -> list[dict[str, Any]]:
    """Train as people write it by hand; return the losses of each step, per row."""
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer, found = sgd(trained), []
    for step, batch in enumerate(batches, start=1):
        seed_step(0, step, 0)
        value = loss_fn(module.train()(**batch), batch)
        parts = value if isinstance(value, dict) else {"loss": value}
        means = {
            name: part[0] / part[1] if isinstance(part, tuple) else part
            for name, part in parts.items()
        }
        optimizer.zero_grad()
        means["loss"].backward()
        optimizer.step()
        found.append({name: float(mean.detach()) for name, mean in means.items()})
    return found


@pytest.mark.parametrize("name", CASES)
def test_losses_and_parts_are_those_of_a_plain_loop(name: str, tmp_path: Path) -> None:
    kind, loss_fn, data = CASES[name]
    last, batches = dict[str, Any](), list[Any]()

    def noted(outputs: Any, batch: Batch) -> Any:
        last.update(batch)
        return loss_fn(outputs, batch)

    run = surefit.train(
        data=data, eval_share=0, model=kind(), loss_fn=noted, optimizer=sgd, seed=0,
        callbacks=[lambda event: event["event"] == "step" and batches.append({**last})],
        output=tmp_path / "run", **PLAIN,
    )  # fmt: skip
    steps = [event for event in run.history if event["event"] == "step"]
    by_hand = plain_losses(kind(), loss_fn, batches)
    assert len(steps) == len(by_hand) == 5
    for event, means in zip(steps, by_hand, strict=True):
        named = {"loss" if part == "loss" else f"loss_{part}": v for part, v in means.items()}
        assert {key: event[key] for key in named} == pytest.approx(named, rel=1e-5)
        assert {key for key in event if key.startswith("loss")} == {*named}


def test_evaluation_has_parts_metrics_and_predictions(tmp_path: Path) -> None:
    def worst(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
        return (outputs["made"] - batch["x"]).abs().amax(1).sum(), len(batch["x"])

    def codes(outputs: Any, batch: Batch) -> list[dict[str, Any]]:
        assert [*batch] == ["x"]
        return [{"code": mean, "far": bool(mean.norm() > 1)} for mean in outputs["mean"]]

    run = surefit.train(
        data=TRAIN, eval_data=TEST, model=Vae(), loss_fn=elbo, metrics={"worst": worst},
        predict_fn=codes, output=tmp_path / "run", lr=0.01, **{**PLAIN, "batch_size": 5},
    )  # fmt: skip
    module, rows = run.model.eval(), torch.from_numpy(X[32:])
    with torch.no_grad():
        outputs = module(rows)
        sums = elbo(outputs, {"x": rows})
    expected = {
        "loss": float(sums["loss"][0]) / 16,
        "loss_rebuilt": float(sums["rebuilt"][0]) / 16,
        "loss_kl": float(sums["kl"]),
        "worst": float(worst(outputs, {"x": rows})[0]) / 16,
    }
    assert run.metrics == pytest.approx(expected, rel=1e-4)
    made = surefit.predict(run, TEST)
    assert [row["prediction"]["far"] for row in made] == (outputs["mean"].norm(dim=1) > 1).tolist()
    codes_of = [row["prediction"]["code"] for row in made]
    np.testing.assert_allclose(codes_of, outputs["mean"], rtol=1e-4, atol=1e-6)
    means = surefit.predict(run, TEST, predict_fn=lambda o, batch: o["mean"])
    np.testing.assert_allclose([row["prediction"] for row in means], codes_of, rtol=1e-5)


def test_parts_that_change_between_batches_are_refused(tmp_path: Path) -> None:
    calls: list[int] = []

    def loss(outputs: Any, batch: Batch) -> dict[str, Any]:
        calls.append(1)
        mean = outputs["made"].square().mean()
        return {"loss": mean, ("late" if len(calls) > 30 else "early"): mean}

    with pytest.raises(surefit.UsageError, match=r"the parts \['late'\]; in earlier batches"):
        surefit.train(
            data=TRAIN, model=Vae(), loss_fn=loss, output=tmp_path / "run", epochs=20
        )  # fmt: skip


def test_a_metric_that_fails_is_found_before_training() -> None:
    plan = surefit.check(
        data=TRAIN, model=Vae(), loss_fn=elbo, metrics={"bad": lambda outputs, batch: batch["y"]}
    )
    [found] = [each for each in plan.findings if each.severity == "error"]
    assert found.code == "SF296"
    assert "metrics.bad raised" in found.message
    assert "the batch has x" in found.fix


CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)

    def forward(self, x):
        return self.body(x)

def error(outputs, batch):
    part = (outputs - batch["x"]).square().mean()
    return {"loss": part, "squares": part.detach()}

def make():
    return Net()
"""


def test_a_loss_is_named_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(CODE)
    np.savez("rows.npz", **TRAIN)
    named = ["--model", "own:make", "--set", "loss.function=own:error"]
    trained = ["train", "--data", "rows.npz", *named, "--max-steps", "3", "--output", "run"]
    assert run_command(trained) == 0
    assert "(squares" in capsys.readouterr().err
    assert run_command(["evaluate", "run", "--data", "rows.npz"]) == 0
    shown = capsys.readouterr().out
    assert "loss_squares" in shown
    assert run_command(["train", "--resume", "run", "--max-steps", "5"]) == 0
    assert run_command(["check", "--data", "rows.npz", *named[:2], "--set", "loss.function=own:no"])
    assert "has no 'no'" in capsys.readouterr().err
