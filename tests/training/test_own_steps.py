"""A training_step of one's own: the steps of a plain loop, resumed to the bit, refused with why."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

import surefit
from surefit.errors import FindingError, InterruptedRunError, UsageError
from surefit.models.learning_rate import Schedule
from surefit.models.optimizer import OptimizerSettings
from surefit.request import PythonObjects
from surefit.run.run_folder import open_run
from surefit.training.loop import seed_step
from surefit.training.replay import verify_step

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 3)).astype("float32")
Step = Iterator[tuple[str, torch.Tensor]]
Batch = Mapping[str, torch.Tensor]


def gan() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "g": nn.Sequential(
            nn.Linear(2, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
        ),
        "d": nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1)),
    }


def adversarial(modules: Mapping[str, Any], batch: Batch, step: int) -> Step:
    real = batch["x"]
    one, zero = torch.ones(len(real), 1), torch.zeros(len(real), 1)
    made = modules["g"](torch.randn(len(real), 2))
    judged = modules["d"](made.detach())
    yield "d", cross_entropy(modules["d"](real), one) + cross_entropy(judged, zero)
    yield "g", cross_entropy(modules["d"](made), one)


class Encoder(nn.Module):
    """SimCLR: one network, two noisy views of each row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.body(x), dim=1)


def contrast(modules: Mapping[str, Any], batch: Batch, step: int) -> Step:
    views = [modules["model"](batch["x"] + 0.1 * torch.randn_like(batch["x"])) for _ in range(2)]
    scores = views[0] @ views[1].T / 0.5
    yield "model", nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def pair() -> dict[str, nn.Module]:
    """A student, and a teacher that is its moving average."""
    torch.manual_seed(2)
    student, teacher = nn.Linear(3, 4), nn.Linear(3, 4)
    teacher.load_state_dict(student.state_dict())
    return {"student": student, "teacher": teacher.requires_grad_(False)}


def follow(modules: Mapping[str, Any], batch: Batch, step: int) -> Step:
    noisy = batch["x"] + torch.randn_like(batch["x"])
    yield "student", (modules["student"](noisy) - modules["teacher"](batch["x"])).square().mean()
    with torch.no_grad():
        for mean, new in zip(
            modules["teacher"].parameters(), modules["student"].parameters(), strict=True
        ):
            mean.lerp_(new, 0.1)


CASES: dict[str, tuple[Any, Any, Any]] = {
    "a GAN": (
        gan,
        adversarial,
        {
            "g": {"optimizer": "adamw", "lr": 0.02, "schedule": "linear", "clip": 0.1},
            "d": {"optimizer": lambda w: torch.optim.SGD(w, lr=0.1), "warmup": 0.5},
        },
    ),
    "contrastive pairs": (Encoder, contrast, lambda weights: torch.optim.SGD(weights, lr=0.5)),
    "a teacher": (pair, follow, None),
}
SETTINGS = {
    "lr": 0.01,
    "batch_size": 8,
    "epochs": 2,
    "schedule": "constant",
    "warmup": 0,
    "weight_decay": 0,
}


def train(name: str, output: Path, **options: Any) -> Any:
    make, step, optimizer = CASES[name]
    given = {"data": {"x": X}, "eval_data": {"x": X[:10]}, "model": make(), "training_step": step}
    given |= {"optimizer": optimizer} if optimizer is not None else {}
    return surefit.train(**{**given, "output": output, **SETTINGS, **options})


def plain_loop(name: str, batches: list[Batch]) -> tuple[dict[str, Any], list[float]]:
    """Train as people write it by hand."""
    make, step, _ = CASES[name]
    made = make()
    modules = made if isinstance(made, dict) else {"model": made}
    if name == "a GAN":
        decay = OptimizerSettings(0.02, 0.0).make(modules["g"])
        optimizers = {"g": decay, "d": torch.optim.SGD(modules["d"].parameters(), lr=0.1)}
        factors = {"g": (0.0, "linear"), "d": (0.5, "constant")}
    else:
        [kind] = [n for n, m in modules.items() if any(p.requires_grad for p in m.parameters())]
        weights = [*modules[kind].parameters()]
        usual = OptimizerSettings(0.01, 0.0).make(modules[kind])
        is_usual = CASES[name][2] is None
        optimizers = {kind: usual if is_usual else torch.optim.SGD(weights, lr=0.5)}
        factors = {kind: (0.0, "constant")}
    losses = []
    for number, batch in enumerate(batches, start=1):
        seed_step(0, number, 0)
        total = 0.0
        for each, loss in step(modules, batch, number):
            weights = [p for group in optimizers[each].param_groups for p in group["params"]]
            gradients = torch.autograd.grad(loss, weights, retain_graph=True)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient
            torch.nn.utils.clip_grad_norm_(weights, 0.1 if each == "g" else 1.0)
            warmup, shape = factors[each]
            for group in optimizers[each].param_groups:
                base = group.setdefault("initial_lr", group["lr"])
                group["lr"] = base * Schedule(shape, warmup).factor(number, len(batches))
            optimizers[each].step()
            total += float(loss.detach())
        losses.append(total)
    return modules, losses


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_a_plain_loop_and_are_resumed_to_the_bit(
    name: str, tmp_path: Path
) -> None:
    _, step, _ = CASES[name]
    last, batches = dict[str, Any](), list[Batch]()

    def noted(modules: Any, batch: Batch, number: int) -> Step:
        if torch.is_grad_enabled() and all(module.training for module in modules.values()):
            last.update(batch)
        return step(modules, batch, number)

    noting = lambda event: event["event"] == "step" and batches.append({**last})  # noqa: E731
    run = train(name, tmp_path / "a", training_step=noted, callbacks=[noting])
    modules, losses = plain_loop(name, batches)
    steps = [event for event in run.history if event["event"] == "step"]
    assert [event["loss"] for event in steps] == pytest.approx(losses, rel=1e-4)
    for module, mine in modules.items():
        for key, value in run.model[module].state_dict().items():
            torch.testing.assert_close(value, mine.state_dict()[key], rtol=1e-3, atol=1e-5)
    assert run.metrics.keys() - {"loss"} == {f"loss_{each}" for each in run_parts(name)}
    assert steps[0].keys() >= {f"loss_{each}" for each in run_parts(name)}

    def stopping(event: Mapping[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(InterruptedRunError):
        train(name, tmp_path / "b", callbacks=[stopping])
    make, step, optimizer = CASES[name]
    again = {"model": make(), "training_step": step, "optimizer": optimizer, "callbacks": ()}
    again |= {"data": {"x": X}, "eval_data": {"x": X[:10]}}
    resumed = surefit.train(
        resume=tmp_path / "b", **{k: v for k, v in again.items() if v is not None}
    )
    without = lambda events: [{**e, "seconds": 0} for e in events]  # noqa: E731
    assert without(resumed.history) == without(run.history)
    for key, value in run.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key])


def run_parts(name: str) -> tuple[str, ...]:
    return {"a GAN": ("g", "d"), "contrastive pairs": ("model",)}.get(name, ("student",))


def test_state_outside_of_the_modules_is_shown_by_verify(tmp_path: Path) -> None:
    kept = {"scale": 1.0}

    def step(modules: Mapping[str, Any], batch: Batch, number: int) -> Step:
        kept["scale"] *= 1.5
        yield "model", kept["scale"] * modules["model"](batch["x"]).square().mean()

    options = {"data": {"x": X}, "model": nn.Linear(3, 1), "training_step": step}
    surefit.train(**options, max_steps=4, output=tmp_path / "run")
    objects = {**options, "model": nn.Linear(3, 1)}
    [found] = verify_step(open_run(tmp_path / "run"), 3, PythonObjects(**objects))
    assert found.code == "SF806"


def test_modules_reach_predict_fn_and_loss_fn(tmp_path: Path) -> None:
    def made(modules: Mapping[str, Any], batch: Batch) -> torch.Tensor:
        return modules["model"](batch["x"])

    def spread(modules: Mapping[str, Any], batch: Batch) -> torch.Tensor:
        return modules["model"](batch["x"]).std(0).sum()

    run = train("contrastive pairs", tmp_path / "run", predict_fn=made, loss_fn=spread)
    with torch.no_grad():
        expected = run.model["model"].eval()(torch.from_numpy(X[:10]))
    predicted = [row["prediction"] for row in surefit.predict(run, {"x": X[:10]})]
    np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-6)
    assert surefit.evaluate(run, {"x": X[:8]})["loss"] == pytest.approx(
        float(expected[:8].std(0).sum()), rel=1e-4
    )


def returns_a_loss(modules: Any, batch: Batch, step: int) -> Any:
    return modules["g"](batch["x"][:, :2]).mean()


def names_another(modules: Any, batch: Batch, step: int) -> Step:
    yield "h", modules["g"](batch["x"][:, :2]).mean()


def computes_too_early(modules: Any, batch: Batch, step: int) -> Step:
    made = modules["g"](batch["x"][:, :2])
    loss = modules["d"](made).mean()
    yield "d", modules["d"](made.detach()).mean()
    yield "g", loss


def shares_a_graph(modules: Any, batch: Batch, step: int) -> Step:
    made = modules["g"](batch["x"][:, :2])
    yield "g", made.square().mean()
    yield "d", modules["d"](made).square().mean()


FAULTY: dict[str, tuple[dict[str, Any], str]] = {
    "no generator": ({"training_step": returns_a_loss}, "returned a Tensor"),
    "another name": ({"training_step": names_another}, "for 'h'; the optimizers are g, d"),
    "a loss of before": ({"training_step": computes_too_early}, "Compute each loss after"),
    "grad_accum": ({"grad_accum": 2}, "cannot be combined with grad_accum=2"),
    "bf16": ({"precision": "bf16"}, "cannot be combined with precision=bf16"),
    "an unknown module": ({"optimizer": {"x": "sgd"}}, "trains the module 'x'; there are g, d"),
    "one without": ({"optimizer": {"g": "sgd"}}, "The module 'd' has trainable weights"),
    "an unknown key": ({"optimizer": {"g": {"rate": 1}, "d": "sgd"}}, "unknown key 'rate'"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_what_cannot_be_trained_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    options, words = FAULTY[name]
    given = {"data": {"x": X}, "model": gan(), "training_step": adversarial, **options}
    with pytest.raises((UsageError, FindingError)) as raised:
        surefit.train(**given, output=tmp_path / "run")
    assert words in str(raised.value)


def test_weights_that_a_yielded_loss_does_not_reach_are_a_warning() -> None:
    def step(modules: Mapping[str, Any], batch: Batch, number: int) -> Step:
        yield "model", modules["model"][0](batch["x"]).square().mean()

    unused = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    plan = surefit.check(data={"x": X}, model=unused, training_step=step)
    [found] = [each for each in plan.findings if each.severity == "warning"]
    assert found.code == "SF329"
    assert "2 weights get no gradient: model.1.weight, model.1.bias" in found.message


def test_a_frozen_module_passed_in_evaluation_mode_stays_in_it(tmp_path: Path) -> None:
    def step(modules: Any, batch: Any, number: int) -> Any:
        modules["average"](batch["x"])
        wanted = modules["teacher"](batch["x"])
        yield "student", (modules["student"](batch["x"]) - wanted).square().mean()

    def normed() -> Any:
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).requires_grad_(False)

    modules = {"teacher": normed().eval(), "average": normed(), "student": nn.Linear(4, 3)}
    data = {"x": np.random.default_rng(0).normal(size=(40, 4)).astype("float32")}
    run = surefit.train(
        data=data,
        model=modules,
        training_step=step,
        epochs=2,
        output=str(tmp_path / "run"),
        quiet=True,
    )
    steps = sum(event["event"] == "step" for event in run.history)
    seen = {n: int(run.model[n][1].num_batches_tracked) for n in ("teacher", "average")}
    assert seen == {"teacher": 0, "average": steps}
