"""One output for two classes trains, measures and predicts as the two scores [0, z] do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from steps_of_classes import step_rows
from torch import nn

import surefit
from builders import assert_same_weights
from surefit.models.lora_targets import find_fully_trained
from surefit.models.module_outputs import SingleLogit

X = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
Y = (X[:, 0] > X[:, 1] + 0.7).astype(np.int64)
ROWS = [{"vector": x, "label": "yes" if y else "no"} for x, y in zip(X, Y, strict=True)]
FASTER: dict[str, Any] = {"lr": 0.03, "batch_size": 16, "seed": 3}


def mlp(outputs: int = 1, *end: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, outputs), *end)


class Shaped(nn.Module):
    """One score per row: (B, 1), (B,), beside other outputs, or with a score 0 before it."""

    def __init__(self, form: str = "(B, 1)", net: nn.Module | None = None) -> None:
        super().__init__()
        self.net, self.form = net or mlp(), form

    def forward(self, x: torch.Tensor) -> Any:
        score = self.net(x)
        forms = {
            "(B, 1)": score,
            "(B,)": score.reshape(-1),
            "[0, z]": torch.cat([torch.zeros_like(score), score], -1),
            "a tuple": (x, score),
            "named": {"hidden": x, "logits": score.reshape(-1)},
        }
        return forms[self.form]


def codes(plan: Any, *severities: str) -> list[str]:
    severities = severities or ("error", "warning")
    return [found.code for found in plan.findings if found.severity in severities]


def figures(form: str, folder: Path, **options: Any) -> tuple[Any, Any, Any]:
    """Events, predictions and the evaluation of a run of this form of module."""
    output = folder / form.strip("[]()").replace(" ", "")
    run = surefit.train(
        data=ROWS, model=Shaped(form), epochs=3, output=output, **{**FASTER, **options}
    )
    made = surefit.predict(run, X[:40], probabilities="all")
    return run, made, surefit.evaluate(run, ROWS)


LOSSES: list[dict[str, Any]] = [
    {},
    {"loss": {"class_weights": "balanced", "label_smoothing": 0.1}, "grad_accum": 2},
]


@pytest.mark.parametrize("options", LOSSES, ids=["plain", "weights"])
def test_one_output_equals_two_scores(options: dict[str, Any], tmp_path: Path) -> None:
    options = {**options, "metrics": ["roc_auc", "pr_auc", "log_loss"]}
    run, made, measured = figures("[0, z]", tmp_path, **options)
    assert measured["accuracy"] > 0.85
    assert {"roc_auc", "pr_auc", "log_loss", "macro_f1"} <= {*measured}
    for form in ["(B, 1)"] if "loss" in options else ["(B,)", "a tuple"]:
        other, its, found = figures(form, tmp_path, **options)
        assert_same_weights(run.model, other.model)
        assert its == made
        assert sum(its[0]["probabilities"].values()) == pytest.approx(1)
        assert found == measured
        assert [event["loss"] for event in other.history if event["event"] == "step"] == [
            event["loss"] for event in run.history if event["event"] == "step"
        ]


def test_the_loss_is_that_of_torch() -> None:
    scores, labels = torch.randn(7, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0, 0])
    both = SingleLogit().of_both(scores)
    assert both.shape == (7, 2)
    binary = nn.functional.binary_cross_entropy_with_logits(scores, labels.double())
    torch.testing.assert_close(nn.functional.cross_entropy(both, labels), binary)
    torch.testing.assert_close(both.softmax(-1)[:, 1], scores.sigmoid())
    assert SingleLogit(3).of_both(torch.zeros(2, 5)).shape == (2, 5, 2)
    assert SingleLogit(4, 1).of_both(torch.zeros(2, 1, 6, 6)).shape == (2, 2, 6, 6)
    three = torch.zeros(2, 3)
    assert SingleLogit().of_both(three) is three


def test_the_plan_reports_it_and_float_targets_are_classes() -> None:
    for labels in (Y.astype(bool), Y.astype(np.float32)[:, None]):
        data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.as_tensor(labels))
        plan = surefit.check(data=data, model=mlp())
        assert (plan.task.name, codes(plan)) == ("feature-classification", [])
        assert any("logit of 1" in note and "--task regression" in note for note in plan.notes)
        plan = surefit.check(data=data, model=mlp(), task="regression")
        assert (plan.task.name, codes(plan)) == ("regression", [])
        assert not any("logit of" in note for note in plan.notes)
    plan = surefit.check(data=ROWS, model=mlp())
    assert any("logit of 'yes'" in note for note in plan.notes)
    assert not any("logit of" in n for n in surefit.check(data=ROWS, model=mlp(2)).notes)


@pytest.mark.parametrize("form", ["(B, 1)", "(B,)"])
def test_one_output_for_three_classes_is_refused_with_both_numbers(form: str) -> None:
    rows = [{"vector": x, "label": n % 3} for n, x in enumerate(X)]
    plan = surefit.check(data=rows, model=Shaped(form))
    assert codes(plan) == ["SF303"]
    message = next(found.message for found in plan.findings if found.code == "SF303")
    assert "1 output," in message
    assert "3 classes" in message


SEVERAL = np.stack([X[:, 0] > 0, X[:, 1] > 0], 1).astype(np.float32)


@pytest.mark.parametrize("end", [nn.Sigmoid(), nn.Sequential(nn.Hardsigmoid(), nn.Flatten())])
def test_probabilities_are_reported(end: nn.Module) -> None:
    for outputs, labels in ((1, Y), (2, SEVERAL)):
        plan = surefit.check(data=(X, labels), model=mlp(outputs, end))
        assert codes(plan) == ["SF220"]
        fix = next(found.fix for found in plan.findings if found.code == "SF220")
        assert "sigmoid" in fix
        assert codes(surefit.check(data=(X, labels), model=mlp(outputs))) == []
    of_numbers = surefit.check(data=(X, X[:, 0]), model=mlp(1, nn.Sigmoid()))
    assert codes(of_numbers) == ["SF220"]
    assert any("of the targets lie beyond" in found.message for found in of_numbers.findings)


def test_lora_trains_the_one_output_in_full() -> None:
    assert find_fully_trained(mlp(1), 2, ()) == find_fully_trained(mlp(2), 2, ()) == ("2",)
    assert find_fully_trained(mlp(1), 3, ()) == ()


class ByStep(nn.Module):
    """One score for each step: (B, T, 1), (B, T) or (B, 1, T)."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.net, self.form = nn.Linear(4, 1), form

    def forward(self, inputs_embeds: torch.Tensor) -> torch.Tensor:
        score = self.net(inputs_embeds)
        forms = {"(B, T, 1)": score, "(B, T)": score[..., 0], "(B, 1, T)": score.transpose(1, 2)}
        return forms[self.form]


@pytest.mark.parametrize("form", ["(B, T, 1)", "(B, T)", "(B, 1, T)"])
def test_one_output_for_each_time_step(form: str, tmp_path: Path) -> None:
    rows = step_rows(60)
    rows = [{**row, "labels": (row["labels"] == 1).astype(np.int64)} for row in rows]
    options: dict[str, Any] = {"epochs": 6, "lr": 0.1, "output": tmp_path / "run"}
    run = surefit.train(data=rows, model=ByStep(form), **options)
    assert run.metrics["accuracy"] > 0.95
    assert len(surefit.predict(run, rows[:1])[0]["prediction"]) == len(rows[0]["labels"])


class ByPixel(nn.Module):
    """One score for each pixel: (B, 1, H, W) or (B, H, W)."""

    def __init__(self, axis: bool) -> None:
        super().__init__()
        self.net, self.axis = nn.Conv2d(1, 1, 3, padding=1), axis

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        score = self.net(pixel_values)
        return score if self.axis else score[:, 0]


@pytest.mark.parametrize("axis", [True, False])
def test_one_output_for_each_pixel(axis: bool, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    masks = np.zeros((40, 12, 12), np.uint8)
    for mask in masks:
        top, left = numbers.integers(0, 6, 2)
        mask[top : top + 6, left : left + 6] = 1
    images = numbers.integers(0, 60, masks.shape) + 150 * masks
    rows = [
        {"image": image.astype(np.uint8), "label": mask}
        for image, mask in zip(images, masks, strict=True)
    ]
    run = surefit.train(
        data=rows,
        model=ByPixel(axis),
        task="image-segmentation",
        epochs=8,
        lr=0.1,
        output=tmp_path / "run",
    )
    assert run.metrics["iou"] > 0.9
