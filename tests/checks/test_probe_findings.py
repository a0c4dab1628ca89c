"""What one real batch through the model brings to light before the first step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from builders import MeanPool, feature_rows
from surefit.checks.probes.model_probes import check_gradients
from surefit.checks.probes.model_profile import ModelProfile


def test_outputs_beyond_the_classes_are_never_predicted(tmp_path: Any) -> None:
    module = MeanPool(num_classes=5)
    torch.nn.init.constant_(module.head.bias[3:], 100.0)
    run = surefit.train(
        data=feature_rows(30), model=module, max_steps=1, output=str(tmp_path / "run")
    )
    assert {row["prediction"] for row in surefit.predict(run, feature_rows(9))} <= {0, 1, 2}


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda outputs, batch: 1.0,
        lambda outputs, batch: outputs.detach().sum(),
        lambda outputs, batch: torch.nn.functional.cross_entropy(
            outputs, batch["labels"], reduction="none"
        ),
    ],
    ids=["number", "detached", "vector"],
)
def test_loss_that_cannot_be_learned_from_is_an_error(loss_fn: Any, tmp_path: Any) -> None:
    with pytest.raises(surefit.FindingError, match="The loss"):
        surefit.train(
            data=feature_rows(30),
            model=MeanPool(),
            loss_fn=loss_fn,
            output=str(tmp_path / "run"),
        )
    assert not (tmp_path / "run").exists()


def test_optimizer_of_another_model_is_refused(tmp_path: Any) -> None:
    stranger = torch.optim.SGD(MeanPool().parameters(), lr=0.1)
    with pytest.raises(surefit.UsageError, match="none of the parameters that are trained"):
        surefit.train(
            data=feature_rows(30),
            model=MeanPool(),
            optimizer=stranger,
            output=str(tmp_path / "run"),
        )
    assert not (tmp_path / "run").exists()


def test_values_too_large_for_float32_are_named() -> None:
    rows = [{**row, "features": row["features"].astype(np.float64)} for row in feature_rows(30)]
    rows[4]["features"] = rows[4]["features"] + 1e300
    plan = surefit.check(data=rows, model=MeanPool(), eval_share=0.0)
    errors = [found for found in plan.findings if found.severity == "error"]
    assert [(found.code, found.where["row"]) for found in errors] == [("SF207", 4)]


class Overwrites(MeanPool):
    """Runs, and cannot be trained: what its backward needs is written over in place."""

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        hidden = torch.exp(self.body(inputs_embeds))
        logits = self.head(hidden.mean(1))
        hidden.zero_()
        return logits


def test_model_that_fails_in_its_backward_is_found() -> None:
    module = Overwrites()
    plan = surefit.check(data=feature_rows(30), model=module)
    (found,) = [found for found in plan.findings if found.severity == "error"]
    assert found.code == "SF305"
    assert "computing its gradients raised RuntimeError" in found.message
    assert all(parameter.grad is None for parameter in module.parameters())


def _ends_in_relu(seed: int, bias: float | None = None) -> ModelProfile:
    """A net with a ReLU at its end, and two rows of which a ReLU is often off for both."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2), nn.ReLU())
    if bias is not None:
        nn.init.constant_(net[2].bias, bias)  # type: ignore[arg-type]
    features = torch.randn(200, 5)
    batches = [
        {"features": part, "labels": torch.zeros(len(part)).long()} for part in features.split(50)
    ]

    def loss(outputs: Any, batch: Any) -> tuple[Any, Any]:
        return nn.functional.cross_entropy(outputs, batch["labels"], reduction="sum"), 1

    first = {name: value[:2] for name, value in batches[0].items()}
    forward = lambda batch: net(batch["features"])  # noqa: E731
    return ModelProfile(net, first, forward, loss, inputs=("features",), more=lambda: iter(batches))


def test_only_a_net_that_is_off_for_all_rows_has_no_gradient() -> None:
    off = 0
    for seed in range(200):
        subject = _ends_in_relu(seed)
        dead = not any(bool(subject.forward(batch).any()) for batch in subject.more())
        off += not bool(subject.forward(subject.batch).any())
        assert bool(check_gradients(subject)) == dead
    assert off >= 20, "the two rows alone would have been misleading"


def test_layer_that_stops_all_gradients_is_named() -> None:
    for seed in range(20):
        (found,) = check_gradients(_ends_in_relu(seed, bias=-100.0))
        assert "'3' (ReLU)" in found.message
        assert "202 real rows" in found.message
        assert "outputs of '2'" in found.fix
