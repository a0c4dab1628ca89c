"""Chooses a sparse head, padding-free batches and compilation by testing them on the model.

A choice is used only if a few real tokens show the results of the full head and of padded batches.
The plan stores the choices, and a resumed run uses them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.branches import cut_branches, is_branched
from surefit.batches.collate import Layout, starts_in_time
from surefit.batches.cut_steps import MOST_BLOCK_ROWS, block_rows
from surefit.batches.field import IGNORE_INDEX, SEQUENCES, Field
from surefit.errors import UsageError
from surefit.findings import Finding
from surefit.inputs.store import Store
from surefit.memory.limit import find_limit
from surefit.memory.predict_peak import trace_batch, worst_batch
from surefit.models.lora import may_lower
from surefit.pipeline.open_pipeline import Choices, Compiling, label_smoothing
from surefit.pipeline.pipeline import Job, Pipeline
from surefit.plan.draft import Draft
from surefit.speed.choose_head import as_choice, choose_head
from surefit.speed.compiling import choose_compile, repeated_layers
from surefit.speed.numerics import largest_difference, preserved_state, tolerance_of
from surefit.speed.varlen_attention import (
    find_attention_limit,
    find_pretrained,
    find_varlen,
    observed_layers,
    restore_attention,
    use_varlen_attention,
)
from surefit.speed.varlen_kernels import BY_ROW, Attention, Shape, choose_kernel

if TYPE_CHECKING:
    import torch
    from torch import nn


PROBED_TOKENS = 24
MOST_PROBED_TOKENS = 1024
"""Rows that show the limit of a model's attention are not tested beyond this length."""
Rows = Sequence[Mapping[str, Any]]


def choose_layout(
    pipeline: Pipeline,
    train: Store,
    longest: int,
    may_join: bool,
    dtype: torch.dtype | None = None,
) -> tuple[Pipeline, Choices]:
    """Return the Pipeline with the chosen head and batch layout, and the choices.

    `may_join` allows padding-free batches; `dtype` is the lower precision of mixed precision.
    """
    if find_sequence(pipeline.fields) is None or pipeline.collate_fn is not None:
        return pipeline, Choices()
    made, choices = _with_head(pipeline, train)
    layout = replace(made.layout, padding_free=True, body_only=made.layout.predicts is None)
    refused = _why_padded_anyway(made, train, longest, may_join)
    if refused is None:
        call = replace(made.call, varlen=find_varlen(made.module))
        varlen = replace(made, call=call)
        with observed_layers() as layers:
            refused = _why_not_padding_free(varlen, train, longest, layout)
        if refused is None:
            varlen = replace(varlen, layout=layout)
            refused, attention = choose_attention(made.module, layers, dtype)
        if refused is None:
            choices = replace(choices, rows="padding-free", attention=attention)
            if attention is None and _may_share_prompts(varlen, train):
                varlen = replace(varlen, layout=replace(layout, shares_prompt=True))
                choices = replace(choices, shared_prompts=True)
            return varlen, choices
    return made, replace(choices, rows="padded", rows_reason=refused)


def _may_share_prompts(varlen: Pipeline, train: Store) -> bool:
    """Return whether two answers may share the computation of their prompt; kernels of devices
    do not attend so."""
    layout = varlen.layout
    if not is_branched(varlen.fields) or layout.body_only:
        return False
    shared = replace(layout, shares_prompt=True)
    return why_layout_differs(varlen, _few_rows(varlen, train), shared) is None


def _with_head(pipeline: Pipeline, train: Store) -> tuple[Pipeline, Choices]:
    """The Pipeline with a sparse head, where the task predicts tokens and the model allows one."""
    needed = pipeline.task.head_for(pipeline.encoder)
    predicts = needed.predicts if needed is not None else None
    if predicts is None:
        return pipeline, Choices()
    batch = pipeline.collate(_few_rows(pipeline, train), Layout(predicts=predicts))
    by_token = needed is not None and needed.by_token
    head, why = choose_head(pipeline.module, pipeline.outputs, batch, by_token)
    if head is None:
        return pipeline, Choices(as_choice(None, why))
    head = replace(head, smoothing=label_smoothing(pipeline.encoder))
    call, layout = replace(pipeline.call, head=head), Layout(predicts=predicts)
    return replace(pipeline, call=call, layout=layout), Choices(as_choice(head))


def _why_padded_anyway(
    pipeline: Pipeline, train: Store, longest: int, may_join: bool
) -> str | None:
    """Why padding-free batches are not tried, where this is no limit of the model."""
    if not may_join:
        return "padding_free=off or compile=on"
    if pipeline.layout.predicts is None and int(train.lengths.min()) == longest:
        return "all rows have the same length"
    if find_pretrained(pipeline.module) is None:
        return "the model is not a transformers model"
    return None


def choose_compiling(d: Draft) -> tuple[Choices, tuple[Finding, ...]]:
    """Return whether the model's layers are compiled, and the reason."""
    import torch

    job, on_cuda = d.work, torch.cuda.is_available()
    layers, padding_free = len(repeated_layers(job.pipeline.module)), job.batches.padding_free
    compiled, why = choose_compile(d.config.compile, layers, job.num_steps, on_cuda, padding_free)
    if job.parallel == "fsdp" and job.batches.num_processes > 1:
        compiled, why = False, "compiled layers of a sharded model are not tested"
    return Choices(compile=Compiling(compiled, why)), ()


def _why_not_padding_free(
    pipeline: Pipeline, train: Store, longest: int, layout: Layout
) -> str | None:
    """Why padding-free batches would not compute what padded ones do; None if they do."""
    fields, module = pipeline.fields, pipeline.module
    if not layout.body_only and not _in_one_sequence(fields):
        return "the task's columns are not all aligned with one sequence"
    if "attention_mask" not in pipeline.call.arguments:
        return "the model has no argument attention_mask"
    limit = find_attention_limit(module, longest)
    tokens = PROBED_TOKENS if limit is None else limit[1] + PROBED_TOKENS
    if limit is not None and tokens > MOST_PROBED_TOKENS:
        name, value = limit
        return (
            f"the model's attention is limited ({name} = {value}), and this is tested up to "
            f"{MOST_PROBED_TOKENS - PROBED_TOKENS} tokens"
        )
    if not use_varlen_attention(module):
        return f"{type(find_pretrained(module)).__name__} does not let its attention be replaced"
    why = why_layout_differs(pipeline, _few_rows(pipeline, train, tokens), layout)
    if why is not None:
        restore_attention(module)
    return why


def find_sequence(fields: Mapping[str, Field]) -> str | None:
    """Return the column with the tokens or steps of a row; None where rows have none."""
    named = (name for name in SEQUENCES if name in fields)
    return next((name for name in named if starts_in_time(fields[name])), None)


def _in_one_sequence(fields: Mapping[str, Field]) -> bool:
    """Return whether every column is one value per row or aligned with the sequence."""
    lead = find_sequence(fields)
    assert lead is not None
    return all(not f.axes or f.axes[0] == fields[lead].axes[0] for f in fields.values())


def _few_rows(pipeline: Pipeline, train: Store, tokens: int = PROBED_TOKENS) -> Rows:
    """Two real rows of different length, cut to a few tokens if no column prevents it.

    Where tokens are predicted, two thirds of them are labelled.
    """
    fields, prepare = pipeline.fields, pipeline.prepare
    needed = pipeline.task.head_for(pipeline.encoder)
    predicts = needed.predicts if needed is not None else None
    cuts = predicts is not None or _in_one_sequence(fields)
    chosen = [int(train.lengths.argmax()), int(train.lengths.argmin())]
    if not cuts:  # the shortest row, and the shortest of the longer ones
        longer = np.where(train.lengths > train.lengths.min(), train.lengths, train.lengths.max())
        chosen[0] = int(longer.argmin())
    rows = []
    for number, limit in zip(chosen, (tokens, PROBED_TOKENS * 2 // 3), strict=True):
        row = dict(train.row(number))
        if prepare is not None:
            row = dict(prepare(row, 0, int(train.source_row[number]), int(train.copy[number])))
        if cuts and is_branched(row):
            row = cut_branches(row, fields, limit)
        elif cuts:
            row = {n: v[:limit] if starts_in_time(fields[n]) else v for n, v in row.items()}
        if predicts is not None:
            row["labels"] = _label_two_thirds(row, fields["labels"])
        rows.append(row)
    return rows


def _label_two_thirds(row: Mapping[str, Any], field: Field) -> Any:
    labels = row["labels"].copy()
    if field.aligned_with is not None:
        labels = np.where(labels == IGNORE_INDEX, row["input_ids"], labels)
    labels[2::3] = IGNORE_INDEX
    return labels


def choose_attention(
    module: nn.Module, layers: Sequence[tuple[Shape, Attention]], dtype: torch.dtype | None
) -> tuple[str | None, str | None]:
    """Return why rows are padded after all, or None; and the kernel, as the plan stores it.

    On an accelerator, attention row by row is slower than padding.
    """
    device = training_device()
    if device.type == "cpu":
        return None, None
    kernel, why = choose_kernel(layers, device, dtype)
    if kernel == BY_ROW:
        restore_attention(module)
        return why, None
    use_varlen_attention(module, kernel)
    return None, kernel


def training_device() -> torch.device:
    """Return the device that a run on this machine is trained on."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def choose_frozen(d: Draft) -> tuple[tuple[Job, Choices], tuple[Finding, ...]]:
    """Return the Job with the precision of its frozen matrices, and the choice as the plan stores
    it.

    In mixed precision, matrix products with frozen weights are computed in the lower precision; on
    every device they may as well be stored in it. A model whose own code reads the dtype of its
    weights may fail then: its step is tried on the meta device.
    """
    job, dtype, earlier = d.work, d.work.autocast_dtype, d.request.choices
    unchanged = (job, d.plan.choices), ()
    if job.parallel == "fsdp":  # it divides layers whose weights have one precision
        return unchanged
    if dtype is None or (earlier is not None and earlier.frozen is None):
        return unchanged
    if not may_lower(job.pipeline.module, d.source):
        return unchanged
    lowered = replace(job, frozen_dtype=dtype)
    if earlier is None:
        try:
            trace_batch(lowered, *lowered.on_meta, worst_batch(lowered))
        except Exception:  # the model's own code may fail on the meta device in any way
            fresh = replace(job.pipeline)  # without the copy whose weights were cast
            return (replace(job, pipeline=fresh), d.plan.choices), ()
    choices = replace(d.plan.choices, frozen=str(dtype).removeprefix("torch."))
    return (lowered, choices), ()


def choose_block_rows(train: Store, earlier: Choices | None) -> int | None:
    """Return the rows of a block that are shuffled together; None where rows are alone."""
    if earlier is None:
        size = sum(int(train.values(name).nbytes) for name in train.fields)
        chosen = block_rows(len(train), size, find_limit(host=True).bytes)
        return chosen if chosen > 1 else None
    stored = earlier.order_block_rows
    if stored is not None and (not 0 < stored <= MOST_BLOCK_ROWS or stored & (stored - 1)):
        raise UsageError(
            f"choices.order_block_rows of the run's plan.json is {stored!r}; expected a power of "
            f"two up to {MOST_BLOCK_ROWS}.",
            "Put back the plan.json that the run was begun with.",
        )
    return stored


SMALL_GRADIENT = 1e-2
"""Gradients below this share of the largest one are compared with that share: the gradient of a
key's bias is zero but for rounding."""


def why_layout_differs(
    pipeline: Pipeline, rows: Sequence[Mapping[str, Any]], layout: Layout
) -> str | None:
    """Why the padding-free layout does not compute what the padded one does; None if it does.

    Gradients are compared rather than logits: the logits of untrained weights hardly depend on
    their rows, but the gradients of each weight show which tokens attended to which.
    The pipeline's Call already has the head and the varlen attention that training would use.
    """
    padded = pipeline.collate(rows, Layout(predicts=layout.predicts))
    varlen = pipeline.collate(rows, layout)
    try:
        with preserved_state(pipeline.module):
            if not _same_gradients(pipeline, padded, varlen):
                return "its gradients differ in padding-free batches"
    except Exception as error:  # the model's own code may fail in any way
        return f"the model fails on padding-free batches ({type(error).__name__})"
    return None


def _same_gradients(
    pipeline: Pipeline, padded: Mapping[str, Any], varlen: Mapping[str, Any]
) -> bool:
    """Whether loss and gradients are the same; holds one gradient of each weight at a time."""
    import torch

    trained = [weight for weight in pipeline.module.parameters() if weight.requires_grad]
    loss = _loss(pipeline, padded)
    gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    expected: dict[torch.Tensor, torch.Tensor] = {
        weight: gradient
        for weight, gradient in zip(trained, gradients, strict=True)
        if gradient is not None
    }
    del gradients
    sizes = (float(each.abs().max()) for each in expected.values() if each.numel())
    largest = max(sizes, default=0.0)
    same = []

    def compare(weight: torch.Tensor) -> None:
        found, weight.grad = weight.grad, None
        wanted = expected.pop(weight, None)
        assert found is not None
        wanted = torch.zeros_like(found) if wanted is None else wanted
        close = tolerance_of(found, wanted).gradients
        same.append(_close(found, wanted, close, SMALL_GRADIENT * largest))

    before = [weight.grad for weight in trained]
    hooks = []
    try:
        for weight in trained:
            weight.grad = None
            hooks.append(weight.register_post_accumulate_grad_hook(compare))  # type: ignore[no-untyped-call]
        other = _loss(pipeline, varlen)
        torch.autograd.backward(other)
    finally:
        for hook in hooks:
            hook.remove()
        for weight, gradient in zip(trained, before, strict=True):
            weight.grad = gradient
    none_left = all(not bool(gradient.any()) for gradient in expected.values())
    close = tolerance_of(*(weight.dtype for weight in trained)).loss
    return none_left and all(same) and _close(other, loss, close, 1e-12)


def _loss(pipeline: Pipeline, batch: Mapping[str, Any]) -> torch.Tensor:
    return pipeline.by_sequence.loss(pipeline.outputs(batch), batch)[0]


def _close(found: torch.Tensor, expected: torch.Tensor, relative: float, least: float) -> bool:
    """Whether they differ by at most a share of the expected size, which is at least `least`."""
    if found.numel() == 0:
        return True
    difference, _, size = largest_difference(found, expected)
    return difference <= relative * max(size, least)
