"""Padding-free (varlen) batches give the logits and gradients of padded ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import surefit
from builders import echo_rows
from surefit.batches.collate import Layout, list_kept
from surefit.batches.field import Field
from surefit.batches.loading import to_batch
from surefit.inputs.text.text_reading import SEGMENTS, TOKENS
from surefit.models.call import match_arguments
from surefit.models.tiny import TinySizes, tiny_config
from surefit.speed.varlen_attention import (
    NAME,
    find_attention_limit,
    find_varlen,
    use_varlen_attention,
)
from surefit.targets import tags
from surefit.tasks.classification import TEXTS, WORDS
from surefit.tasks.language_models import CAUSAL_LM as CAUSAL

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def with_adapters(module: Any, task_type: str) -> Any:
    chosen = LoraConfig(
        r=2, target_modules="all-linear", task_type=task_type, init_lora_weights=False
    )
    return get_peft_model(module, chosen).double()


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).double()


def rows(lengths: tuple[int, ...] = (9, 1, 14, 5)) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    ids = [draw.integers(0, VOCABULARY, length) for length in lengths]
    return [{"input_ids": row, "labels": np.where(row % 3 == 0, -100, row)} for row in ids]


def test_one_row_changes_no_logit_of_another() -> None:
    module = llama().eval()
    assert use_varlen_attention(module)
    call, _ = match_arguments(module, ["input_ids", "attention_mask"])
    both = to_batch(rows((6, 8)), CAUSAL.fields, layout=Layout(padding_free=True))
    other = {**both, "input_ids": both["input_ids"].clone()}
    other["input_ids"][0, :6] = 1
    with torch.no_grad():
        first, second = (call(module, batch).logits[0] for batch in (both, other))
    assert torch.equal(first[6:], second[6:])
    assert not torch.equal(first[:6], second[:6])


def test_a_model_with_varlen_attention_still_generates_and_is_saved_plain(tmp_path: Path) -> None:
    prompt = torch.tensor([[5, 6, 7, 8]])
    plain, module = llama().eval(), llama().eval()
    assert use_varlen_attention(module)
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    mask = torch.tensor([[0, 1, 1, 1]])
    expected = plain.generate(prompt, attention_mask=mask, **options)
    assert torch.equal(module.generate(prompt, attention_mask=mask, **options), expected)
    module.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()


def test_a_sliding_window_that_rows_can_reach_is_noticed() -> None:
    """A setting may be half the window, so that a row of its half may be limited."""
    module = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4))
    assert find_attention_limit(module, 2) is None
    assert find_attention_limit(module, 3) == ("sliding_window", 4)


@pytest.mark.parametrize(("window", "longest"), [(16, 40), (1024, 600)])
def test_windows_are_proved_on_rows_that_reach_them(window: int, longest: int) -> None:
    """A window is used where it was tested; one too long to test keeps the rows padded."""
    random = np.random.default_rng(0)
    lengths = random.integers(8, longest + 1, 20)
    data = [{"input_ids": random.integers(0, VOCABULARY, n).tolist()} for n in lengths]
    module = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window))
    plan = surefit.check(data=data, model=module, task="causal-lm", max_seq_length=longest)
    assert plan.choices.rows == ("padding-free" if window == 16 else "padded"), plan.findings
    assert ("sliding_window = 1024" in (plan.choices.rows_reason or "")) == (window != 16)


def test_attention_of_another_kind_is_left_alone() -> None:
    config = LlamaConfig(**SIZES, attn_implementation="eager")
    assert not use_varlen_attention(LlamaForCausalLM(config))


def train(folder: Path, **options: Any) -> surefit.Run:
    return surefit.train(
        data=echo_rows(48),
        model="tiny:llama",
        task="sft",
        epochs=1,
        generate={"rows": 0},
        output=str(folder),
        **options,
    )


def test_a_padding_free_run_has_the_same_first_loss(tmp_path: Path) -> None:
    """One step over all rows: their order in it does not matter."""
    varlen = train(tmp_path / "varlen", padding_free="on", batch_size=48)
    padded = train(tmp_path / "padded", padding_free="off", batch_size=48)
    assert varlen.plan["choices"]["rows"] == "padding-free"
    assert padded.plan["choices"]["rows"] == "padded"
    assert varlen.plan["batches"]["padding_share"] == 0
    first = [run.history[0]["loss"] for run in (varlen, padded)]
    assert first[0] == pytest.approx(first[1], rel=1e-5)
    last = [run.metrics["loss"] for run in (varlen, padded)]
    assert last[0] == pytest.approx(last[1], rel=1e-4)


TINY = TinySizes(vocab_size=60, hidden_size=32, num_layers=2, num_heads=4, max_positions=64)
LENGTHS = (9, 1, 14, 5, 20)
PAD = 1
ENCODERS = ("albert", "bert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta")
FLOAT32 = {"gemma3_text": 1e-5}
"""Gemma normalises in float32, whatever the dtype of its weights."""
DECODERS = ("gemma3_text", "gpt2", "llama", "mistral", "qwen2")
NO_SEGMENTS = ("distilbert", "modernbert", *DECODERS)


def make(arch: str, kind: str, lora: bool = False, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = tiny_config(arch, TINY, family=f"{kind}-classification", num_labels=3)
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
    return with_adapters(module, "SEQ_CLS") if lora else module


def class_rows(kind: str, segments: bool) -> list[dict[str, Any]]:
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
    labels = tags.FIELDS["labels"] if kind == "token" else Field((), "int64")
    ids = replace(TOKENS, pad=PAD)
    return {"input_ids": ids, "token_type_ids": SEGMENTS, "labels": labels}


def step(module: Any, kind: str, data: list[dict[str, Any]], layout: Layout) -> tuple[Any, Any]:
    """The loss and the gradients of one batch, as training computes them."""
    module.zero_grad()
    spec = WORDS if kind == "token" else TEXTS
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
    data = class_rows(kind, segments=arch not in NO_SEGMENTS)
    padded = step(module, kind, data, Layout())
    assert use_varlen_attention(module)
    assert_same_step(padded, step(module, kind, data, BODY_ONLY), FLOAT32.get(arch, 1e-9))


@pytest.mark.parametrize("arch", ["bert", "llama", "modernbert", "roberta"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_with_checkpointing_and_adapters(arch: str, lora: bool) -> None:
    module = make(arch, "text", lora)
    data = class_rows("text", segments=False)
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
    data = class_rows("text", segments=False)
    padded = step(module, "text", data, Layout())
    assert use_varlen_attention(module)
    varlen = step(module, "text", data, BODY_ONLY)
    assert_same_step(padded, varlen, FLOAT32.get(arch, 1e-9))
    if "classifier_pooling" not in settings:  # the window limits these rows
        assert varlen[0] != pytest.approx(step(make(arch, "text"), "text", data, Layout())[0])


def test_a_pad_token_within_a_row_gets_the_position_the_model_gives_it() -> None:
    module = make("roberta", "text")
    data = class_rows("text", segments=False)
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
