"""A sparse head gives the loss and the gradients of the full head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import surefit
from builders import echo_rows, stop_at
from surefit.batches.collate import Layout, Predicts
from surefit.batches.loading import to_batch
from surefit.inputs.encoder import Encoder
from surefit.models.call import Call, match_arguments, with_module_loss
from surefit.models.tiny import TinySizes, tiny_config
from surefit.pipeline.open_pipeline import Choices
from surefit.pipeline.pipeline import Pipeline
from surefit.plan.layout import Trial
from surefit.speed.choose_head import HeadChoice, from_choice
from surefit.speed.sparse_head import (
    Chunks,
    LogitTransform,
    SparseHead,
    chunked_loss,
    find_tied,
    shared_gradient,
)
from surefit.targets.task_spec import TaskSpec
from surefit.tasks.language_models import CAUSAL_LM as CAUSAL
from surefit.tasks.language_models import MASKED_LM as MASKED
from surefit.tasks.language_models import SEQ2SEQ

VOCABULARY = 512


def random_rows(task: TaskSpec, lengths: tuple[int, ...] = (9, 4, 14)) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    rows = []
    for length in lengths:
        ids = draw.integers(5, VOCABULARY, length)
        labels = np.where(draw.random(length) < 0.5, -100, ids)
        labels[-1] = ids[-1]
        row = {"input_ids": ids, "labels": labels}
        if "decoder_input_ids" in task.fields:
            row["decoder_input_ids"] = np.roll(ids, 1)
        rows.append(row)
    return rows


def batch_of(task: TaskSpec, **kinds: Any) -> dict[str, Any]:
    rows = random_rows(task)
    fields = {name: task.fields[name] for name in rows[0]}
    return to_batch(rows, fields, layout=Layout(predicts=task.head.predicts, **kinds))


def tiny(arch: str, task: TaskSpec, **settings: Any) -> Any:
    import transformers

    config = tiny_config(arch, TinySizes(VOCABULARY), family=task.name)
    for name, value in settings.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    return getattr(transformers, str(task.head.auto_class)).from_config(config)


def gradients(module: nn.Module, call: Call, task: TaskSpec, batch: dict[str, Any]) -> Any:
    """Loss, count, and the gradient of every trained parameter."""
    module.zero_grad()
    total, count = task.loss(call(module, batch), batch)
    total.backward()
    found = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return float(total.detach()), count, found


def chosen_head(module: nn.Module, call: Call, task: TaskSpec) -> HeadChoice:
    """The first of the possible heads that gives what the full one does."""
    rows = random_rows(task)
    fields = {name: task.fields[name] for name in rows[0]}
    loss = with_module_loss(task.loss)
    pipeline = Pipeline(task, Encoder(task.name, {}), module, call, loss, fields)
    trial: Any = Trial(pipeline, None, 14)  # type: ignore[arg-type]
    trial.rows = rows
    heads: tuple[HeadChoice, ...] = trial.padded.heads
    return next(each for each in heads if trial.why_differs(Choices(each)) is None)


def compare(module: Any, task: TaskSpec, dtype: torch.dtype) -> SparseHead:
    """Compare the chosen head with the full one, through the whole model."""
    module = module.to(dtype).eval()
    batch = batch_of(task)
    call, _ = match_arguments(module, list(batch))
    choice = chosen_head(module, call, task)
    head = from_choice(module, choice)
    assert head is not None, choice.reason
    plain = gradients(
        module, call, task, {k: v for k, v in batch.items() if k != "labelled_positions"}
    )
    sparse = gradients(module, Call(call.arguments, call.fixed, head), task, batch)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    assert sparse[0] == pytest.approx(plain[0], rel=tolerance)
    assert sparse[1] == plain[1]
    assert sparse[2].keys() == plain[2].keys()
    largest = max(float(grad.norm()) for grad in plain[2].values())
    for name, grad in plain[2].items():
        difference = float((sparse[2][name] - grad).norm())
        assert difference <= tolerance * max(float(grad.norm()), largest), name
    return head


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("arch", "settings", "transform"),
    [
        ("llama", {"tie_word_embeddings": False}, LogitTransform()),
        ("qwen3", {"tie_word_embeddings": True}, LogitTransform()),
        ("gpt2", {}, LogitTransform()),
        ("opt", {}, LogitTransform()),
        ("gemma2", {"final_logit_softcapping": 0.05}, LogitTransform(1.0, 0.05)),
        ("granite", {"logits_scaling": 8.0}, LogitTransform(0.125)),
        ("cohere", {"logit_scale": 0.25}, LogitTransform(0.25)),
        ("phi", {}, LogitTransform()),  # a head with a bias
        ("gpt_neox", {}, LogitTransform()),
        ("stablelm", {}, LogitTransform()),
    ],
)
def test_causal_head_in_chunks(
    arch: str, settings: dict[str, Any], transform: LogitTransform, dtype: torch.dtype
) -> None:
    head = compare(tiny(arch, CAUSAL, **settings), CAUSAL, dtype)
    assert (head.tied is not None) == (arch in ("qwen3", "gpt2", "opt", "cohere"))
    assert head.transform.cap == transform.cap
    assert head.transform.factor == pytest.approx(transform.factor, rel=1e-5)


@pytest.mark.parametrize(
    ("task", "arch"),
    [
        (MASKED, "bert"),
        (MASKED, "distilbert"),
        (MASKED, "modernbert"),
        (SEQ2SEQ, "t5"),
        (SEQ2SEQ, "bart"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_masked_and_seq2seq_heads(task: TaskSpec, arch: str) -> None:
    assert compare(tiny(arch, task), task, torch.float64).transform == LogitTransform()


@pytest.mark.parametrize("target", ["q_proj", "lm_head"])
def test_lora_on_the_body_and_on_the_head(target: str) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    lora = LoraConfig(r=4, target_modules=[target], task_type="CAUSAL_LM", init_lora_weights=False)
    module = get_peft_model(tiny("llama", CAUSAL, tie_word_embeddings=False), lora)
    head = compare(module, CAUSAL, torch.float64)
    assert (head.transform is None) == (
        target == "lm_head"
    )  # an adapted head is not one matrix product


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("chunk", [1, 4, 7, 100])
def test_chunks_of_any_size_give_the_same_gradients(chunk: int, smoothing: float) -> None:
    torch.manual_seed(0)
    embedding = nn.Linear(6, 50).double()
    labels = torch.randint(0, 50, (23,))
    hidden = torch.randn(23, 6, dtype=torch.float64, requires_grad=True)
    transform = LogitTransform(0.5, 3.0)
    wanted = [hidden, *embedding.parameters()]
    logits = 3.0 * torch.tanh(0.5 * embedding(hidden) / 3.0)
    expected = cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    chunks = Chunks(transform, chunk, smoothing)
    labelled = chunked_loss(hidden, embedding, labels, chunks)
    assert float(labelled.total.detach()) == pytest.approx(float(expected), rel=1e-12)
    plain = torch.autograd.grad(expected * 0.3, wanted)
    for a, b in zip(torch.autograd.grad(labelled.total * 0.3, wanted), plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        measured = chunked_loss(hidden, embedding, labels, chunks)
    unsmoothed = measured.plain if smoothing else measured.total
    assert float(unsmoothed) == pytest.approx(
        float(cross_entropy(logits, labels, reduction="sum")), rel=1e-12
    )
    assert measured.hits == (logits.argmax(-1) == labels).sum()


class Scaled(nn.Module):
    """A model whose logits are scaled by a trained weight that starts at 1."""

    def __init__(self, after: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.out = nn.Linear(8, VOCABULARY)
        self.scale = nn.Parameter(torch.ones(()))
        self.after = after

    def get_output_embeddings(self) -> nn.Module:
        return self.out

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(input_ids)
        if self.after == "unused":
            return hidden @ self.out.weight.T
        logits = self.out(hidden)
        if self.after == "neighbours":
            return logits + logits.roll(1, dims=1)
        return logits * self.scale


@pytest.mark.parametrize(
    ("after", "expected"), [("scale", "gathered"), ("neighbours", None), ("unused", None)]
)
def test_what_is_not_equal_is_not_used(after: str, expected: str | None) -> None:
    torch.manual_seed(0)
    module, batch = Scaled(after), batch_of(CAUSAL)
    call, _ = match_arguments(module, list(batch))
    head = chosen_head(module, call, CAUSAL)
    assert (head.positions == "all") == (expected is None) == (head.reason is not None)
    if expected is not None:  # the scale would get no gradient from chunks
        assert head == HeadChoice("labelled")


@pytest.mark.parametrize("predicts", ["same_token", "next_token"])
def test_labelled_positions_are_those_with_a_label(predicts: Predicts) -> None:
    rows = [{"input_ids": np.arange(3), "labels": np.array([7, -100, 9])}] * 2
    fields = {name: CAUSAL.fields[name] for name in rows[0]}
    batch = to_batch(rows, fields, layout=Layout(predicts=predicts))
    before = predicts == "next_token"  # no position predicts the first label of a row
    assert batch["labelled_targets"].tolist() == ([9, 9] if before else [7, 9, 7, 9])
    assert batch["labelled_positions"].tolist() == ([1, 4] if before else [0, 2, 3, 5])


@pytest.mark.slow
def test_a_resumed_run_uses_the_choices_of_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surefit.plan import layout as choosing

    options: dict[str, Any] = {"data": echo_rows(40), "model": "tiny:llama", "task": "sft"}
    options |= {"epochs": 2, "generate": {"rows": 0}}
    whole = surefit.train(**options, output=str(tmp_path / "whole"))
    assert whole.plan["choices"]["head"]["chunk"] == 256
    assert whole.plan["choices"]["rows"] == "padding-free"

    with pytest.raises(KeyboardInterrupt):
        surefit.train(**options, output=str(tmp_path / "cut"), save_every=2, callbacks=[stop_at(4)])

    def never(*_: Any) -> Any:
        raise AssertionError("chosen again")

    monkeypatch.setattr(choosing, "Trial", never)
    cut = surefit.train(resume=tmp_path / "cut", data=options["data"])
    strip = [[{**e, "seconds": 0} for e in run.history] for run in (whole, cut)]
    assert strip[0] == strip[1]


TIED_WORDS, WIDTH = 30, 8
CHUNKS = Chunks(LogitTransform(), 2)


class Tied(nn.Module):
    """An embedding lookup, a mixing layer, and a tied head."""

    def __init__(self, padding_idx: int | None = None, lookups: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TIED_WORDS, WIDTH, padding_idx)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, TIED_WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.lookups = lookups

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, ids: torch.Tensor) -> Any:
        return self.mix(sum(self.embedding(ids + place) for place in range(self.lookups)))


def gradient(module: Tied, *, shares: bool) -> torch.Tensor:
    ids = torch.tensor([3, 3, 0, 7, 1])
    labels = torch.tensor([1, 2, 3, 3, 0])
    module.zero_grad()
    with shared_gradient(module.embedding if shares else None) as shared:
        labelled = chunked_loss(module(ids), module.head, labels, CHUNKS, shared)
    (labelled.total * 0.5).backward()  # type: ignore[no-untyped-call]
    return module.embedding.weight.grad.clone()


@pytest.mark.parametrize("padding_idx", [None, 0])
@pytest.mark.parametrize("lookups", [1, 2])
def test_one_gradient_is_the_sum_of_both(padding_idx: int | None, lookups: int) -> None:
    torch.manual_seed(0)
    module = Tied(padding_idx, lookups).double()
    apart, together = (gradient(module, shares=shares) for shares in (False, True))
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)
    assert not module.embedding._forward_hooks


def test_a_model_that_looks_nothing_up_loses_no_gradient() -> None:
    torch.manual_seed(0)
    module = Tied().double()
    hidden = torch.randn(4, WIDTH, dtype=torch.float64)
    labels = torch.tensor([1, 2, 3, 4])
    with shared_gradient(module.embedding) as shared:
        labelled = chunked_loss(module.mix(hidden), module.head, labels, CHUNKS, shared)
    labelled.total.backward()  # type: ignore[no-untyped-call]
    assert module.head.weight.grad.any()


def test_only_plain_embeddings_of_the_same_weight_are_tied() -> None:
    module = Tied()
    assert find_tied(module, module.head) is module.embedding
    assert find_tied(module, nn.Linear(WIDTH, TIED_WORDS)) is None
    assert find_tied(nn.Linear(2, 2), module.head) is None
    module.embedding.scale_grad_by_freq = True
    assert find_tied(module, module.head) is None
