"""A body without padding gives the losses and gradients of padded batches, for every head."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from surefit.batches.batch_layout import Layout, list_kept
from surefit.batches.field import Field
from surefit.batches.loading import to_batch
from surefit.kernels.packed_body import Varlen, find_varlen
from surefit.kernels.varlen_attention import use_varlen_attention
from surefit.models.call import match_arguments
from surefit.models.tiny_config import TinySizes, tiny_config
from surefit.tasks import token_classification
from surefit.tasks.text_classification import SEGMENTS, SPEC, TOKENS

SIZES = TinySizes(vocab_size=60, hidden_size=32, num_layers=2, num_heads=4, max_positions=64)
LENGTHS = (9, 1, 14, 5, 20)
PAD = 1
ENCODERS = ("albert", "bert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta")
FLOAT32 = {"gemma3_text": 1e-5}
"""Gemma normalises in float32, whatever the dtype of its weights."""
DECODERS = ("gemma3_text", "gpt2", "llama", "mistral", "qwen2")
NO_SEGMENTS = ("distilbert", "modernbert", *DECODERS)


def make(arch: str, kind: str, lora: bool = False, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = tiny_config(arch, SIZES, family=f"{kind}-classification", num_labels=3)
    for name, value in {"pad_token_id": PAD, **settings}.items():
        setattr(config, name, value)
    for name in vars(config):
        if "dropout" in name and isinstance(getattr(config, name), float):
            setattr(config, name, 0.0)
    name = {"text": "Sequence", "token": "Token"}[kind]
    auto = getattr(transformers, f"AutoModelFor{name}Classification")
    module = auto.from_config(config).double()
    for weight in module.parameters():  # fresh weights hardly depend on their input
        weight.data += 0.1 * torch.randn_like(weight)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    if lora:
        from peft import LoraConfig, get_peft_model

        chosen = LoraConfig(
            r=2, target_modules="all-linear", task_type="SEQ_CLS", init_lora_weights=False
        )
        module = get_peft_model(module, chosen).double()
    return module


def rows(kind: str, segments: bool) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    made = []
    for number, length in enumerate(LENGTHS):
        ids = draw.integers(2, 60, length)
        row = {"input_ids": ids, "labels": np.array(number % 3)}
        if kind == "token":
            row["labels"] = np.where(ids % 4 == 0, -100, ids % 3)
        if segments:
            row["token_type_ids"] = (np.arange(length) > length // 2).astype(np.int64)
        made.append(row)
    return made


def fields(kind: str) -> dict[str, Field]:
    labels = token_classification.SPEC.fields["labels"] if kind == "token" else Field((), "int64")
    ids = replace(TOKENS, pad=PAD)
    return {"input_ids": ids, "token_type_ids": SEGMENTS, "labels": labels}


def step(module: Any, kind: str, data: list[dict[str, Any]], layout: Layout) -> tuple[Any, Any]:
    """The loss and the gradients of one batch, as training computes them."""
    module.zero_grad()
    spec = token_classification.SPEC if kind == "token" else SPEC
    batch = to_batch(data, fields(kind), layout=layout)
    call, _ = match_arguments(module, [*data[0], "attention_mask"])
    total, _ = spec.loss(replace(call, varlen=find_varlen(module))(module, batch), batch)
    total.backward()
    grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return float(total.detach()), {name: grad.clone() for name, grad in grads.items()}


def assert_same_step(padded: tuple[Any, Any], varlen: tuple[Any, Any], close: float = 1e-9) -> None:
    assert varlen[0] == pytest.approx(padded[0], rel=close)
    assert varlen[1].keys() == padded[1].keys()
    largest = max(float(grad.norm()) for grad in padded[1].values())
    for name, grad in padded[1].items():
        difference = float((varlen[1][name] - grad).norm())
        assert difference <= close * max(float(grad.norm()), 1e-3 * largest), name


BODY_ONLY = Layout(padding_free=True, body_only=True)


@pytest.mark.parametrize("kind", ["text", "token"])
@pytest.mark.parametrize("arch", [*ENCODERS, *DECODERS])
def test_a_step_is_that_of_padded_rows(arch: str, kind: str) -> None:
    if kind == "token" and arch == "gemma3_text":
        pytest.skip("transformers has no such class")
    module = make(arch, kind)
    data = rows(kind, segments=arch not in NO_SEGMENTS)
    padded = step(module, kind, data, Layout())
    assert use_varlen_attention(module)
    assert_same_step(padded, step(module, kind, data, BODY_ONLY), FLOAT32.get(arch, 1e-9))


@pytest.mark.parametrize("arch", ["bert", "llama", "modernbert", "roberta"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_with_checkpointing_and_adapters(arch: str, lora: bool) -> None:
    module = make(arch, "text", lora)
    data = rows("text", segments=False)
    padded = step(module, "text", data, Layout())
    assert use_varlen_attention(module)
    module.gradient_checkpointing_enable({"use_reentrant": False})
    if lora:
        module.enable_input_require_grads()
    module.train()
    assert_same_step(padded, step(module, "text", data, BODY_ONLY))


@pytest.mark.parametrize(
    ("arch", "settings"),
    [
        ("modernbert", {"classifier_pooling": "mean"}),
        ("modernbert", {"local_attention": 6}),
        ("mistral", {"sliding_window": 4}),
        ("gemma3_text", {"sliding_window": 4}),
        ("qwen2", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
    ],
    ids=["mean pooling", "local attention", "mistral window", "gemma window", "qwen window"],
)
def test_pooling_and_windows_are_the_models_own(arch: str, settings: dict[str, Any]) -> None:
    module = make(arch, "text", **settings)
    data = rows("text", segments=False)
    padded = step(module, "text", data, Layout())
    assert use_varlen_attention(module)
    varlen = step(module, "text", data, BODY_ONLY)
    assert_same_step(padded, varlen, FLOAT32.get(arch, 1e-9))
    if "classifier_pooling" not in settings:  # the window limits these rows
        assert varlen[0] != pytest.approx(step(make(arch, "text"), "text", data, Layout())[0])


def test_a_pad_token_within_a_row_gets_the_position_the_model_gives_it() -> None:
    module = make("roberta", "text")
    data = rows("text", segments=False)
    data[2]["input_ids"][4] = PAD
    padded = step(module, "text", data, Layout())
    assert use_varlen_attention(module)
    assert find_varlen(module).padding_idx == PAD
    assert_same_step(padded, step(module, "text", data, BODY_ONLY))


class Wrapped(nn.Module):
    """A user's module with a transformers body inside, which reads features."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        hidden = self.body(inputs_embeds=inputs_embeds, attention_mask=attention_mask)[0]
        return hidden * attention_mask.unsqueeze(-1)


@pytest.mark.parametrize("arch", ["bert", "modernbert", "roberta", "mistral"])
def test_gaps_in_the_mask_of_features_keep_their_positions(arch: str) -> None:
    windows = {"modernbert": {"local_attention": 6}, "mistral": {"sliding_window": 3}}
    module = Wrapped(make(arch, "text", **windows.get(arch, {})).base_model)
    assert use_varlen_attention(module)
    random = torch.Generator().manual_seed(0)
    embeds = torch.randn(3, 12, 32, generator=random, dtype=torch.double, requires_grad=True)
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[0, 7:], mask[1, [2, 3, 8]] = 0, 0
    call, _ = match_arguments(module, ["inputs_embeds", "attention_mask"])
    call = replace(call, varlen=find_varlen(module))
    kept: dict[str, Any] = list_kept(mask.numpy())
    kept["kept_positions"] = torch.from_numpy(kept["kept_positions"])
    outputs, gradients = [], []
    for more in ({}, kept):
        made = call(module, {"inputs_embeds": embeds, "attention_mask": mask, **more}).logits
        outputs.append(made.detach())
        gradients.append(torch.autograd.grad(made.pow(3).sum(), embeds)[0])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-12)


def test_the_hooks_are_gone_after_the_call() -> None:
    module = make("bert", "text")
    assert use_varlen_attention(module)
    step(module, "text", rows("text", segments=False), BODY_ONLY)
    parts = [module.bert, module.bert.pooler]
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in parts)


def test_a_copied_call_packs_its_own_model() -> None:
    module = make("bert", "text")
    call, _ = match_arguments(module, ["input_ids", "attention_mask"])
    copied, its = copy.deepcopy((module, replace(call, varlen=find_varlen(module))))
    assert its.varlen.body is copied.bert


def test_positions_without_a_padding_index_start_at_zero() -> None:
    steps = torch.tensor([[0, 1, 0]])
    assert Varlen().positions(steps, None) is steps
    assert Varlen(padding_idx=3).positions(steps, None).tolist() == [[4, 5, 4]]
