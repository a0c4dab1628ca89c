"""The model's own loss is compared with surefit's, and a difference is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

import surefit
from builders import MeanPool, feature_rows, sentiment_rows

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def llama(loss_function: Any = None) -> Any:
    torch.manual_seed(0)
    module = LlamaForCausalLM(LlamaConfig(**SIZES))
    if loss_function is not None:
        module.loss_function = loss_function
    return module


def rows() -> list[dict[str, list[int]]]:
    return [{"input_ids": list(range(5, 5 + n))} for n in range(6, 30)]


def message(module: Any) -> str | None:
    plan = surefit.check(data=rows(), model=module, task="causal-lm")
    found = [each for each in plan.findings if each.code == "SF711"]
    return found[0].message if found else None


def smoothed(logits: Any, labels: Any, vocab_size: int, **_: Any) -> Any:
    flat = logits[:, :-1].flatten(0, 1)
    return cross_entropy(flat, labels[:, 1:].flatten(), label_smoothing=0.1)


def summed(logits: Any, labels: Any, vocab_size: int, **_: Any) -> Any:
    flat = logits[:, :-1].flatten(0, 1)
    return cross_entropy(flat, labels[:, 1:].flatten(), reduction="sum")


def unshifted(logits: Any, labels: Any, vocab_size: int, **_: Any) -> Any:
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def squared(logits: Any, labels: Any, vocab_size: int, **_: Any) -> Any:
    flat = logits[:, :-1].flatten(0, 1)
    z = flat.logsumexp(-1)
    picked = flat.gather(1, labels[:, 1:].flatten().clamp(min=0)[:, None])[:, 0]
    known = labels[:, 1:].flatten() != -100
    return ((z - picked)[known]).mean() + 0.1 * (z[known] ** 2).mean()


def test_the_plain_loss_of_a_model_is_no_finding() -> None:
    assert message(llama()) is None


def test_logits_that_bypass_the_output_embedding_are_no_finding() -> None:
    texts = [{"text": row["text"]} for row in sentiment_rows(30)]
    plan = surefit.check(data=texts, model="tiny:mobilebert", task="masked-lm")
    assert "SF711" not in {each.code for each in plan.findings}


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (smoothed, "smooths its labels by 0.1"),
        (summed, "sum over targets"),
        (unshifted, "at its own position"),
        (squared, "adds other terms"),
    ],
)
def test_a_difference_is_named_with_both_values(loss: Any, named: str) -> None:
    found = message(llama(loss))
    assert found is not None
    assert named in found
    assert "own loss is" in found


class TwoLosses(MeanPool):
    """Returns logits and a loss with a term of its own."""

    def forward(self, inputs_embeds: Any, attention_mask: Any, labels: Any = None) -> Any:
        logits = super().forward(inputs_embeds, attention_mask)
        if labels is None:
            return {"logits": logits}
        penalty = self.head.weight.square().sum()
        return {"logits": logits, "loss": cross_entropy(logits, labels) + penalty}


class OneLoss(TwoLosses):
    """The same without the term."""

    def forward(self, inputs_embeds: Any, attention_mask: Any, labels: Any = None) -> Any:
        logits = MeanPool.forward(self, inputs_embeds, attention_mask)
        loss = None if labels is None else cross_entropy(logits, labels)
        return {"logits": logits, "loss": loss}


@pytest.mark.parametrize(("module", "found"), [(TwoLosses(), True), (OneLoss(), False)])
def test_a_custom_module_that_returns_logits_and_a_loss(module: nn.Module, found: bool) -> None:
    plan = surefit.check(data=feature_rows(30), model=module)
    assert ("SF711" in {each.code for each in plan.findings}) == found
