"""A varlen kernel is used only where it computes what SDPA does, on the device itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import surefit
from builders import echo_rows
from surefit.plan import layout
from surefit.speed import varlen_kernels
from surefit.speed.compiling import choose_compile
from surefit.speed.varlen_attention import _within_rows
from surefit.speed.varlen_kernels import (
    BY_ROW,
    Attention,
    Choice,
    Rows,
    Shape,
    attend_by_row,
    choose_kernel,
    read_rows,
    row_lengths_mask,
)

LAYERS = [(Shape(4, 2, 8), Attention()), (Shape(4, 4, 8), Attention(window=3, causal=False))]


def faithful(query: Any, key: Any, value: Any, rows: Rows, asked: Attention) -> Any:
    """Computes in float32 and rounds, so that it runs on every CPU."""
    wide = [part.float() for part in (query, key, value)]
    return attend_by_row(*wide, rows, asked).to(query.dtype)


def across_rows(query: Any, key: Any, value: Any, rows: Rows, asked: Attention) -> Any:
    return faithful(query, key, value, Rows((sum(rows.lengths),)), asked)


def without_window(query: Any, key: Any, value: Any, rows: Rows, asked: Attention) -> Any:
    return faithful(query, key, value, rows, replace(asked, window=None))


def detached(*given: Any) -> Any:
    return faithful(*given).detach()


def not_finite(*given: Any) -> Any:
    return faithful(*given) * torch.nan


def missing() -> Any:
    raise ImportError("no such package")


def chosen(monkeypatch: Any, dtype: Any = torch.bfloat16, **kernels: Any) -> tuple[str, str]:
    loads = {name: Choice(k if k is missing else lambda k=k: k) for name, k in kernels.items()}
    monkeypatch.setitem(varlen_kernels.KERNELS, "cpu", loads)
    return choose_kernel(LAYERS, "cpu", dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_first_kernel_with_the_results_of_sdpa_is_chosen(monkeypatch: Any, dtype: Any) -> None:
    found = chosen(monkeypatch, dtype, absent=missing, wrong=across_rows, good=faithful)
    assert found[0] == "good"
    assert "wrong differs" in found[1]


@pytest.mark.parametrize("wrong", [across_rows, without_window, detached, not_finite])
def test_a_kernel_with_other_results_is_not_used(monkeypatch: Any, wrong: Any) -> None:
    name, why = chosen(monkeypatch, kernel=wrong)
    assert name == BY_ROW
    assert "kernel" in why


def test_kernels_are_not_tried_in_float32_or_where_there_are_none(monkeypatch: Any) -> None:
    assert chosen(monkeypatch, None, kernel=faithful)[0] == BY_ROW
    assert chosen(monkeypatch, absent=missing)[0] == BY_ROW
    monkeypatch.undo()
    assert choose_kernel(LAYERS, "cpu", torch.bfloat16)[0] == BY_ROW


def test_a_chosen_kernel_runs_where_it_can_and_sdpa_elsewhere(monkeypatch: Any) -> None:
    calls = []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return faithful(*given)

    monkeypatch.setitem(varlen_kernels.KERNELS, "cpu", {"k": Choice(lambda: counted)})
    rows = Rows((3, 2))
    parts = torch.randn(5, 2, 4), torch.randn(5, 2, 4), torch.randn(5, 2, 4)
    _within_rows(parts, rows, Attention(), "k")
    assert not calls  # float32
    half = parts[0].bfloat16(), parts[1].bfloat16(), parts[2].bfloat16()
    _within_rows(half, rows, Attention(), "k")
    assert len(calls) == 1
    with torch.autocast("cpu", torch.bfloat16):
        out = _within_rows(parts, rows, Attention(), "k")
    assert len(calls) == 2
    assert out.dtype == torch.bfloat16
    wide = Rows((3, 2), steps=(0, 1, 5, 0, 1))
    asked = Attention(window=2, dropout=0.5)
    loaded = varlen_kernels.KERNELS["cpu"]["k"]
    assert not varlen_kernels.runs(loaded, torch.bfloat16, wide, replace(asked, dropout=0.0))
    assert not varlen_kernels.runs(loaded, torch.bfloat16, rows, asked)


def test_torchs_kernel_on_meta_has_the_shapes_of_sdpa() -> None:
    kernel = varlen_kernels.KERNELS["cuda"]["torch varlen_attn"].load()
    for shape, asked in LAYERS:
        heads = (shape.heads, shape.key_heads, shape.key_heads)
        given = [
            torch.empty(5, n, shape.size, dtype=torch.bfloat16, device="meta").requires_grad_()
            for n in heads
        ]
        out = kernel(*given, Rows((3, 2)), asked)
        assert (out.shape, out.dtype) == (given[0].shape, torch.bfloat16)
        back = torch.autograd.grad(out.sum(), given)
        assert [g.shape for g in back] == [g.shape for g in given]


def test_row_lengths_stay_on_the_host() -> None:
    mask = row_lengths_mask([3, 0, 2])
    assert mask.dtype == torch.int64
    assert mask.to("meta") is mask
    assert not mask.to(torch.device("meta"), non_blocking=True).is_meta
    assert read_rows(mask) == Rows((3, 2))
    assert read_rows(mask.clone()) == Rows((3, 2))  # a copy without them is read
    gaps = row_lengths_mask([2, 1], [0, 4, 0])
    assert read_rows(gaps) == read_rows(gaps.clone()) == Rows((2, 1), (0, 4, 0))
    rows = read_rows(mask)
    assert rows.bounds("cpu").tolist() == [0, 3, 5]
    assert rows.bounds("cpu") is rows.bounds("cpu")


def test_without_a_kernel_rows_are_padded_on_a_device(monkeypatch: Any) -> None:
    monkeypatch.setattr(layout, "training_device", lambda: torch.device("cuda"))
    plan = surefit.check(data=echo_rows(30), model="tiny:llama", generate={"rows": 0})
    assert plan.choices.rows == "padded"
    assert plan.choices.rows_reason == "varlen kernels need half precision"


def test_compiling_and_padding_free_batches_exclude_each_other() -> None:
    compiled, why = choose_compile("auto", 30, 10**5, on_cuda=True, padding_free=True)
    assert not compiled
    assert "padding-free" in why
    assert choose_compile("auto", 30, 10**5, on_cuda=True)[0]
    plan = surefit.check(data=echo_rows(30), model="tiny:llama", compile="on", generate={"rows": 0})
    assert plan.choices.compile.compiled
    assert plan.choices.rows == "padded"
