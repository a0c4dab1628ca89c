"""A model with a planted fault of each kind is caught by its probe, and healthy ones by none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import surefit
from builders import MeanPool, echo_rows, feature_rows, sentiment_rows
from surefit.plan.plan import Plan

PROBE_CODES = {f"SF7{number:02}" for number in range(10)}


class Noisy(MeanPool):
    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        logits = super().forward(inputs_embeds, attention_mask)
        return logits + torch.randn_like(logits)


class CannotLearn(MeanPool):
    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        return super().forward(inputs_embeds, attention_mask) * 1e-6


class Tokens(nn.Module):
    """A causal model of the mean of the tokens so far; `ahead` of them are looked into."""

    ahead = 0

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3000, 16)
        self.head = nn.Linear(16, 3000)

    def logits(self, input_ids: Any) -> Any:
        embedded = self.embedding(input_ids)
        counts = torch.arange(1, input_ids.shape[1] + 1).view(1, -1, 1)
        means = embedded.cumsum(1) / counts
        return self.head(torch.roll(means, -self.ahead, 1) if self.ahead else means)

    def forward(self, input_ids: Any) -> Any:
        return self.logits(input_ids)


class LooksAhead(Tokens):
    ahead = 1


class OwnLoss(Tokens):
    """A model that shifts by itself, as transformers models do."""

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        logits = self.logits(input_ids)[:, :-1]
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
        )


def _codes(plan: Plan) -> set[str]:
    return {found.code for found in plan.findings} & PROBE_CODES


@pytest.mark.parametrize(("module", "noisy"), [(MeanPool(), False), (Noisy(), True)])
def test_features(module: nn.Module, noisy: bool) -> None:
    plan = surefit.check(data=feature_rows(30), model=module)
    assert _codes(plan) == ({"SF700"} if noisy else set())


def _token_rows() -> list[dict[str, list[int]]]:
    return [{"input_ids": list(range(5, 5 + n))} for n in range(6, 30)]


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (Tokens(), None),
        (LooksAhead(), "SF703"),
        (OwnLoss(), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_which_position_a_label_trains(module: nn.Module, code: str | None) -> None:
    plan = surefit.check(data=_token_rows(), model=module, task="causal-lm")
    assert _codes(plan) - {"SF701"} == ({code} if code else set())  # LooksAhead reads pads, too
    assert plan.ok == (code is None)


def test_a_loss_that_is_no_sum_over_rows_is_named() -> None:
    def spread(logits: torch.Tensor, batch: Any) -> torch.Tensor:
        own = nn.functional.cross_entropy(logits, batch["labels"])
        return own + logits.softmax(-1).var(0, correction=0).sum()

    plan = surefit.check(data=feature_rows(30), model=MeanPool(), loss_fn=spread)
    assert _codes(plan) == {"SF705"}


def test_a_model_that_cannot_learn_a_batch_is_named_on_request() -> None:
    rows = feature_rows(30)
    assert "SF707" not in _codes(surefit.check(data=rows, model=CannotLearn()))
    module = CannotLearn()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    plan = surefit.check(data=rows, model=module, probes="all")
    assert _codes(plan) == {"SF707"}
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in module.parameters())
    healthy = surefit.check(data=rows, model=MeanPool(), probes="all")
    assert not _codes(healthy)


@pytest.mark.parametrize("model", ["tiny:llama", "tiny:gpt2"])
def test_healthy_language_models_pass_every_probe(model: str) -> None:
    assert not _codes(surefit.check(data=echo_rows(40), model=model, probes="all"))


def test_buffers_and_modes_are_put_back() -> None:
    class Counts(MeanPool):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.head.eval()

        def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
            self.calls += 1
            return super().forward(inputs_embeds, attention_mask)

    module = Counts()
    surefit.check(data=feature_rows(20), model=module)
    assert int(module.calls) == 0
    assert module.training
    assert not module.head.training


class Forgets(MeanPool):
    """Keeps what it learns where no checkpoint looks."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [nn.Linear(3, 3)]

    def __deepcopy__(self, memo: Any) -> Forgets:
        return Forgets()

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        return self.parts[0](super().forward(inputs_embeds, attention_mask))


class Idle(MeanPool):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)


def test_what_is_not_saved_is_named_on_request() -> None:
    rows = feature_rows(30)
    torch.manual_seed(12345)  # or a plan's own seed could make the same weights again
    assert "SF706" in _codes(surefit.check(data=rows, model=Forgets(), probes="all"))


def test_parameters_that_the_loss_does_not_reach_are_named() -> None:
    plan = surefit.check(data=feature_rows(30), model=Idle())
    (said,) = [note for note in plan.notes if note.startswith("2 of 6 parameters")]
    assert "unused.weight" in said
    assert plan.ok


class NeedsTwoRows(MeanPool):
    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        if len(inputs_embeds) < 2:
            raise ValueError("one row is not enough")
        return super().forward(inputs_embeds, attention_mask)


def test_a_probe_that_cannot_be_run_says_so() -> None:
    plan = surefit.check(data=feature_rows(30), model=NeedsTwoRows())
    assert any("one row is not enough" in note for note in plan.notes)
    assert plan.ok


HEALTHY = {
    "LlamaModel": (echo_rows(40), lambda: "tiny:llama", {"lora_r": 4}),
    "BertModel": (sentiment_rows(40), lambda: "tiny:bert", {}),
    "MeanPool": (feature_rows(30), MeanPool, {}),
}
PROBES, LAYOUT, GENERATION = 6, 2, 4
"""Passes of the probes; one padded and one in the fastest layout with the fastest head; two tokens
for a prompt alone and for it in a padded batch."""


@pytest.mark.parametrize(
    ("name", "most", "backward_passes"),
    [
        ("LlamaModel", PROBES + LAYOUT + GENERATION, 1 + LAYOUT),
        ("BertModel", PROBES + LAYOUT, 1 + LAYOUT),
        ("MeanPool", PROBES, 1),
    ],
)
def test_planning_runs_a_healthy_model_few_times(
    name: str, most: int, backward_passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, make, options = HEALTHY[name]
    passes = {"forward": 0, "backward": 0}
    forward = nn.Module.__call__

    def run(self: Any, *given: Any, **more: Any) -> Any:
        on_meta = any(weight.is_meta for weight in self.parameters())  # to predict the memory
        passes["forward"] += type(self).__name__ == name and not on_meta
        return forward(self, *given, **more)

    def counted(backward: Any) -> Any:
        def back(total: Any, *given: Any, **more: Any) -> Any:
            passes["backward"] += not total.is_meta
            return backward(total, *given, **more)

        return back

    monkeypatch.setattr(nn.Module, "__call__", run)
    for way in ("grad", "backward"):
        monkeypatch.setattr(torch.autograd, way, counted(getattr(torch.autograd, way)))
    plan = surefit.check(data=rows, model=make(), **options)
    assert plan.ok, plan.findings
    assert 1 < passes["forward"] <= most
    assert passes["backward"] == backward_passes
