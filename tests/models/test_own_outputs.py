"""What own modules return, and the columns, epoch and step that their forward is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from surefit.models.call import Names, match_arguments
from surefit.models.module_outputs import OutputReader, pick_output

LOGITS, OTHER, LOSS = torch.ones(2, 3), torch.zeros(2, 5), torch.tensor(0.5)


@dataclass
class Scores:
    hidden: torch.Tensor
    scores: torch.Tensor


@dataclass
class Plain:
    first: torch.Tensor
    second: torch.Tensor


RETURNED: dict[str, Any] = {
    "tensor": LOGITS,
    "tuple": (LOGITS, OTHER),
    "loss and logits": (LOSS, LOGITS),
    "dict": {"hidden": OTHER, "logits": LOGITS},
    "dict of scores": {"hidden": OTHER, "scores": LOGITS},
    "dict without a known name": {"kind": LOGITS, "amount": OTHER},
    "dataclass": Scores(OTHER, LOGITS),
    "dataclass without a known name": Plain(LOGITS, OTHER),
}


@pytest.mark.parametrize("name", RETURNED)
def test_scores_are_found_in_what_a_module_returns(name: str) -> None:
    outputs = OutputReader()(RETURNED[name])
    assert outputs.logits is LOGITS
    assert outputs.raw is RETURNED[name]


def test_a_loss_beside_other_tensors_is_the_modules_own() -> None:
    outputs = OutputReader()({"loss": LOSS, "hidden": OTHER})
    assert outputs.logits is None
    assert outputs.loss is LOSS


class Named(NamedTuple):
    hidden: torch.Tensor
    head: torch.Tensor


HEADS: dict[str, Any] = {
    "tuple": (OTHER, LOGITS),
    "list with a loss": [LOSS, OTHER, LOGITS],
    "dict": {"hidden": OTHER, "head": LOGITS},
    "dataclass": Plain(OTHER, LOGITS),
    "named tuple": Named(OTHER, LOGITS),
    "dict of known names": {"logits": OTHER, "head": LOGITS},
}


@pytest.mark.parametrize("name", HEADS)
def test_the_user_names_an_output_by_key_or_number(name: str) -> None:
    returned = HEADS[name]
    picked = pick_output(returned)
    keys: list[Any] = [1, list(picked.tensors)[1]]
    assert all(OutputReader(key)(returned).logits is LOGITS for key in keys)
    with pytest.raises(surefit.UsageError, match=r"outputs is 2.*returns: .*\[2, 5\], .*\[2, 3\]"):
        OutputReader(2)(returned)


def test_a_loss_alone_has_no_output_to_name() -> None:
    assert OutputReader(1)(LOSS).loss is LOSS
    assert OutputReader(1)(LOSS).logits is None


class Towers(nn.Module):
    def forward(self, user: Any, item: Any) -> Any:
        return user, item


def arguments(module: nn.Module, columns: list[str], **known: Any) -> dict[str, str]:
    return dict(match_arguments(module, columns, Names(**known))[0].arguments)


def test_arguments_get_the_columns_of_their_names() -> None:
    columns = ["features", "labels", "item"]
    named = arguments(Towers(), columns, other={"user": "features"})
    assert named == {"user": "features", "item": "item"}
    columns = ["features", "labels", "column_1"]
    ordered = arguments(Towers(), columns, inputs=["features", "column_1"])
    assert ordered == {"user": "features", "item": "column_1"}


def test_arguments_without_a_column_are_refused() -> None:
    with pytest.raises(surefit.FindingError) as caught:
        arguments(Towers(), ["features", "labels"])
    assert caught.value.findings[0].code == "SF301"


class Timed(nn.Module):
    """Keeps the epochs and steps that it was called in while training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.seen = nn.Linear(4, 2), []  # type: ignore[var-annotated]

    def forward(self, x: torch.Tensor, step: int, epoch: int = 0) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            self.seen.append((epoch, step))
        logits: torch.Tensor = self.body(x)
        return logits


@pytest.mark.slow
def test_forward_is_given_epoch_and_step(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    module = Timed()
    options = {
        "data": {"x": x, "y": (x[:, 0] > 0).astype(int)},
        "batch_size": 12,
        "eval_share": 0.1,
    }
    run = surefit.train(model=module, epochs=2, output=str(tmp_path / "run"), **options)
    steps = [event["step"] for event in run.history if event.get("event", "step") == "step"]
    last = [place for place in module.seen if place[1] > 0][-len(steps) :]
    assert [step for _, step in last] == [*range(1, last[-1][1] + 1)][-len(last) :]
    assert last[0][0] == 0
    assert last[-1][0] == 1
    again = surefit.predict(tmp_path / "run", x[:2], model=Timed())
    assert len(again) == 2


class HiddenFirst(nn.Module):
    """Returns what is inside, too, and the scores last."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.body(x))
        return hidden, self.head(hidden)


def test_of_several_outputs_the_one_with_a_score_per_class_is_trained(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    data = {"x": x, "y": (x[:, 0] > 0).astype(int)}
    module = HiddenFirst()
    run = surefit.train(data=data, model=module, epochs=8, lr=0.02, output=str(tmp_path / "run"))
    assert run.metrics["accuracy"] >= 0.9
    found = surefit.predict(run, x[:20], model=module)
    assert [int(row["prediction"]) for row in found] == (x[:20, 0] > 0).astype(int).tolist()


class HeadLast(nn.Module):
    """Returns a latent vector as wide as its logits, or names both."""

    def __init__(self, named: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.named = named
        self.body, self.head = nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Any:
        latent = self.body(x)
        both = {"latent": latent, "head": self.head(latent)}
        return both if self.named else tuple(both.values())


VECTORS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
PAIRS = {"x": VECTORS, "y": (VECTORS[:, 0] > 0).astype(int)}


@pytest.mark.parametrize("named", [False, True])
def test_layers_that_only_another_output_trains_are_an_error(named: bool) -> None:
    key = "head" if named else 1
    plan = surefit.check(data=PAIRS, model=HeadLast(named))
    error = next(found for found in plan.findings if found.severity == "error")
    assert error.code == "SF752"
    assert "head.weight" in error.message
    assert f"outputs={key}" in error.fix
    asked = surefit.check(data=PAIRS, model=HeadLast(named), outputs=key)
    assert asked.ok
    assert asked.as_dict()["choices"]["output"]["used"] == key
    kept = surefit.check(data=PAIRS, model=HeadLast(named), outputs=0)
    assert kept.ok  # the user says which output is meant


def test_a_named_output_is_used_by_every_command(tmp_path: Path) -> None:
    options = {"max_steps": 2, "eval_share": 0.2, "output": str(tmp_path / "run")}
    run = surefit.train(data=PAIRS, model=HeadLast(), outputs=1, **options)
    module = surefit.load(run.path, model=HeadLast())
    with torch.no_grad():
        classes = module(torch.from_numpy(VECTORS))[1].argmax(1)
    for path in (run.path, exported(run.path, tmp_path / "exported")):
        made = surefit.predict(path, VECTORS, model=HeadLast())
        assert [row["prediction"] for row in made] == classes.tolist()
        right = (classes.numpy() == PAIRS["y"]).mean()
        assert surefit.evaluate(path, PAIRS, model=HeadLast())["accuracy"] == pytest.approx(right)


def exported(run: Path, out: Path) -> Path:
    from surefit.run.exported_model import export_model, open_trained

    export_model(open_trained(run), out)
    return out
