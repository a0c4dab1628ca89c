"""Metrics that a run asks for: built in by name, or the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

import surefit
from builders import MeanPool, feature_rows, same_pool, sentiment_rows, write_jsonl
from surefit.cli import run as run_cli
from surefit.errors import FindingError, UsageError
from surefit.targets.metrics.own_metric import make_own_metric

ROWS = feature_rows(120)


def brier(predictions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Squared distance from the true class; a lower one is better."""
    hot = torch.nn.functional.one_hot(labels, predictions.shape[-1])
    return (predictions - hot).square().sum(-1).mean()


class Hits:
    """Counts in the manner of torchmetrics."""

    higher_is_better = True

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.right, self.rows, self.updates = 0, 0, 0

    def update(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        self.right += int((predictions.argmax(-1) == labels).sum())
        self.rows += len(labels)
        self.updates += 1

    def compute(self) -> torch.Tensor:
        return torch.tensor(self.right / self.rows)


def train(folder: Path, **options: Any) -> Any:
    settings: dict[str, Any] = {"data": ROWS, "eval_data": feature_rows(50, seed=1)}
    settings |= {"task": "feature-classification", "epochs": 2, "lr": 0.01}
    return surefit.train(model=same_pool(), output=str(folder), **{**settings, **options})


def test_functions_objects_and_names_from_python(tmp_path: Path) -> None:
    chosen = {"brier": {"function": brier, "better": "lower"}, "hits": Hits(), "roc_auc": None}
    watched = {"metrics": {"hits": Hits()}, "early_stopping": {"metric": "hits"}}
    assert surefit.check(data=ROWS, model=MeanPool(), **watched).ok  # the object has a direction
    run = train(tmp_path / "run", metrics=chosen, early_stopping={"metric": "brier"})
    rows = feature_rows(50, seed=1)
    made = surefit.predict(
        run, [{"features": row["features"]} for row in rows], probabilities="all"
    )
    chances = torch.tensor([[row["probabilities"][str(c)] for c in range(3)] for row in made])
    labels = torch.tensor([row["label"] for row in rows])
    found = run.metrics
    assert found["brier"] == pytest.approx(float(brier(chances, labels)), abs=1e-6)
    assert found["hits"] == pytest.approx(found["accuracy"])
    wanted = roc_auc_score(labels, chances.double(), multi_class="ovr")
    assert abs(found["roc_auc"] - wanted) <= found["roc_auc_bin_error"] + 1e-6
    evals = [event for event in run.history if event["event"] == "eval"]
    best = min(evals, key=lambda event: event["metrics"]["brier"])
    assert run.best_step == best["step"]
    assert run.plan["metrics"]["brier"] == {
        "function": None,
        "better": "lower",
        "keeps_predictions": True,
    }
    assert not run.plan["metrics"]["hits"]["keeps_predictions"]
    assert run.plan["memory"]["parts"]["metrics"] > 50 * 3 * 4
    codes = [found["code"] for found in run.plan["findings"]]
    assert codes.count("SF297") == 1


def test_several_processes_bring_their_predictions_together() -> None:
    metric = make_own_metric("hits", Hits())
    collected = metric.start(num_processes=2)
    collected.add(torch.eye(3), torch.tensor([0, 1, 1]))
    assert metric.measure.updates == 0
    other = [(torch.eye(3), torch.tensor([0, 1, 2]))]
    assert collected.figure(lambda kept: [*kept, *other]) == pytest.approx(5 / 6)


def test_several_numbers_are_reported_by_name(tmp_path: Path) -> None:
    def by_class(predictions: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        right = (predictions.argmax(-1) == labels).float()
        each = torch.stack([right[labels == number].mean() for number in (0, 1)])
        return {"all": right.mean(), "each": each}

    share = {"share": {"function": by_class, "better": "higher"}}
    run = train(tmp_path / "run", metrics=share)
    assert run.metrics["share"]["all"] == pytest.approx(run.metrics["accuracy"])
    assert len(run.metrics["share"]["each"]) == 2
    with pytest.raises(FindingError, match="which gives several numbers"):
        train(tmp_path / "watched", metrics=share, early_stopping={"metric": "share"})


@pytest.mark.slow
def test_objects_of_torchmetrics(tmp_path: Path) -> None:
    import torchmetrics
    from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

    chosen = {
        "hit_rate": torchmetrics.Accuracy(task="multiclass", num_classes=3, average="micro"),
        "f1": MulticlassF1Score(3),
        "auc": MulticlassAUROC(3),
    }
    run = train(tmp_path / "run", metrics=chosen, early_stopping={"metric": "auc"})
    found, rows = run.metrics, feature_rows(50, seed=1)
    made = surefit.predict(run, rows, probabilities="all")
    chances = [[row["probabilities"][str(c)] for c in range(3)] for row in made]
    labels = [row["label"] for row in rows]
    assert found["hit_rate"] == pytest.approx(found["accuracy"], abs=1e-6)
    assert found["f1"] == pytest.approx(found["macro_f1"], abs=1e-6)
    wanted = roc_auc_score(labels, chances, multi_class="ovr")
    assert found["auc"] == pytest.approx(wanted, abs=1e-5)
    kept = {name: about["keeps_predictions"] for name, about in run.plan["metrics"].items()}
    assert kept == {"hit_rate": False, "f1": False, "auc": True}  # AUROC has a list of all
    (warned,) = [each for each in run.plan["findings"] if each["code"] == "SF297"]
    assert "'auc' of metrics keeps the predictions for all 50" in warned["message"]
    assert run.plan["memory"]["parts"]["metrics"] >= 50 * 3 * 4
    assert "<td>metrics.auc.keeps_predictions</td><td>True</td>" in run.report_path.read_text()


@pytest.mark.slow
def test_named_in_a_config_and_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = sentiment_rows(80)
    write_jsonl(tmp_path / "rows.jsonl", rows)
    (tmp_path / "my_cost.py").write_text(
        "def cost(predictions, labels):\n"
        "    return float(1 - predictions[range(len(labels)), labels].mean())\n"
    )
    (tmp_path / "run.yaml").write_text(
        "data: [rows.jsonl]\nmodel: tiny:bert\noutput: run\nmax_steps: 2\n"
        "metrics: {cost: {function: 'my_cost:cost', better: lower}, log_loss: }\n"
        "early_stopping: {metric: cost}\n"
    )
    assert run_cli(["train", "run.yaml"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "cost (my_cost:cost, lower is better, keeps all predictions), log_loss" in said
    assert "my_cost:cost is run. [file" in said
    assert run_cli(["evaluate", "run", "--json", "--data", "rows.jsonl"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]
    assert run_cli(["predict", "run", "--data", "rows.jsonl", "--probabilities", "all"]) == 0
    made = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    chances = [[one["probabilities"][name] for name in ("bad", "good")] for one in made]
    labels = [row["label"] for row in rows]
    own = [
        chance[("bad", "good").index(name)] for chance, name in zip(chances, labels, strict=True)
    ]
    assert found["cost"] == pytest.approx(1 - sum(own) / len(own), abs=1e-6)
    assert found["log_loss"] == pytest.approx(log_loss(labels, chances), abs=1e-6)
    assert [one["probability"] for one in made] == [max(chance) for chance in chances]
    (tmp_path / "my_cost.py").write_text("def cost(predictions, labels):\n    return 0.0\n")
    assert run_cli(["evaluate", "run", "--data", "rows.jsonl"]) == 2  # a changed file is not run
    assert "changed since the run began" in capsys.readouterr().err


NUMBERS = [{"x": n, "label": n / 7} for n in range(40)]
TEXTS = [{"prompt": f"say {n}", "completion": str(n)} for n in range(20)]
REGRESSION = {"data": NUMBERS, "model": "tiny:mlp", "task": "regression"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"metrics": ["roc_acu"]}, "no metric 'roc_acu'. Did you mean 'roc_auc'?"),
        ({"metrics": {"accuracy": brier}}, "has a metric of this name"),
        ({"metrics": {"five": 5}}, "is a int, which is not a metric"),
        ({"metrics": {"cost": "brier"}}, "metrics.cost.function"),
        ({**REGRESSION, "metrics": ["roc_auc"]}, "regression predicts no classes"),
        ({"data": TEXTS, "model": "tiny:llama", "metrics": {"brier": brier}}, "generate.scorer"),
        # A direction is never assumed.
        (
            {"metrics": {"brier": brier}, "early_stopping": {"metric": "brier"}},
            "--set metrics.brier.better=higher",
        ),
        (
            {"metrics": {"hits": {"function": Hits(), "better": "lower"}}},
            "its higher_is_better says higher",
        ),
        ({"early_stopping": {"metric": "roc_auc"}}, "--set metrics=roc_auc"),
    ],
)
def test_wrong_metrics_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        surefit.check(**{"data": ROWS, "model": MeanPool(), **options})
    assert said in f"{caught.value} {caught.value.fix}"


def test_numbers_are_in_the_units_of_the_data(tmp_path: Path) -> None:
    numbers = [{"x": float(n % 13), "label": 100.0 + n % 13 + n / 50} for n in range(60)]
    seen: list[Any] = []

    def largest(predictions: Any, labels: Any) -> float:
        seen.append(labels)
        return float((predictions - labels).abs().max())

    options = {"data": numbers, "task": "regression", "metrics": {"largest": largest}}
    run = surefit.train(model="tiny:mlp", max_steps=1, output=str(tmp_path / "run"), **options)
    assert float(seen[0].min()) >= 99.9
    with pytest.raises(UsageError, match="predicts no classes"):
        surefit.predict(run, numbers, probabilities="all")


@pytest.mark.parametrize(
    "metric",
    [lambda predictions, labels: 1 / 0, lambda predictions, labels: ["a", "b"]],
    ids=["raises", "gives a list"],
)
def test_a_metric_that_fails_is_found_before_training(metric: Any) -> None:
    plan = surefit.check(data=ROWS, model=MeanPool(), metrics={"mine": metric})
    assert [found.code for found in plan.findings if found.severity == "error"] == ["SF296"]
    with pytest.raises(FindingError):
        surefit.train(data=ROWS, model=MeanPool(), metrics={"mine": metric})


def test_a_binary_metric_gets_the_second_class() -> None:
    from torchmetrics.classification import BinaryAUROC

    scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    labels = torch.tensor([0, 1, 1, 0])
    collected = make_own_metric("auc", BinaryAUROC()).start()
    collected.add(scores[:2], labels[:2])
    collected.add(scores[2:], labels[2:])
    assert collected.figure() == 0.75  # 3 of 4 pairs are in order

    def whole(predictions: torch.Tensor, labels: torch.Tensor) -> float:
        return float(predictions.shape[1])

    collected = make_own_metric("width", whole).start()
    collected.add(scores, labels)
    assert collected.figure() == 2
