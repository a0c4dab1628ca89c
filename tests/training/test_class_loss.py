"""Class weights, label smoothing and losses of one's own: a sum and a divisor of the step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import surefit
from builders import MeanPool, feature_rows, same_pool, sentiment_rows, write_jsonl
from surefit.cli import run as run_cli
from surefit.errors import UsageError
from surefit.inputs.encoder_state import ClassLoss
from surefit.targets.class_loss import class_loss, loss_divisor, loss_of_shares
from surefit.targets.classes import class_scores

WEIGHTS = {"0": 0.25, "1": 3.0}  # class 2 has 1
ROWS = sorted(feature_rows(30), key=lambda row: row["label"])[::4]  # 8 rows of all classes
LOSS = {"class_weights": WEIGHTS, "label_smoothing": 0.2}


@pytest.mark.parametrize("weights", [None, (0.25, 3.0, 1.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_loss_is_that_of_torch(weights: Any, smoothing: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 3, dtype=torch.float64, generator=generator)
    labels = torch.randint(3, (40,), generator=generator)
    options = ClassLoss(weights, smoothing)
    total, count = class_loss(class_scores, options)(
        SimpleNamespace(logits=logits), {"labels": labels}
    )
    weight = None if weights is None else logits.new_tensor(weights)
    wanted = cross_entropy(logits, labels, weight=weight, label_smoothing=smoothing)
    assert float(total / count) == pytest.approx(float(wanted), abs=1e-12)
    assert loss_divisor(options, labels.numpy()) == pytest.approx(float(count), rel=1e-12)
    known = np.array([5.0, 1.0, 3.0])
    for _ in range(5):  # no other constant prediction is better on the rows it was fitted on
        other = torch.randn(3, dtype=torch.float64, generator=generator).log_softmax(-1)
        itself = cross_entropy(
            other.expand(9, 3),
            torch.tensor([0] * 5 + [1] + [2] * 3),
            weight=weight,
            label_smoothing=smoothing,
        )
        assert loss_of_shares(options, known, known) <= float(itself)


def one_step(folder: Path, **options: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """The gradient of the one step that there is, and the run."""
    model = same_pool()
    found: dict[str, torch.Tensor] = {}

    class Recorder(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            found.update({name: p.grad.clone() for name, p in model.named_parameters()})

    run = surefit.train(
        data=ROWS,
        eval_data=feature_rows(13, seed=1),
        model=model,
        task="feature-classification",
        output=str(folder),
        optimizer=lambda parameters: Recorder(parameters, lr=1.0),
        epochs=1,
        clip=0,
        **options,
    )
    return found, run


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, gradient in wanted.items():
        assert float((found[name] - gradient).norm() / gradient.norm()) < 1e-5, name


def reference(
    rows: list[dict[str, Any]],
    weights: tuple[float, ...] = (0.25, 3.0, 1.0),
    smoothing: float = 0.2,
) -> tuple[dict[str, torch.Tensor], float]:
    """The gradient and the loss of torch's cross-entropy over all rows at once."""
    model = same_pool()
    logits = torch.cat(
        [
            model(torch.tensor(row["features"])[None], torch.ones(1, len(row["features"])))
            for row in rows
        ]
    )
    labels = torch.tensor([row["label"] for row in rows])
    weight = torch.tensor(weights)
    loss = cross_entropy(logits, labels, weight=weight, label_smoothing=smoothing)
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}, float(loss.detach())


OWN_WEIGHTS = (1.0, 5.0, 0.5)


def weighted(outputs: Any, batch: Any) -> tuple[Any, Any]:
    """As torch's `cross_entropy(weight=…)` divides its mean."""
    weight = torch.tensor(OWN_WEIGHTS)[batch["labels"]]
    losses = torch.nn.functional.cross_entropy(outputs, batch["labels"], reduction="none")
    return (weight * losses).sum(), weight.sum()


@pytest.mark.parametrize(("batch_size", "grad_accum"), [(8, 1), (2, 4)])
def test_accumulated_gradient_is_that_of_one_batch(
    tmp_path: Path, batch_size: int, grad_accum: int
) -> None:
    sizes = {"batch_size": batch_size, "grad_accum": grad_accum}
    found, run = one_step(tmp_path / "run", loss=LOSS, **sizes)
    wanted, loss = reference(ROWS)
    assert_same(found, wanted)
    assert run.history[0]["loss"] == pytest.approx(loss, rel=1e-5)
    evaluated = reference(feature_rows(13, seed=1))[1]
    assert run.metrics["loss"] == pytest.approx(evaluated, rel=1e-5)
    again = surefit.evaluate(run.path, feature_rows(13, seed=1), model=MeanPool())
    assert again["loss"] == pytest.approx(evaluated, rel=1e-5)
    assert run.plan["loss"] == {
        "class_weights": {"0": 0.25, "1": 3.0, "2": 1.0},
        "label_smoothing": 0.2,
    }
    page = (run.path / "report.html").read_text("utf-8")
    assert "<td>loss.class_weights.1</td><td>3</td>" in page
    own, run = one_step(tmp_path / "own", loss_fn=weighted, **sizes)
    wanted, loss = reference(ROWS, OWN_WEIGHTS, 0.0)
    assert_same(own, wanted)
    assert run.history[0]["loss"] == pytest.approx(loss, rel=1e-5)


def test_balanced_classes_count_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in sentiment_rows(120) if row["label"] == "good"][:40]
    rows += [row for row in sentiment_rows(120) if row["label"] == "bad"][:10]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    command = ["check", "--data", str(data), "--model", "tiny:bert", "--eval-data", str(data)]
    command += ["--set", "loss.class_weights=balanced"]
    assert run_cli(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "class weights bad 2.5, good 0.625" in said  # 50 / (2 × 10), 50 / (2 × 40)


def test_words_are_weighted_too() -> None:
    rows = [
        {"tokens": ["Ann", "sees", "Bob"][:n], "tags": ["B-PER", "O", "B-PER"][:n]}
        for n in (1, 2, 3) * 6
    ]
    plan = surefit.check(data=rows, model="tiny:bert", loss={"class_weights": {"B-PER": 5}})
    assert plan.ok, plan.findings
    store = plan.job.train
    tags = [int((store.value("labels", row) == place).sum()) for row in (0, 1) for place in (0, 1)]
    divisor = plan.job.pipeline.divisor(store, np.array([0, 1]))
    assert divisor == tags[0] + tags[2] + 5 * (tags[1] + tags[3])


class OwnLoss(torch.nn.Module):
    """Returns a loss and no logits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MeanPool()

    def forward(self, inputs_embeds: Any, attention_mask: Any, labels: Any = None) -> Any:
        return {"loss": cross_entropy(self.inner(inputs_embeds, attention_mask), labels)}


FEATURES = {"data": feature_rows(20), "model": MeanPool()}
NUMBERS = {"data": [{"x": n, "label": n / 7} for n in range(20)], "model": "tiny:mlp"}
TEXTS = {"data": sentiment_rows(30), "model": "tiny:bert"}
SMOOTHS = {"label_smoothing": 0.1}


@pytest.mark.parametrize(
    ("options", "loss", "said"),
    [
        ({**NUMBERS, "task": "regression"}, SMOOTHS, "the loss of regression is another one"),
        ({**FEATURES, "loss_fn": weighted}, SMOOTHS, "has no effect with a loss_fn"),
        ({**FEATURES, "model": OwnLoss()}, SMOOTHS, "the model computes its own loss"),
        (
            TEXTS,
            {"class_weights": {"goood": 2}},
            "'goood', which is no class of the data. Did you mean 'good'?",
        ),
        (TEXTS, {"class_weights": {"good": 0}}, "loss.class_weights"),
        (TEXTS, {"class_weights": {"good": "much"}}, "loss.class_weights"),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused(
    options: dict[str, Any], loss: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        surefit.check(**options, loss=loss)
    assert said in str(caught.value)


def test_several_classes_per_row_are_weighted_as_torch_does() -> None:
    rows = [
        {
            "vector": [float(n % 5), 1.0],
            "label": ["a", "b"] if n % 5 == 0 else ["a"] if n % 2 else [],
        }
        for n in range(40)
    ]
    options = {"class_weights": "balanced", "label_smoothing": 0.2}
    plan = surefit.check(data=rows, model=torch.nn.Linear(2, 2), loss=options)
    pipeline, train = plan.job.pipeline, plan.job.train
    labels = train.values("labels").reshape(-1, 2)
    balance = (1 - labels).sum(0) / labels.sum(0)
    kept = pipeline.encoder.settings.loss.class_weights
    assert kept == pytest.approx(tuple(balance))
    batch = pipeline.batch(train, [0, 1, 2, 3, 4])
    outputs = pipeline.outputs(batch)
    total, count = pipeline.loss(outputs, batch)
    assert count == 5 == pipeline.divisor(train, [0, 1, 2, 3, 4])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        outputs.logits, batch["labels"] * 0.8 + 0.1, pos_weight=torch.tensor(balance)
    )
    torch.testing.assert_close(total / count, expected)


@pytest.mark.parametrize("count", [0, -3.0, float("nan")])
def test_a_count_that_nothing_can_be_divided_by_is_refused(count: float) -> None:
    def bad(outputs: Any, batch: Any) -> tuple[Any, float]:
        return weighted(outputs, batch)[0], count

    plan = surefit.check(data=feature_rows(30), model=MeanPool(), loss_fn=bad)
    errors = [found for found in plan.findings if found.severity == "error"]
    assert [found.code for found in errors] == ["SF312"]
    assert "Return a count above 0" in errors[0].fix
