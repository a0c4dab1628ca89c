"""Own modules on vectors: the shape that forward accepts decides how flat rows are read."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from builders import MeanPool, assert_same_weights, write_jsonl
from surefit.encode.features.feature_layout import Hints
from surefit.models.insert_projection import module_hints

X = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
CLASSES = (X[:, 0] > X[:, 1]).astype(np.int64)
SEVERAL = np.stack([X[:, 0] > 0, X[:, 1] > 0, X[:, 2] > 0], 1).astype(np.float32)
AMOUNTS = (50 + 3 * X[:, 0] - X[:, 1]).astype(np.float32)


def mlp(outputs: int, width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, outputs))


class Pooled(nn.Module):
    """A GRU over steps of four; its last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.gru(x)[0][:, -1])
        return out


def tried(module: nn.Module, size: int) -> bool | None:
    hints: Hints = module_hints(module)
    assert hints.reads_vectors is not None
    return hints.reads_vectors(size)


def test_a_module_is_tried_on_vectors() -> None:
    assert tried(mlp(2), 8) is True
    assert tried(mlp(7), 8) is True  # as many outputs as rows are tried
    assert tried(mlp(2), 6) is False
    assert tried(MeanPool(), 4) is False  # its forward names a sequence and its mask
    assert tried(Pooled(), 4) is False  # a GRU takes two axes for one sequence
    assert tried(nn.Sequential(nn.LazyLinear(2)), 8) is None


def layout(data: Any, model: Any, **options: Any) -> Any:
    plan = surefit.check(data=data, model=model, **options)
    assert plan.ok, [str(found) for found in plan.findings]
    assert plan.job is not None
    return plan.job.pipeline.encoder.settings["features.layout"]


def codes(plan: Any) -> list[str]:
    return [found.code for found in plan.findings]


ROWS = {"x": X[:60], "y": CLASSES[:60]}


def test_flat_rows_are_vectors_to_a_module_that_reads_vectors() -> None:
    plan = surefit.check(data=ROWS, model=mlp(2))
    assert plan.ok
    assert "SF437" in codes(plan)
    assert plan.job is not None
    assert plan.job.pipeline.fields["features"].axes == ("width",)
    assert plan.ledger is not None
    assert plan.ledger.tokens == plan.ledger.train_rows


def test_flat_rows_are_sequences_to_a_module_that_reads_sequences() -> None:
    assert layout(ROWS, Pooled())["width"] == 4
    assert not layout(ROWS, Pooled())["vector"]


def test_where_both_work_the_rows_decide() -> None:
    assert layout(ROWS, mlp(2))["vector"]
    steps = {"x": X[:60].reshape(60, 2, 4), "y": CLASSES[:60]}
    model = nn.Sequential(nn.Flatten(), mlp(2))
    assert not layout(steps, model)["vector"]
    assert layout(ROWS, model)["vector"]
    assert not layout(ROWS, model, features={"width": 4})["vector"]


@pytest.mark.parametrize("module", [mlp(2, 6), mlp(2, 4)], ids=["no divisor", "a divisor"])
def test_vectors_of_another_size_are_refused_with_both_sizes(module: nn.Module) -> None:
    plan = surefit.check(data=ROWS, model=module)
    (found,) = [found for found in plan.findings if found.severity == "error"]
    assert found.code == "SF438"
    assert "vectors of 8 numbers" in found.message
    assert f"reads {module[0].in_features}" in found.message  # type: ignore[index]


def test_a_row_of_another_size_is_named() -> None:
    rows = [{"x": row.tolist(), "y": int(y)} for row, y in zip(X[:60], CLASSES, strict=False)]
    rows[41] = {"x": [1.0, 2.0, 3.0], "y": 0}
    plan = surefit.check(data=rows, model=mlp(2))
    (found,) = [found for found in plan.findings if found.severity == "error"]
    assert (found.code, found.where["row"]) == ("SF208", 41)
    assert "3 values; expected a vector of 8" in found.message


def test_more_classes_than_outputs_are_refused() -> None:
    plan = surefit.check(data={"x": X[:60], "y": np.arange(60) % 3}, model=mlp(2))
    assert [found.code for found in plan.findings if found.severity == "error"] == ["SF303"]


def test_values_of_vectors_are_checked_as_those_of_sequences() -> None:
    x = X[:60].copy()
    x[:, 3] = 2.5
    x[7, 5] = 1e12
    plan = surefit.check(data={"x": x, "y": CLASSES[:60]}, model=mlp(2))
    assert {"SF247", "SF242"} <= {*codes(plan)}
    assert not {"SF247", "SF242"} & {*codes(surefit.check(data=ROWS, model=mlp(2)))}


def dataset(targets: Any) -> Any:
    return torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(targets))


def npz(folder: Path, targets: Any) -> str:
    np.savez(folder / "rows.npz", x=X, y=targets)
    return str(folder / "rows.npz")


def npy(folder: Path, targets: Any) -> str:
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", targets)
    return str(folder / "X.npy")


def jsonl(folder: Path, targets: Any) -> str:
    rows = [{"v": x, "label": y} for x, y in zip(X.tolist(), targets.tolist(), strict=True)]
    return str(write_jsonl(folder / "rows.jsonl", rows))


SOURCES: dict[str, Callable[[Path, Any], Any]] = {
    "dataset": lambda folder, targets: dataset(targets),
    "loader": lambda folder, targets: torch.utils.data.DataLoader(dataset(targets), batch_size=16),
    "npz": npz,
    "npy": npy,
    "jsonl": jsonl,
    "dicts": lambda folder, targets: [
        {"vector": x, "label": y} for x, y in zip(X, targets.tolist(), strict=True)
    ],
}
TARGETS = {"classes": CLASSES, "several": SEVERAL, "amounts": AMOUNTS, "[N, 1]": AMOUNTS[:, None]}
GOALS = {"classes": "accuracy", "several": "macro_f1", "amounts": "r2", "[N, 1]": "r2"}
OUTPUTS = {"classes": 2, "several": 3, "amounts": 1, "[N, 1]": 1}


@pytest.mark.slow
@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_form_learns_its_rule(tmp_path: Path, source: str, targets: str) -> None:
    data = SOURCES[source](tmp_path, TARGETS[targets])
    options: dict[str, Any] = {"data": data, "epochs": 8, "lr": 0.01}
    run = surefit.train(model=mlp(OUTPUTS[targets]), output=str(tmp_path / "run"), **options)
    assert run.metrics[GOALS[targets]] > 0.9
    assert surefit.evaluate(run, data)[GOALS[targets]] > 0.9
    loaded: Any = surefit.load(tmp_path / "run", model=mlp(OUTPUTS[targets]))
    assert_same_weights(loaded, run.model)
    assert len(surefit.predict(run, data)) == len(X)


@pytest.mark.slow
@pytest.mark.parametrize("targets", TARGETS)
def test_tiny_mlp_reads_vectors_of_any_scale(tmp_path: Path, targets: str) -> None:
    x = X * np.logspace(-3, 4, 8, dtype=np.float32)
    data = {"x": x, "y": TARGETS[targets]}
    run = surefit.train(
        data=data, model="tiny:mlp", epochs=12, lr=3e-3, output=str(tmp_path / "run")
    )
    assert run.metrics[GOALS[targets]] > 0.85
    assert surefit.evaluate(tmp_path / "run", data)[GOALS[targets]] > 0.85
    assert surefit.predict(tmp_path / "run", x[:3]) == surefit.predict(run, x[:3])


def events(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": ROWS, "epochs": 2, "batch_size": 4}
    whole = surefit.train(model=mlp(2), output=str(tmp_path / "whole"), **options)

    def interrupt(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 9:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(surefit.SurefitError, match="saved"):
        surefit.train(model=mlp(2), output=str(tmp_path / "cut"), callbacks=[interrupt], **options)
    again = surefit.train(model=mlp(2), resume=tmp_path / "cut", **options)
    assert events(tmp_path / "cut") == events(whole.path)
    assert_same_weights(again.model, whole.model)
