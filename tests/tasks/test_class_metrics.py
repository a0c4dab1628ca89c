"""Built-in metrics of classes against scikit-learn's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as truth
import torch

from surefit.pipeline.evaluation import _add, _figures
from surefit.targets.classes import class_scores
from surefit.targets.metrics.class_metrics import class_metric

ROWS = 3000


def measure(name: str, logits: torch.Tensor, labels: torch.Tensor, size: int = 7) -> Any:
    """The figures of a metric over batches, as an evaluation computes them."""
    metric = class_metric(name, class_scores)
    assert metric is not None
    totals: dict[str, Any] = {}
    for start in range(0, len(labels), size):
        rows = slice(start, start + size)
        outputs, batch = SimpleNamespace(logits=logits[rows]), {"labels": labels[rows]}
        _add(totals, metric.sums(outputs, batch), 1)
    return _figures(name, metric, totals)


def make(num_classes: int, scale: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that know something about the labels, and skewed labels."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.arange(1.0, num_classes + 1) ** 2
    labels = shares.multinomial(ROWS, True, generator=generator)
    logits = torch.randn(ROWS, num_classes, dtype=torch.float64, generator=generator)
    logits[torch.arange(ROWS), labels] += 0.7
    return logits * scale, labels


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("num_classes", [2, 5])
def test_areas_are_within_their_bin_error(num_classes: int, scale: float) -> None:
    logits, labels = make(num_classes, scale)
    chances = logits.softmax(-1).numpy()
    y = labels.numpy()
    if num_classes == 2:
        roc = truth.roc_auc_score(y, logits[:, 1] - logits[:, 0])
        pr = truth.average_precision_score(y, logits[:, 1] - logits[:, 0])
    else:
        roc = truth.roc_auc_score(y, chances, multi_class="ovr")
        hot = np.eye(num_classes)[y]
        pr = truth.average_precision_score(hot, chances, average="macro")
    for name, wanted in (("roc_auc", roc), ("pr_auc", pr)):
        found = measure(name, logits, labels)
        error = found[f"{name}_bin_error"]
        assert abs(found[name] - wanted) <= error + 1e-12, name
        assert error < 0.01, name


def test_ties_and_extreme_scores() -> None:
    labels = torch.tensor([0, 1] * 50 + [1] * 20)
    logits = torch.zeros(120, 2, dtype=torch.float64)
    logits[60:, 1] = 500.0  # beyond the last bin
    scores = (logits[:, 1] - logits[:, 0]).numpy()
    for name, true in (
        ("roc_auc", truth.roc_auc_score(labels, scores)),
        ("pr_auc", truth.average_precision_score(labels, scores)),
    ):
        found = measure(name, logits, labels)
        assert found[name] == pytest.approx(true, abs=1e-12)
        assert found[f"{name}_bin_error"] > 0.1  # all pairs within a bin are unknown


def test_areas_of_one_class_alone_are_unknown() -> None:
    logits, _ = make(2, 1.0)
    found = measure("roc_auc", logits, torch.zeros(ROWS, dtype=torch.long))
    assert np.isnan(found["roc_auc"])


@pytest.mark.parametrize("num_classes", [2, 5])
def test_figures_equal_those_of_scikit_learn(num_classes: int) -> None:
    logits, labels = make(num_classes, 1.5)
    y, chances, made = labels.numpy(), logits.softmax(-1).numpy(), logits.argmax(-1).numpy()
    wanted = {
        "log_loss": truth.log_loss(y, chances),
        "precision": truth.precision_score(y, made, average="macro", zero_division=0),
        "recall": truth.recall_score(y, made, average="macro", zero_division=0),
        "top1": truth.accuracy_score(y, made),
        "confusion": truth.confusion_matrix(y, made).tolist(),
    }
    if num_classes > 2:
        wanted["top2"] = truth.top_k_accuracy_score(y, chances, k=2)
    for name, value in wanted.items():
        found = np.asarray(measure(name, logits, labels)[name])
        assert found == pytest.approx(np.asarray(value), abs=1e-9), name
    for name, score in (("precision", truth.precision_score), ("recall", truth.recall_score)):
        each = measure(name, logits, labels)[f"{name}_per_class"]
        assert each == pytest.approx(score(y, made, average=None, zero_division=0).tolist())


def test_a_class_that_is_never_predicted_counts_as_scikit_learn_counts_it() -> None:
    logits, labels = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1]], torch.tensor([0, 2, 1, 1])
    y, made = labels.numpy(), np.array([0, 0, 1, 1])
    for name, score in (("precision", truth.precision_score), ("recall", truth.recall_score)):
        wanted = score(y, made, average="macro", zero_division=0)
        assert measure(name, logits, labels, 4)[name] == pytest.approx(wanted)


def test_several_classes_per_row() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = (torch.rand(500, 3, generator=generator) < 0.4).float()
    logits = torch.randn(500, 3, dtype=torch.float64, generator=generator) + labels
    y, made, chances = labels.numpy(), (logits > 0).numpy(), logits.sigmoid().numpy()
    roc, pr = measure("roc_auc", logits, labels), measure("pr_auc", logits, labels)
    assert roc["roc_auc"] == pytest.approx(truth.roc_auc_score(y, chances), abs=1e-3)
    assert pr["pr_auc"] == pytest.approx(truth.average_precision_score(y, chances), abs=5e-3)
    for name, score in (("precision", truth.precision_score), ("recall", truth.recall_score)):
        wanted = score(y, made, average="macro", zero_division=0)
        assert measure(name, logits, labels)[name] == pytest.approx(wanted, abs=1e-9)
