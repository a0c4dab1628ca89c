"""Targets reach a model through its loss alone; metrics come from the call without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot, pad

import surefit
from chats import latin_tokenizer
from surefit.checks.probes.targets import TargetPasses, check_targets
from surefit.models.call import Call, TargetUse
from surefit.pipeline.evaluation import EvaluationSettings

X = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
ROWS, STEPS = torch.tensor([0, 1, 1]), torch.tensor([[0, 1, 1, -100]] * 3)


class Net(nn.Module):
    """Scores of rows or of steps, which `leak` may change by the labels."""

    def __init__(self, leak: Any, steps: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.dropout = nn.Linear(6, 2), nn.Dropout(0.5)
        self.leak, self.steps = leak, steps

    def forward(self, x: Any, labels: Any = None) -> Any:
        scores = self.head(self.dropout(x if self.steps else x.mean(1)))
        return scores if labels is None else self.leak(self, scores, labels)


def found(module: nn.Module, labels: Any, other: Any, **more: Any) -> list[str]:
    call = Call(
        {"x": "x", "labels": "labels"}, targets=TargetUse(required=more.pop("needs", False))
    )
    batch = {"x": X, "labels": labels}
    other = {**batch, "labels": other}
    passes = TargetPasses(module, call, batch, other, {"labels": "labels"}, **more)
    with torch.no_grad():
        return [each.code for each in check_targets(passes)]


LEAKS = {
    "added": lambda self, scores, labels: scores + one_hot(labels, 2),
    "in training": lambda self, scores, labels: scores + labels[:, None] * self.training,
    "in evaluation only": lambda self, scores, labels: (
        scores + labels[:, None] * (not self.training)
    ),
    "as a gate": lambda self, scores, labels: scores * (labels[:, None] + 1),
    "through the batch": lambda self, scores, labels: scores + labels.float().mean() * 3,
    "another path": lambda self, scores, labels: scores.flip(1),
}
HEALTHY = {
    "unread": lambda self, scores, labels: scores,
    "a loss": lambda self, scores, labels: (cross_entropy(scores, labels), scores),
    "a loss alone": lambda self, scores, labels: cross_entropy(scores, labels),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_target_that_changes_outputs_is_found(name: str) -> None:
    assert found(Net(LEAKS[name]), ROWS, 1 - ROWS + (ROWS == 1)) == ["SF751"]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_target_for_the_loss_is_no_finding(name: str) -> None:
    assert found(Net(HEALTHY[name]), ROWS, 1 - ROWS) == []


def test_a_mask_made_of_labels_is_found() -> None:
    masked = Net(lambda self, scores, labels: scores * (labels != -100)[..., None], steps=True)
    assert found(masked, STEPS, STEPS.where(STEPS < 0, 1 - STEPS)) == ["SF751"]


def test_earlier_labels_are_inputs_of_a_decoder() -> None:
    other = STEPS.clone()
    other[:, 2] = 0

    def moved(self: Any, scores: Any, labels: Any) -> Any:
        return scores + pad(labels, (1, 0))[:, :-1, None]

    copied = Net(lambda self, scores, labels: scores + labels[..., None], steps=True)
    assert found(Net(moved, steps=True), STEPS, other, steps=2) == []
    assert found(copied, STEPS, other, steps=2) == ["SF751"]


Y = np.arange(40) % 2
DATA = {"features": np.random.default_rng(0).normal(size=(40, 5, 4)).astype(np.float32), "label": Y}


class Labelled(nn.Module):
    """Is called with labels in training; `kind` decides what it does with them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.head = kind, nn.Linear(4, 2)

    def forward(self, inputs_embeds: Any, labels: Any = None) -> Any:
        logits = self.head(inputs_embeds.mean(1))
        if self.kind == "fails":
            return cross_entropy(logits, labels), logits
        if labels is None:
            return logits if self.kind == "own loss" else {"embedding": inputs_embeds.mean(1)}
        return cross_entropy(logits, labels)


@pytest.mark.parametrize(
    ("kind", "use"),
    [
        ("own loss", TargetUse(own_loss=True)),
        ("embedding", TargetUse(own_loss=True, scored=False)),
        ("fails", TargetUse(required=True)),
    ],
)
def test_metrics_come_from_calls_without_labels(kind: str, use: TargetUse, tmp_path: Path) -> None:
    run = surefit.train(
        data=DATA, model=Labelled(kind), max_steps=1, eval_share=0.5, output=str(tmp_path / "run")
    )
    assert run.plan["choices"]["targets"] == {
        "columns": ["labels"],
        "required": use.required,
        "own_loss": use.own_loss,
        "scored": use.scored,
    }
    assert ("accuracy" in run.metrics) == use.scored
    assert ("SF317" in [each["code"] for each in run.plan["findings"]]) == use.required
    if use.required:
        with pytest.raises(surefit.FindingError, match="requires labels"):
            surefit.predict(run, DATA, model=Labelled(kind))


class Peptides(nn.Module):
    """Reads the number that its own task makes of the target."""

    def __init__(self, column: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.column, self.head = column, nn.Linear(1, 1)

    def forward(self, size: Any, mass: Any = None, heavy: Any = None) -> Any:
        made = self.head(size[:, None])
        read = {"mass": mass, "heavy": heavy}.get(self.column)
        return made if read is None else made + read[:, None]


def own_task(heavy: bool) -> surefit.TaskSpec:
    number = surefit.Field((), "float32")

    def encode(row: Any, _: Any) -> dict[str, float]:
        columns = {"size": float(row["size"])}
        columns |= {"mass": float(row["mass"])} if "mass" in row else {}
        return columns | ({"heavy": float(row.get("mass", 0) > 3)} if heavy else {})

    def loss(outputs: Any, batch: Any) -> tuple[Any, int]:
        errors = outputs.logits[:, 0] - batch["mass"]
        return errors.square().sum(), len(errors)

    fields = {"size": number, "mass": number, **({"heavy": number} if heavy else {})}
    return surefit.TaskSpec(
        name="mass",
        fields=fields,
        encode=encode,
        loss=loss,
        needs=(("size", "mass"),),
        targets=("mass",),
        count_targets=lambda columns: 1,
        decode=lambda outputs, batch, encoder: [{"prediction": 0.0} for _ in outputs.logits],
    )


@pytest.mark.parametrize(
    ("column", "codes"), [("size", []), ("mass", ["SF751"]), ("heavy", ["SF751"])]
)
def test_targets_of_an_own_task_are_found_by_what_rows_without_them_lack(
    column: str, codes: list[str]
) -> None:
    rows = [{"size": n, "mass": float(n % 7)} for n in range(40)]
    plan = surefit.check(data=rows, task=own_task(column == "heavy"), model=Peptides(column))
    assert [each.code for each in plan.findings if each.severity == "error"] == codes


def test_what_a_collate_fn_makes_of_labels_is_a_target() -> None:
    def collate(rows: list[Any]) -> dict[str, Any]:
        inputs = {"inputs_embeds": torch.stack([row["inputs_embeds"] for row in rows])}
        if "labels" not in rows[0]:
            return inputs
        labels = torch.stack([row["labels"] for row in rows])
        return {**inputs, "labels": labels, "answer": labels * 2}

    class Reads(Labelled):
        def forward(self, inputs_embeds: Any, answer: Any = None) -> Any:  # type: ignore[override]
            logits = self.head(inputs_embeds.mean(1))
            return (
                logits
                if answer is None
                else logits + answer[:, None] * logits.new_ones(2).cumsum(0)
            )

    plan = surefit.check(data=DATA, model=Reads(""), collate_fn=collate)
    errors = [each for each in plan.findings if each.severity == "error"]
    assert [each.code for each in errors] == ["SF751"]
    assert "'answer'" in errors[0].message


class Forced(nn.Module):
    """Makes the inputs of its decoder from the labels."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.copies, self.embed, self.head = copies, nn.Embedding(600, 8), nn.Linear(8, 600)

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:
        read = self.embed(input_ids) * attention_mask[..., None]
        labels = labels.clamp(min=0)
        earlier = labels if self.copies else pad(labels, (1, 0))[:, :-1]
        return self.head(read.sum(1, keepdim=True) + self.embed(earlier).cumsum(1))


@pytest.mark.parametrize("copies", [False, True])
def test_a_decoder_may_read_earlier_labels(copies: bool, tmp_path: Path) -> None:
    latin_tokenizer().save_pretrained(tmp_path / "tokenizer")
    rows = [{"source": f"the number {n}", "target": f"one two {n} three"} for n in range(30)]
    plan = surefit.check(
        data=rows, model=Forced(copies), task="seq2seq", tokenizer=str(tmp_path / "tokenizer")
    )
    errors = [each.code for each in plan.findings if each.severity == "error"]
    assert errors == (["SF751"] if copies else [])
    if not copies:
        figures = plan.job.pipeline.evaluate(plan.job.validation, EvaluationSettings(2)).metrics
        batch = plan.job.pipeline.batch(plan.job.validation, range(len(plan.job.validation)))
        total, count = plan.job.pipeline.loss(plan.job.pipeline.outputs(batch), batch)
        assert figures["loss"] == pytest.approx(float(total.detach()) / count, rel=1e-5)


class Decoder(Forced):
    """Reads decoder_input_ids up to each position, or from it on."""

    def forward(self, input_ids: Any, decoder_input_ids: Any) -> Any:  # type: ignore[override]
        read = self.embed(decoder_input_ids)
        seen = read.flip(1).cumsum(1).flip(1) if self.copies else read.cumsum(1)
        return self.head(self.embed(input_ids).sum(1, keepdim=True) + seen)


@pytest.mark.parametrize("copies", [False, True])
def test_a_decoder_must_not_read_later_inputs(copies: bool, tmp_path: Path) -> None:
    latin_tokenizer().save_pretrained(tmp_path / "tokenizer")
    rows = [{"source": f"the number {n}", "target": f"one two {n} three"} for n in range(30)]
    plan = surefit.check(
        data=rows, model=Decoder(copies), task="seq2seq", tokenizer=str(tmp_path / "tokenizer")
    )
    errors = [each for each in plan.findings if each.severity == "error"]
    assert [each.code for each in errors] == (["SF751"] if copies else [])
    assert all("causal attention" in str(each.fix) for each in errors)


def test_a_leak_in_few_rows_is_found() -> None:
    class Seldom(Labelled):
        def forward(self, inputs_embeds: Any, labels: Any = None) -> Any:
            scores = self.head(inputs_embeds.mean(1))
            seen = inputs_embeds[:, 0, :1] > np.quantile(DATA["features"][1:-1, 0, 0], 0.9)
            return scores if labels is None else scores + one_hot(labels, 2) * seen

    plan = surefit.check(data=DATA, model=Seldom(""))
    assert [each.code for each in plan.findings if each.severity == "error"] == ["SF751"]


def test_forward_gets_the_labels_of_pixels_as_int64(tmp_path: Path) -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(3, 2, 1)

        def forward(self, pixel_values: Any, labels: Any = None) -> Any:
            scores = self.head(pixel_values)
            return scores if labels is None else (cross_entropy(scores, labels), scores)

    draw = np.random.default_rng(0)
    rows = [
        {"image": draw.integers(0, 255, (8, 8, 3), np.uint8), "label": draw.integers(0, 2, (8, 8))}
        for _ in range(12)
    ]
    task, output = "image-segmentation", str(tmp_path / "run")
    run = surefit.train(data=rows, model=Pixels(), task=task, max_steps=1, output=output)
    assert "iou" in run.metrics
