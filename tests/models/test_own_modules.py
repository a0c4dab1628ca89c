"""Modules as people write them: which rows they read, what they keep, and sizes that do not fit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from builders import MeanPool, feature_rows
from surefit.inputs.model_hints import Hints
from surefit.models.module_inputs import module_hints

X = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")
OPTIONS: dict[str, Any] = {"batch_size": 8, "epochs": 1, "lr": 0.01, "quiet": True}


class Squeezed(nn.Module):
    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(6, num_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).squeeze()


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_a_single_row_keeps_its_axis(num_outputs: int, tmp_path: Path) -> None:
    """41 and 9 rows in batches of 8: the last batch has one row, which squeeze() flattens."""
    rows = {"x": X, "label": (X[:, 0] > 0).astype(int)}
    train, judged = ({k: v[a:b] for k, v in rows.items()} for a, b in ((0, 41), (50, 59)))
    module = Squeezed(num_outputs)
    run = surefit.train(
        data=train, eval_data=judged, model=module, output=str(tmp_path / "run"), **OPTIONS
    )
    assert all(event["loss"] > 0 for event in run.history if event["event"] == "step")
    assert np.sum(run.metrics["confusion"]) == 9
    alone, among = (surefit.predict(run, {"x": X[50:n]}, quiet=True)[0] for n in (51, 55))
    assert alone == pytest.approx(among)


class Keeps(nn.Module):
    """Keeps the targets of its last training call for the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(6, 2), None

    def forward(self, x: Any, labels: Any = None) -> Any:
        if labels is not None:
            self.seen = labels
        scores = self.layer(x)
        if self.seen is not None and len(self.seen) == len(x):
            scores = scores + 3 * torch.eye(2)[self.seen]
        return scores if labels is None else nn.functional.cross_entropy(scores, labels)


def test_targets_that_a_module_keeps_do_not_reach_the_metrics(tmp_path: Path) -> None:
    chance = np.random.default_rng(1).integers(0, 2, 60)
    rows = {"x": X, "label": chance}
    judged = {"x": X[:48], "label": chance[:48]}
    run = surefit.train(
        data=rows, eval_data=judged, model=Keeps(), output=str(tmp_path / "run"), **OPTIONS
    )
    assert run.metrics["accuracy"] < 0.8


def test_planning_leaves_counters_of_the_module_alone() -> None:
    module = nn.Sequential(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    rows = {"x": X, "label": (X[:, 0] > 0).astype(int)}
    assert surefit.check(data=rows, model=module, **OPTIONS).ok
    assert all(torch.equal(before[n], value) for n, value in module.state_dict().items())


def test_further_keywords_and_lazy_layers() -> None:
    class AnyKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, x: Any, **others: Any) -> Any:
            return self.layer(x)

    lazy = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Linear(8, 2))
    rows = {"x": X, "label": (X[:, 0] > 0).astype(int)}
    for module in (AnyKeyword(), lazy):
        plan = surefit.check(data=rows, model=module, **OPTIONS)
        assert [found for found in plan.findings if found.severity == "error"] == []


VECTORS = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
CLASSES = (VECTORS[:, 0] > VECTORS[:, 1]).astype(np.int64)


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
    return plan.job.pipeline.encoder.input.layout


def codes(plan: Any) -> list[str]:
    return [found.code for found in plan.findings]


ROWS = {"x": VECTORS[:60], "y": CLASSES[:60]}


def test_where_both_work_the_rows_decide() -> None:
    assert layout(ROWS, mlp(2)).vector
    steps = {"x": VECTORS[:60].reshape(60, 2, 4), "y": CLASSES[:60]}
    model = nn.Sequential(nn.Flatten(), mlp(2))
    assert not layout(steps, model).vector
    assert layout(ROWS, model).vector
    assert not layout(ROWS, model, features={"width": 4}).vector


def test_values_of_vectors_are_checked_as_those_of_sequences() -> None:
    x = VECTORS[:60].copy()
    x[7, 5] = 1e12
    plan = surefit.check(data={"x": x, "y": CLASSES[:60]}, model=mlp(2))
    assert "SF244" in codes(plan)
    healthy = surefit.check(data=ROWS, model=mlp(2))
    assert "SF244" not in codes(healthy)


class Recurrent(nn.Module):
    """A classifier whose first layer is not Linear, and whose head is its first submodule."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.body = nn.GRU(width, 16, batch_first=True)

    def forward(self, inputs_embeds: Any) -> Any:
        return self.head(self.body(inputs_embeds)[0][:, -1])


class Attentive(nn.Module):
    """A classifier that passes its input on by keyword."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.TransformerEncoderLayer(width, 2, 16, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        return self.head(self.body(src=inputs_embeds).mean(1))


@pytest.mark.parametrize(
    ("module", "layer", "expected"),
    [
        (MeanPool(width=7), "body", 7),
        (Recurrent(7), "body", 7),
        (Attentive(8), "body.self_attn", 8),
    ],
)
def test_the_layer_with_another_feature_size_is_named(
    module: nn.Module, layer: str, expected: int
) -> None:
    (found,) = [
        f for f in surefit.check(data=feature_rows(30), model=module).findings if f.code == "SF433"
    ]
    assert f"layer {layer!r}" in found.message
    assert f"expects feature size {expected}, the data has 4" in found.message
    assert f"surefit.AdaptiveProjection({expected}, 4)" in found.fix


def test_the_projection_of_the_fix_is_all_that_is_missing(tmp_path: Path) -> None:
    class Projected(MeanPool):
        def __init__(self) -> None:
            super().__init__(width=7)
            self.projection = surefit.AdaptiveProjection(7, 4)

        def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
            return super().forward(self.projection(inputs_embeds), attention_mask)

    run = surefit.train(
        data=feature_rows(60), model=Projected(), max_steps=3, output=str(tmp_path / "run")
    )
    assert len(surefit.predict(run, feature_rows(5), model=Projected())) == 5


def test_a_module_says_how_flat_and_turned_rows_lie() -> None:
    random = np.random.default_rng(0)
    flat = [{**row, "features": random.normal(size=24)} for row in feature_rows(30)]
    plan = surefit.check(data=flat, model=MeanPool(width=4))
    assert plan.ok
    told = next(found.message for found in plan.findings if found.code == "SF420")
    assert "read as [6, 4]: the module accepts it" in told
    turned = [{**row, "features": random.normal(size=(4, 9))} for row in feature_rows(30)]
    plan = surefit.check(data=turned, model=MeanPool(width=4))
    assert plan.ok
    assert plan.job.train.row(0)["inputs_embeds"].shape == (9, 4)
    assert any("fails on [4, 9] and works on [9, 4]" in f.message for f in plan.findings)


def test_trying_a_module_leaves_it_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(5), nn.Dropout(0.5))
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()
    hints = module_hints(module)
    assert hints.accepts(5, 4)
    assert not hints.accepts(5, 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    assert module_hints(nn.LazyLinear(3)).accepts is None
