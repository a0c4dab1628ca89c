"""Padding-free (varlen) batches give the logits and gradients of padded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import surefit
from builders import echo_rows
from surefit.batches.batch_layout import Layout
from surefit.batches.loading import to_batch
from surefit.batches.order import Batches
from surefit.kernels.choose_head import choose_head
from surefit.kernels.varlen_attention import NAME, find_attention_limit, use_varlen_attention
from surefit.models.call import Call, match_arguments
from surefit.tasks.causal_lm import SPEC

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def llama(lora: bool = False) -> Any:
    torch.manual_seed(0)
    module: Any = LlamaForCausalLM(LlamaConfig(**SIZES)).double()
    if lora:
        from peft import LoraConfig, get_peft_model

        chosen = LoraConfig(
            r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
        )
        module = get_peft_model(module, chosen).double()
    return module


def rows(lengths: tuple[int, ...] = (9, 1, 14, 5)) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    ids = [draw.integers(0, VOCABULARY, length) for length in lengths]
    return [{"input_ids": row, "labels": np.where(row % 3 == 0, -100, row)} for row in ids]


def gradients(module: Any, layout: Layout, checkpointing: bool = False) -> tuple[float, Any]:
    """Loss and gradients of the rows in a layout, by the head that training uses."""
    assert use_varlen_attention(module)
    if checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
        module.enable_input_require_grads()
    module.train()
    batch = to_batch(rows(), SPEC.fields, layout=layout)
    padded = to_batch(rows(), SPEC.fields, layout=Layout(predicts="next_token"))
    call, _ = match_arguments(module, ["input_ids", "attention_mask"])
    head, why = choose_head(module, lambda given: call(module, given), padded)
    assert head is not None, why
    total, _ = SPEC.loss(Call(call.arguments, call.fixed, head)(module, batch), batch)
    total.backward()
    return float(total.detach()), {
        n: p.grad for n, p in module.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_gradients_are_those_of_padded_rows(lora: bool, checkpointing: bool) -> None:
    padded = gradients(llama(lora), Layout(predicts="next_token"))
    varlen = gradients(llama(lora), Layout(padding_free=True, predicts="next_token"), checkpointing)
    assert varlen[0] == pytest.approx(padded[0], rel=1e-10)
    assert varlen[1].keys() == padded[1].keys()
    largest = max(float(grad.norm()) for grad in padded[1].values())
    for name, grad in padded[1].items():
        difference = float((varlen[1][name] - grad).norm())
        assert difference <= 1e-10 * max(float(grad.norm()), largest), name


def test_one_row_changes_no_logit_of_another() -> None:
    module = llama().eval()
    assert use_varlen_attention(module)
    call, _ = match_arguments(module, ["input_ids", "attention_mask"])
    both = to_batch(rows((6, 8)), SPEC.fields, layout=Layout(padding_free=True))
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


def test_a_sliding_window_holds_within_each_row() -> None:
    torch.manual_seed(0)
    module: Any = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)).double().eval()
    assert use_varlen_attention(module)
    call, _ = match_arguments(module, ["input_ids", "attention_mask"])
    batches = [to_batch(rows(), SPEC.fields, layout=Layout(free)) for free in (False, True)]
    with torch.no_grad():
        padded, varlen = (call(module, batch).logits for batch in batches)
    joined = torch.cat([row[:n] for row, n in zip(padded, (9, 1, 14, 5), strict=True)])
    torch.testing.assert_close(varlen[0], joined, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("window", "longest"), [(16, 40), (1024, 600)])
def test_windows_are_proved_on_rows_that_reach_them(window: int, longest: int) -> None:
    """A window is used where it was tested; one too long to test keeps the rows padded."""
    random = np.random.default_rng(0)
    lengths = random.integers(8, longest + 1, 20)
    data = [{"input_ids": random.integers(0, VOCABULARY, n).tolist()} for n in lengths]
    module = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window))
    plan = surefit.check(data=data, model=module, task="causal-lm", max_seq_length=longest)
    assert plan.choices["rows"] == ("padding-free" if window == 16 else "padded"), plan.findings
    refused = [found.message for found in plan.findings if found.code == "SF501"]
    assert len(refused) == (window != 16)
    assert all("sliding_window = 1024" in message for message in refused)


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


def test_padding_free_micro_batches_keep_the_number_of_rows() -> None:
    lengths = np.random.default_rng(0).integers(1, 90, 1000).astype(np.int32)
    batches = Batches(lengths, 0, 4, padding_free=True)
    order = batches.epoch(0)
    assert set(np.diff(order.micro_starts)) == {4}
    assert sorted(order.rows) == list(range(1000))
    sums = [int(lengths[batches.step_rows(0, step)].sum()) for step in range(250)]
    assert batches.positions().max() == max(sums)
    assert batches.longest()[0] == 4
    budget = Batches(lengths, 0, 4, max_tokens=200, padding_free=True).epoch(0)
    micro = np.add.reduceat(lengths[budget.rows], budget.micro_starts[:-1])
    assert micro.max() <= 200 < micro.max() + lengths.max()
