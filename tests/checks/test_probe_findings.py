"""What one real batch through the model brings to light before the first step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import surefit
from builders import MeanPool, feature_rows, sentiment_rows


class Frozen(MeanPool):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class NotANumber(MeanPool):
    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        return super().forward(inputs_embeds, attention_mask) * float("nan")


class OneNumber(MeanPool):
    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        return super().forward(inputs_embeds, attention_mask).mean()


class NeedsLabels(MeanPool):
    def forward(self, inputs_embeds: Any, attention_mask: Any, labels: Any) -> Any:  # type: ignore[override]
        return super().forward(inputs_embeds, attention_mask)


class Raises(MeanPool):
    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (Frozen(), "SF314"),
        (NotANumber(), "SF315"),
        (OneNumber(), "SF305"),
        (Raises(), "SF305"),
        (MeanPool(num_classes=2), "SF303"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_model_that_cannot_train_is_an_error(module: torch.nn.Module, code: str) -> None:
    plan = surefit.check(data=feature_rows(30), model=module)
    assert [found.code for found in plan.findings if found.severity == "error"] == [code]
    assert not plan.ok


@pytest.mark.parametrize(
    ("module", "code"), [(MeanPool(num_classes=5), "SF316"), (NeedsLabels(), "SF317")]
)
def test_odd_but_trainable_model_is_a_warning(module: torch.nn.Module, code: str) -> None:
    plan = surefit.check(data=feature_rows(30), model=module)
    assert plan.ok
    assert code in [found.code for found in plan.findings if found.severity == "warning"]


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


def test_own_loss_gets_what_the_model_returned(tmp_path: Any) -> None:
    run = surefit.train(
        data=feature_rows(60),
        model=MeanPool(),
        loss_fn=lambda logits, batch: torch.nn.functional.cross_entropy(logits, batch["labels"]),
        epochs=1,
        output=str(tmp_path / "run"),
    )
    assert run.metrics["loss"] > 0


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


def test_many_dropped_rows_are_a_warning_and_few_a_note() -> None:
    rows: list[dict[str, Any]] = list(sentiment_rows(40))
    rows[3] = {**rows[3], "text": ""}
    plan = surefit.check(data=rows, model="tiny:bert")
    assert "SF203" in [found.code for found in plan.findings]
    rows[5:10] = [{**row, "text": ""} for row in rows[5:10]]
    plan = surefit.check(data=rows, model="tiny:bert")
    assert "SF215" in [found.code for found in plan.findings]


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
