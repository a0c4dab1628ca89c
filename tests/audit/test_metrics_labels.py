"""Metrics of classes, tags and numbers against scikit-learn and seqeval, summed over batches."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import seqeval.metrics as seqeval
import sklearn.metrics as sklearn
import torch
from seqeval.metrics.sequence_labeling import get_entities as entities_of

from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import ClassLabels, FittedTarget, NumberScales
from surefit.pipeline.evaluation import _add, as_metric
from surefit.targets.metrics.token_metrics import (
    entity_tags,
    find_entities,
    match_entities,
)
from surefit.targets.row_target import CLASSES
from surefit.targets.tags import ENTITY_F1
from surefit.tasks import feature_pretraining, regression
from surefit.tasks.classification import IMAGES, PIXEL_CLASSES, WORDS
from surefit.tasks.language_models import CAUSAL_LM, MASKED_LM, SEQ2SEQ, SFT


def measure(
    metric: Any, logits: torch.Tensor, labels: torch.Tensor, size: int = 7, **target: Any
) -> Any:
    """The figure of a metric whose sums are added up over batches of `size` rows."""
    named = as_metric(metric, Encoder("audit", {}, target=FittedTarget(**target)))
    totals: dict[str, Any] = {}
    for start in range(0, len(labels), size):
        part = slice(start, start + size)
        outputs = SimpleNamespace(logits=logits[part])
        _add(totals, named.sums(outputs, {"labels": labels[part]}), 1)
    return named.figure(totals)


def single_label(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random scores and classes; ties, classes never seen, a single class, few rows."""
    generator = np.random.default_rng(seed)
    classes, rows = int(generator.integers(2, 9)), int(generator.integers(1, 60))
    logits = torch.from_numpy(generator.normal(size=(rows, classes))).float()
    if seed % 4 == 0:
        logits = logits.round()  # ties
    seen = classes if seed % 3 else max(1, classes // 2)
    if seed % 7 == 0:
        seen = 1
    return logits, torch.from_numpy(generator.integers(0, seen, rows))


@pytest.mark.parametrize("seed", range(40))
def test_single_label(seed: int) -> None:
    logits, labels = single_label(seed)
    true, made = labels.numpy(), logits.numpy().argmax(-1)
    classes = list(range(logits.shape[-1]))
    assert measure(CLASSES.metrics["accuracy"], logits, labels) == pytest.approx(
        sklearn.accuracy_score(true, made)
    )
    reference = sklearn.f1_score(true, made, average="macro", zero_division=0)
    assert measure(CLASSES.metrics["macro_f1"], logits, labels) == pytest.approx(reference)
    confusion = sklearn.confusion_matrix(true, made, labels=classes).tolist()
    assert measure(CLASSES.metrics["confusion"], logits, labels) == confusion


@pytest.mark.parametrize("seed", range(40))
def test_multi_label(seed: int) -> None:
    generator = np.random.default_rng(seed)
    classes, rows = int(generator.integers(1, 9)), int(generator.integers(1, 60))
    logits = torch.from_numpy(generator.normal(size=(rows, classes))).float()
    labels = torch.from_numpy(generator.random((rows, classes)) < 0.3).float()
    if seed % 3 == 0:  # a class that neither occurs nor is predicted, one never predicted
        logits[:, 0], labels[:, 0] = -1.0, 0.0
        logits[:, -1] = -1.0
    if seed % 5 == 0:
        labels[:] = 0
    true, made = labels.numpy().astype(int), (logits.numpy() > 0).astype(int)
    reference = sklearn.f1_score(true, made, average="macro", zero_division=0)
    if classes == 1:  # scikit-learn reads one column as two classes
        reference = sklearn.f1_score(true[:, 0], made[:, 0], average="binary", zero_division=0)
    assert measure(CLASSES.metrics["macro_f1"], logits, labels) == pytest.approx(reference)
    exactly = float((true == made).all(-1).mean())
    assert measure(CLASSES.metrics["accuracy"], logits, labels) == pytest.approx(exactly)
    if classes > 1:
        assert exactly == pytest.approx(sklearn.accuracy_score(true, made))


@pytest.mark.parametrize("seed", range(30))
def test_top_k(seed: int) -> None:
    logits, labels = single_label(seed)
    metrics = IMAGES.metrics
    classes = logits.shape[-1]
    assert measure(metrics["top1"], logits, labels) == measure(
        CLASSES.metrics["accuracy"], logits, labels
    )
    if seed % 4 == 0:  # scikit-learn ranks the last of equal scores first, and argmax the first
        logits = logits - 1e-3 * torch.arange(classes)
    if classes > 5:
        reference = sklearn.top_k_accuracy_score(
            labels.numpy(), logits.numpy(), k=5, labels=list(range(classes))
        )
        assert measure(metrics["top5"], logits, labels) == pytest.approx(reference)
    else:
        assert measure(metrics["top5"], logits, labels) == 1.0


@pytest.mark.parametrize("seed", range(30))
def test_regression(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, scale, mean = int(generator.integers(1, 60)), 10.0 ** (seed % 7 - 3), 50.0
    true = generator.normal(size=rows) * scale + mean
    if seed % 5 == 0:
        true[:] = true[0]
    labels = torch.from_numpy((true - mean) / scale).float()
    made = labels + torch.from_numpy(generator.normal(size=rows)).float() * (seed % 3)
    numbers = NumberScales((mean,), (scale,))
    values, truth = made.double() * scale + mean, labels.double() * scale + mean
    found = {
        name: measure(metric, made[:, None], labels, numbers=numbers)
        for name, metric in regression.SPEC.metrics.items()
    }
    assert set(found) == {"mae", "rmse", "r2"}
    assert found["mae"] == pytest.approx(sklearn.mean_absolute_error(truth, values), rel=1e-5)
    squared = sklearn.mean_squared_error(truth, values)
    assert found["rmse"] == pytest.approx(math.sqrt(squared), rel=1e-5)
    if rows < 2:
        assert math.isnan(found["r2"])
    else:  # in units of the spread, so that equal targets are equal
        reference = sklearn.r2_score(labels.double(), made.double())
        assert found["r2"] == pytest.approx(reference, rel=1e-6, abs=1e-9)


KINDS = ["PER", "LOC", "B-SIDE"]
SCHEMES = {"IOB": "BI", "IOBES": "BIES"}


def tag_rows(seed: int, marks: str, count: int = 30) -> Iterator[tuple[list[str], list[str]]]:
    """Tags that follow no grammar, and copies of them with a few changes."""
    choose = random.Random(seed)
    tags = ["O", *(f"{mark}-{kind}" for mark in marks for kind in KINDS)]
    for _ in range(count):
        true = choose.choices(tags, weights=[5] + [1] * (len(tags) - 1), k=choose.randint(1, 12))
        yield true, [choose.choice(tags) if choose.random() < 0.2 else tag for tag in true]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("seed", range(20))
def test_entities_are_those_of_seqeval(seed: int, scheme: str) -> None:
    rows = list(tag_rows(seed, SCHEMES[scheme]))
    for true, _ in rows:
        expected = [(kind, first, last + 1) for kind, first, last in entities_of(true)]
        assert find_entities(true) == expected, true
    totals = {"found": 0, "false": 0, "missed": 0}
    for true, made in rows:
        totals = {name: totals[name] + n for name, n in match_entities(true, made).items()}
    reference = seqeval.f1_score([true for true, _ in rows], [made for _, made in rows])
    assert ENTITY_F1.figure(totals) == pytest.approx(reference)


@pytest.mark.parametrize("form", ["{mark}", "{mark}_{kind}", "{mark}:{kind}"])
@pytest.mark.parametrize("marks", ["BI", "BIES"])
def test_other_forms_of_tags_are_read_as_seqeval_does(form: str, marks: str) -> None:
    choose = random.Random(len(form))
    names = sorted({"O", *(form.format(mark=m, kind=k) for m in marks for k in ("LOC", "PER"))})
    read = dict(zip(names, entity_tags(names), strict=True))
    rows = [tuple(choose.choices(names, k=9) for _ in range(2)) for _ in range(200)]
    rows = [
        (true, [t if choose.random() < 0.7 else m for t, m in zip(true, made, strict=True)])
        for true, made in rows
    ]
    totals = {"found": 0, "false": 0, "missed": 0}
    for true, made in rows:
        counts = match_entities([read[tag] for tag in true], [read[tag] for tag in made])
        totals = {name: totals[name] + n for name, n in counts.items()}
    reference = seqeval.f1_score([true for true, _ in rows], [made for _, made in rows])
    assert 0.2 < reference < 0.9
    assert ENTITY_F1.figure(totals) == pytest.approx(reference)


@pytest.mark.parametrize("seed", range(10))
def test_token_classification_on_padded_batches(seed: int) -> None:
    names = ["O", *(f"{mark}-{kind}" for mark in "BI" for kind in KINDS)]
    rows = list(tag_rows(seed, "BI"))
    longest = max(len(true) for true, _ in rows) + 2
    labels = torch.full((len(rows), longest), -100)
    logits = torch.randn(len(rows), longest, len(names), generator=torch.manual_seed(seed))
    for place, (true, made) in enumerate(rows):
        at = sorted(random.Random(place).sample(range(longest), len(true)))  # later pieces between
        labels[place, at] = torch.tensor([names.index(tag) for tag in true])
        logits[place, at] += 50 * torch.eye(len(names))[[names.index(tag) for tag in made]]
    trues, mades = [true for true, _ in rows], [made for _, made in rows]
    found = {
        name: measure(metric, logits, labels, classes=ClassLabels((*names,)))
        for name, metric in WORDS.metrics.items()
    }
    flat = [[tag for row in side for tag in row] for side in (trues, mades)]
    assert found == {
        "token_accuracy": pytest.approx(sklearn.accuracy_score(*flat)),
        "accuracy": pytest.approx(np.mean([t == m for t, m in rows])),
        "entity_f1": pytest.approx(seqeval.f1_score(trues, mades)),
    }


@pytest.mark.parametrize("spec", [SFT, CAUSAL_LM, MASKED_LM, SEQ2SEQ])
@pytest.mark.parametrize("masked", [0.0, 0.5, 1.0])
def test_token_metrics(spec: Any, masked: float) -> None:
    generator = torch.manual_seed(3)
    logits = torch.randn(20, 9, 30, generator=generator)
    labels = torch.randint(0, 30, (20, 9), generator=generator)
    labels[torch.rand(20, 9, generator=generator) < masked] = -100
    shifted = spec in (SFT, CAUSAL_LM)
    true = (labels[:, 1:] if shifted else labels).reshape(-1).numpy()
    scores = (logits[:, :-1] if shifted else logits).reshape(-1, 30)
    kept = true != -100
    found = {name: measure(metric, logits, labels) for name, metric in spec.metrics.items()} | {
        "loss": measure(spec.loss, logits, labels)
    }
    assert set(found) == {"loss", "perplexity", "token_accuracy"}
    if masked == 1.0:
        assert all(math.isnan(value) for value in found.values())
        return
    chances = scores.double().softmax(-1).numpy()[kept]
    loss = sklearn.log_loss(true[kept], chances, labels=list(range(30)))
    hits = sklearn.accuracy_score(true[kept], chances.argmax(-1))
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert found["token_accuracy"] == pytest.approx(hits)


def test_masked_steps_that_are_distributions() -> None:
    generator = torch.manual_seed(0)
    logits = torch.randn(6, 8, 4, generator=generator)
    masked = torch.zeros(6, 8, dtype=torch.long)
    masked[:, 2:5] = 1
    labels = torch.eye(4)[torch.randint(0, 4, (6, 3), generator=generator)]
    batch = {"labels": labels, "masked_steps": masked, "distribution": torch.ones(6).long()}
    metric = as_metric(feature_pretraining.SPEC.metrics["accuracy"])
    found = metric.figure(metric.sums(SimpleNamespace(logits=logits), batch))
    made, true = logits[:, 2:5].argmax(-1).reshape(-1), labels.argmax(-1).reshape(-1)
    assert found == pytest.approx(sklearn.accuracy_score(true, made))


def test_pixels() -> None:
    generator = torch.manual_seed(0)
    logits = torch.randn(5, 3, 6, 7, generator=generator)
    labels = torch.randint(0, 3, (5, 6, 7), generator=generator)
    labels[torch.rand(5, 6, 7, generator=generator) < 0.2] = -100
    kept = labels.reshape(-1) != -100
    true, made = labels.reshape(-1)[kept], logits.argmax(1).reshape(-1)[kept]
    expected = {
        "iou": sklearn.jaccard_score(true, made, average="macro"),
        "dice": sklearn.f1_score(true, made, average="macro"),
    }
    for name, value in expected.items():
        metric = as_metric(PIXEL_CLASSES.metrics[name])
        sums = metric.sums(SimpleNamespace(logits=logits), {"labels": labels})
        assert metric.figure(sums) == pytest.approx(value, abs=1e-6)


IN_TESTS_OF_TASKS = {
    "map": "tests/tasks/test_detection.py: pycocotools, and map_50 beside it",
    **dict.fromkeys(("mase", "smape"), "tests/tasks/test_forecasting.py: their definitions"),
    "qwk": "tests/tasks/test_ordinal.py: scikit-learn, and mae of ranks",
    **dict.fromkeys(
        (
            *("reward_accuracy", "reward_margin", "length_accuracy", "log_ratio"),
            *("chosen_log_prob", "rejected_log_prob"),
        ),
        "tests/tasks/test_preference.py: a loop over rows, and scikit-learn for single answers",
    ),
    **dict.fromkeys(
        ("retrieval_accuracy", "mrr", "spearman"),
        "tests/tasks/test_embedding.py: by hand, and scipy's spearmanr",
    ),
}
"""Metrics of one task, and the test that has their reference."""


def test_every_metric_has_its_reference_here_or_with_its_task() -> None:
    """A metric that is added must be compared with its reference, too."""
    from surefit.tasks import TASKS

    named = {name for spec in TASKS.values() for name in spec.metric_names}
    assert named - {*IN_TESTS_OF_TASKS} == {
        *("loss", "perplexity", "token_accuracy", "accuracy", "macro_f1", "confusion"),
        *("top1", "top5", "entity_f1", "mae", "rmse", "r2"),
        *("token_f1", "exact_match", "rouge_l", "bleu", "chrf", "iou", "dice"),
    }
    assert {*IN_TESTS_OF_TASKS} <= named
