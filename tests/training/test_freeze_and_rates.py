"""`freeze` and `lr_by`: parameters by patterns of their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from builders import MeanPool, feature_rows
from surefit.config import make_config
from surefit.errors import InterruptedRunError, UsageError
from surefit.models.parameter_patterns import parameters_by_rate


def make_model(dropout: float = 0.0) -> MeanPool:
    torch.manual_seed(0)
    return MeanPool(dropout=dropout)


def train(folder: Path, model: torch.nn.Module, **options: Any) -> Any:
    settings: dict[str, Any] = {"data": feature_rows(40), "task": "feature-classification"}
    settings |= {"output": str(folder), "schedule": "constant", "warmup": 0, "weight_decay": 0}
    return surefit.train(model=model, **{**settings, **options})


def test_what_is_frozen_stays_and_the_rest_moves(tmp_path: Path) -> None:
    model, before = make_model(), make_model().state_dict()
    run = train(tmp_path / "run", model, freeze=["body", "head.bias"], max_steps=3, lr=0.01)
    after = model.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == {"head.weight"}
    told = run.plan["model"]
    assert told["frozen"] == {
        "patterns": ["body", "head.bias"],
        "parameters": 4 * 16 + 16 + 3,
        "tensors": 3,
        "moving_batch_norms": 0,
    }
    assert told["trainable_parameters"] == 16 * 3
    assert "frozen parameters (body, head.bias)" in (run.path / "report.html").read_text("utf-8")


def test_the_prediction_of_memory_knows_what_is_frozen() -> None:
    rows = [{"text": f"word {n}", "label": n % 2} for n in range(20)]
    parts = []
    for freeze in ((), ("bert",)):
        plan = surefit.check(data=rows, model="tiny:bert", freeze=freeze)
        assert plan.fit is not None
        assert plan.job is not None
        trained = sum(p.nbytes for p in plan.job.pipeline.module.parameters() if p.requires_grad)
        parts.append((trained, plan.fit.parts["gradients"], plan.fit.parts["optimizer"]))
    (all_bytes, gradients, optimizer), (left, fewer, less) = parts
    assert left < all_bytes / 10
    assert fewer < gradients / 5
    assert less < optimizer / 5


def test_a_check_freezes_nothing_for_the_run_after_it(tmp_path: Path) -> None:
    model = make_model()
    options = {"data": feature_rows(40), "task": "feature-classification", "model": model}
    assert surefit.check(freeze="body", **options).ok
    assert not model.body.weight.requires_grad
    assert surefit.check(**options).ok
    assert model.body.weight.requires_grad
    model.body.weight.requires_grad_(False)  # by the user
    assert surefit.check(freeze="head", **options).ok
    assert surefit.check(**options).ok
    assert not model.body.weight.requires_grad


def test_frozen_batch_norms_are_said_to_move() -> None:
    class Normed(MeanPool):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
            normed = self.norm(inputs_embeds.transpose(1, 2)).transpose(1, 2)
            return super().forward(normed, attention_mask)

    plan = surefit.check(data=feature_rows(40), model=Normed(), freeze=["norm"])
    assert plan.as_dict()["model"]["frozen"]["moving_batch_norms"] == 1


def test_each_parameter_moves_at_its_rate(tmp_path: Path) -> None:
    model, before = make_model(), make_model().state_dict()
    rates = {"body": 1e-4, "body.bias": 1e-3}
    run = train(tmp_path / "run", model, lr=1e-2, lr_by=rates, max_steps=1, clip=0)
    # The first step of Adam moves every weight with a gradient by its rate.
    moves = {n: float((w - before[n]).abs().max()) for n, w in model.state_dict().items()}
    wanted = {"body.weight": 1e-4, "body.bias": 1e-3, "head.weight": 1e-2, "head.bias": 1e-2}
    assert moves == pytest.approx(wanted, rel=1e-2)
    assert run.history[0]["lr"] == 1e-2
    assert run.plan["model"]["lr_by"] == {
        "body": {"lr": 1e-4, "parameters": 64},
        "body.bias": {"lr": 1e-3, "parameters": 16},
    }


def test_the_schedule_scales_each_rate(tmp_path: Path) -> None:
    model = make_model()
    seen: list[list[float]] = []

    def look(event: Any) -> None:
        seen.extend([group["lr"] for group in each.param_groups] for each in optimizers)

    optimizers: list[Any] = []
    original = torch.optim.AdamW.__init__

    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        optimizers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "__init__", record)
        options: dict[str, Any] = {"schedule": "linear", "warmup": 0.5, "max_steps": 4}
        train(tmp_path / "run", model, lr=1e-2, lr_by={"body": 1e-4}, callbacks=[look], **options)
    steps = [rates for rates in seen if max(rates) > 0]
    assert len({rates[0] for rates in steps}) > 1
    for rates in steps:
        assert rates[2] / rates[0] == pytest.approx(1e-2)


def test_resumed_exactly(tmp_path: Path) -> None:
    options = {"lr": 1e-2, "lr_by": {"head": 3e-4}, "freeze": ["body.bias"], "save_every": 1}
    options |= {"schedule": "cosine", "epochs": 2}
    whole = train(tmp_path / "whole", make_model(0.3), **options)

    def stop(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 3:
            raise InterruptedRunError("stopped")

    with pytest.raises(InterruptedRunError):
        train(tmp_path / "cut", make_model(0.3), callbacks=[stop], **options)
    resumed = surefit.train(resume=tmp_path / "cut", data=feature_rows(40), model=make_model(0.3))
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    with pytest.raises(UsageError, match="--resume contradicts lr_by"):
        surefit.train(
            resume=tmp_path / "cut",
            data=feature_rows(40),
            model=make_model(),
            lr_by={"head": 1e-3},
        )


def refused(**options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        surefit.check(data=feature_rows(40), **{"model": make_model(), **options})
    return f"{caught.value} {caught.value.fix}"


def test_patterns_that_mean_nothing_are_refused() -> None:
    assert "freeze: 'bodi' matches no parameter of MeanPool. Did you mean: body" in refused(
        freeze="bodi"
    )
    assert "Its parameters are: body.weight" in refused(freeze="zzzz")
    assert "lr_by: 'haed' matches no parameter" in refused(lr_by={"haed": 1e-3})
    assert "leaves no parameter of MeanPool to train" in refused(freeze=["body", "head"])
    assert "only parameters that are frozen" in refused(freeze="body", lr_by={"body.*": 1e-3})
    assert "optimizer of your own" in refused(
        lr_by={"body": 1e-3}, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    )
    assert "freeze has no place beside LoRA" in refused(freeze="body", lora_r=2)
    assert "expected rates above 0" in refused(lr_by={"body": 0})


def test_patterns_with_dots_on_the_command_line() -> None:
    config = make_config({"lr_by.layer.0": "1e-4", "lr_by.head": 1e-3})
    assert config.lr_by == {"layer.0": 1e-4, "head": 1e-3}


def test_tied_weights_are_found_by_either_name() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5)
            self.head.weight = self.embedding.weight

    module = Tied()
    found = parameters_by_rate(module, 0.1, {"head.weight": 0.2})
    assert found[0.2] == [module.embedding.weight]
    assert found[0.1] == [module.head.bias]
