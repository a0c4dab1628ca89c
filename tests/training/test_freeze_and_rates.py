"""What a run trains: `freeze`, `lr_by` and LoRA; resumed exactly."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import surefit
from builders import MeanPool, echo_rows, events_of, feature_rows, same_pool, stop_at
from surefit.config import make_config
from surefit.errors import RunFailedError, UsageError
from surefit.models.optimizer import parameters_by_rate
from surefit.run.choose_checkpoint import latest_checkpoint
from surefit.training.watches import check_trained


def train(folder: Path, model: torch.nn.Module, **options: Any) -> Any:
    settings: dict[str, Any] = {"data": feature_rows(40), "task": "feature-classification"}
    settings |= {"output": str(folder), "schedule": "constant", "warmup": 0, "weight_decay": 0}
    return surefit.train(model=model, **{**settings, **options})


def test_what_is_frozen_stays_and_the_rest_moves(tmp_path: Path) -> None:
    model, before = same_pool(), same_pool().state_dict()
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
    page = (run.path / "report.html").read_text("utf-8")
    assert "<td>model.frozen.patterns</td><td>body, head.bias</td>" in page


def test_the_prediction_of_memory_knows_what_is_frozen() -> None:
    rows = [{"text": f"word {n}", "label": n % 2} for n in range(20)]
    parts = []
    for freeze in ((), ("bert",)):
        plan = surefit.check(data=rows, model="tiny:bert", freeze=freeze)
        trained = sum(p.nbytes for p in plan.job.pipeline.module.parameters() if p.requires_grad)
        parts.append((trained, plan.fit.parts["gradients"], plan.fit.parts["optimizer"]))
    (all_bytes, gradients, optimizer), (left, fewer, less) = parts
    assert left < all_bytes / 10
    assert fewer < gradients / 5
    assert less < optimizer / 5


def test_a_check_freezes_nothing_for_the_run_after_it(tmp_path: Path) -> None:
    model = same_pool()
    options = {"data": feature_rows(40), "task": "feature-classification", "model": model}
    assert surefit.check(freeze="body", **options).ok
    assert not model.body.weight.requires_grad
    assert surefit.check(**options).ok
    assert model.body.weight.requires_grad
    model.body.weight.requires_grad_(False)  # by the user
    assert surefit.check(freeze="head", **options).ok
    assert surefit.check(**options).ok
    assert not model.body.weight.requires_grad


def test_each_parameter_moves_at_its_rate(tmp_path: Path) -> None:
    model, before = same_pool(), same_pool().state_dict()
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
    made: list[torch.optim.Optimizer] = []

    def groups(parameters: Any) -> torch.optim.Optimizer:
        body, head = model.body.parameters(), model.head.parameters()
        made.append(torch.optim.SGD([{"params": body, "lr": 1e-4}, {"params": head}], lr=1e-2))
        return made[-1]

    def look(event: Any) -> None:  # the rehearsal has an optimizer of its own
        seen.extend([group["lr"] for group in each.param_groups] for each in made)

    seen: list[list[float]] = []
    model = same_pool()
    options: dict[str, Any] = {"schedule": "linear", "warmup": 0.5, "max_steps": 4}
    train(tmp_path / "run", model, optimizer=groups, callbacks=[look], **options)
    assert len({rates[0] for rates in seen}) > 1
    assert all(rates[1] / rates[0] == pytest.approx(100) for rates in seen)


def test_resumed_exactly(tmp_path: Path) -> None:
    options = {"lr": 1e-2, "lr_by": {"head": 3e-4}, "freeze": ["body.bias"], "save_every": 1}
    options |= {"schedule": "cosine", "epochs": 2}
    whole = train(tmp_path / "whole", same_pool(0.3), **options)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", same_pool(0.3), callbacks=[stop_at(3)], **options)
    resumed = surefit.train(resume=tmp_path / "cut", data=feature_rows(40), model=same_pool(0.3))
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    again = {"data": feature_rows(40), "model": same_pool(), "lr_by": {"head": 1e-3}}
    with pytest.raises(UsageError, match="--resume contradicts lr_by"):
        surefit.train(resume=tmp_path / "cut", **again)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"freeze": "bodi"}, "'bodi' matches no parameter of MeanPool. Did you mean: body"),
        ({"freeze": "zzzz"}, "Its parameters are: body.weight"),
        ({"lr_by": {"haed": 1e-3}}, "lr_by: 'haed' matches no parameter"),
        ({"freeze": ["body", "head"]}, "leaves no parameter of MeanPool to train"),
        ({"freeze": "body", "lr_by": {"body.*": 1e-3}}, "only parameters that are frozen"),
        ({"lr_by": {"body": 1e-3}, "optimizer": torch.optim.SGD}, "optimizer of your own"),
        ({"freeze": "body", "lora_r": 2}, "freeze has no place beside LoRA"),
        ({"lr_by": {"body": 0}}, "expected rates above 0"),
    ],
)
def test_patterns_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        surefit.check(data=feature_rows(40), model=same_pool(), **options)
    assert said in f"{caught.value.message} {caught.value.fix}"


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


TINY: dict[str, Any] = {
    "data": echo_rows(40),
    "model": "tiny:llama",
    "lora_r": 4,
    "generate": {"rows": 0},
}


def test_exactly_what_is_meant_takes_gradients() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    check_trained(module, {"1.weight", "1.bias"})
    with pytest.raises(RunFailedError, match=r"take no gradient: 0\.bias\."):
        check_trained(module, {"0.bias", "1.weight", "1.bias"})
    with pytest.raises(RunFailedError, match=r"stay frozen take gradients: 1\.bias\."):
        check_trained(module, {"1.weight"})


def test_optimizer_without_the_adapters_is_found_out(tmp_path: Path) -> None:
    """The classic: adapters are there, the loss falls a little, and they are not trained."""

    def only_some(parameters: Any) -> Any:
        return torch.optim.AdamW(list(parameters)[2:], lr=1e-3)

    with pytest.raises(RunFailedError, match=r"2 of 28 .*layers\.0\.self_attn\.q_proj\.lora_A"):
        surefit.train(**TINY, max_steps=4, optimizer=only_some, output=str(tmp_path / "run"))


def test_only_adapters_change_and_checkpoints_are_small(tmp_path: Path) -> None:
    run = surefit.train(**TINY, max_steps=3, output=str(tmp_path / "run"))
    plan = surefit.check(**TINY, max_steps=3)
    begun = dict(plan.job.pipeline.module.named_parameters())
    moved = {
        name for name, p in run.module_object.named_parameters() if not torch.equal(p, begun[name])
    }
    assert moved == plan.model.adaptation.trained
    assert len(moved) == 28
    latest = latest_checkpoint(run.checkpoints)
    assert latest is not None
    weights = latest / "model-00001-of-00001.safetensors"
    assert set(load_file(weights)) == moved
    size = sum(p.numel() for name, p in begun.items() if name in moved)
    assert run.plan["model"]["trainable_parameters"] == size
    assert weights.stat().st_size < 4 * size + 10_000


def test_interrupted_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    options = {**TINY, "epochs": 2, "lora": {"dropout": 0.2}, "save_every": 2}
    whole = surefit.train(**options, output=str(tmp_path / "whole"))
    stop = stop_at(7, signal.SIGINT)
    with pytest.raises(surefit.SurefitError, match="saved"):
        surefit.train(**options, callbacks=[stop], output=str(tmp_path / "cut"))
    with pytest.raises(UsageError, match=r"contradicts lora\.r"):
        surefit.train(resume=tmp_path / "cut", data=TINY["data"], lora_r=8)
    resumed = surefit.train(resume=tmp_path / "cut", data=TINY["data"], lora_r=4)
    both = [load_file(run.path / "model" / "adapter_model.safetensors") for run in (whole, resumed)]
    assert both[0].keys() == both[1].keys()
    assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])
    assert events_of(whole) == events_of(resumed)


def test_another_base_is_refused_on_resume(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": feature_rows(40), "lora_r": 2, "epochs": 2}
    stopped = {**options, "callbacks": [stop_at(3, signal.SIGINT)]}
    with pytest.raises(surefit.SurefitError, match="saved"):
        surefit.train(model=MeanPool(), output=str(tmp_path / "run"), **stopped)
    with pytest.raises(RunFailedError, match="another base"):
        surefit.train(model=MeanPool(), resume=tmp_path / "run", **options)
