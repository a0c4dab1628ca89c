"""Chooses a sparse head, padding-free batches and compilation by testing them on the model.

A choice is used only if a few real tokens show the results of the full head and of padded batches.
The plan stores the choices, and a resumed run uses them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.collate import Layout, starts_in_time
from surefit.batches.cut_steps import MOST_BLOCK_ROWS, block_rows
from surefit.batches.field import IGNORE_INDEX, SEQUENCES, Field
from surefit.errors import UsageError, describe_error
from surefit.findings import Finding
from surefit.inputs.store import Store
from surefit.memory.limit import find_limit
from surefit.memory.predict_peak import device_seconds, trace_batch, worst_batch
from surefit.models.frozen_precision import may_lower
from surefit.pipeline.open_pipeline import Choices, Compiling, label_smoothing
from surefit.pipeline.pipeline import Job, Pipeline
from surefit.plan.draft import Draft
from surefit.plan.prove_layout import why_layout_differs
from surefit.speed.choose_head import as_choice, choose_head
from surefit.speed.compiling import choose_compile, repeated_layers
from surefit.speed.numerics import preserved_state
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
    """The Pipeline with the chosen head and batch layout, and the choices.

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
            refused, attention = choose_attention(made, varlen, train, layers, dtype)
        if refused is None:
            return varlen, replace(choices, rows="padding-free", attention=attention)
    return made, replace(choices, rows="padded", rows_reason=refused)


def _with_head(pipeline: Pipeline, train: Store) -> tuple[Pipeline, Choices]:
    """The Pipeline with a sparse head, where the task predicts tokens and the model allows one."""
    predicts = pipeline.task.head.predicts if pipeline.task.head is not None else None
    if predicts is None:
        return pipeline, Choices()
    batch = pipeline.collate(_few_rows(pipeline, train), Layout(predicts=predicts))
    head, why = choose_head(pipeline.module, pipeline.outputs, batch)
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
    """Whether the model's layers are compiled, and the reason."""
    import torch

    job, on_cuda = d.work, torch.cuda.is_available()
    layers, padding_free = len(repeated_layers(job.pipeline.module)), job.batches.padding_free
    compiled, why = choose_compile(d.config.compile, layers, job.num_steps, on_cuda, padding_free)
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
    """The column with the tokens or steps of a row; None where rows have none."""
    named = (name for name in SEQUENCES if name in fields)
    return next((name for name in named if starts_in_time(fields[name])), None)


def _in_one_sequence(fields: Mapping[str, Field]) -> bool:
    """Whether every column is one value per row or aligned with the sequence."""
    lead = find_sequence(fields)
    assert lead is not None
    return all(not f.axes or f.axes[0] == fields[lead].axes[0] for f in fields.values())


def _few_rows(pipeline: Pipeline, train: Store, tokens: int = PROBED_TOKENS) -> Rows:
    """Two real rows of different length, cut to a few tokens if no column prevents it.

    Where tokens are predicted, two thirds of them are labelled.
    """
    fields, prepare = pipeline.fields, pipeline.prepare
    predicts = pipeline.task.head.predicts if pipeline.task.head is not None else None
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
        if cuts:
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


TIMED_ROWS = 16
TIMED_PASSES = 3
"""The first one also loads kernels; the fastest counts."""


def choose_attention(
    padded: Pipeline,
    varlen: Pipeline,
    train: Store,
    layers: Sequence[tuple[Shape, Attention]],
    dtype: torch.dtype | None,
) -> tuple[str | None, str | None]:
    """Why rows are padded after all, or None; and the kernel, as the plan stores it."""
    device = training_device()
    if device.type == "cpu":
        return None, None
    kernel, why = choose_kernel(layers, device, dtype)
    if kernel != BY_ROW:
        use_varlen_attention(varlen.module, kernel)
        return None, kernel
    refused = why_padding_is_faster(padded, varlen, train, device, dtype)
    if refused is not None:
        restore_attention(varlen.module)
        refused = f"{refused} ({why})"
    return refused, None


def training_device() -> torch.device:
    """The device that a run on this machine is trained on."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def why_padding_is_faster(
    padded: Pipeline, varlen: Pipeline, train: Store, device: torch.device, dtype: Any
) -> str | None:
    """Time a micro-batch in both layouts on the device; None where padding is slower."""
    module = padded.module
    home = padded.device
    rows = np.arange(min(TIMED_ROWS, len(train)))
    try:
        if home != device:
            module.to(device)
        with preserved_state(module):
            with_padding, without = (
                fastest_pass(each, each.batch(train, rows), dtype) for each in (padded, varlen)
            )
    except Exception as error:  # the device may be too small, or lack an operation
        return f"padding-free batches could not be timed on {device.type}: {describe_error(error)}"
    finally:
        if home != device:
            module.to(home)
    if without <= with_padding:
        return None
    return (
        f"{len(rows)} rows take {with_padding * 1000:.0f} ms padded and {without * 1000:.0f} ms "
        f"padding-free on {device.type}"
    )


def fastest_pass(pipeline: Pipeline, batch: Any, dtype: Any) -> float:
    """Seconds of a forward and backward pass."""
    import torch

    kind = torch.device(pipeline.device).type
    trained = [weight for weight in pipeline.module.parameters() if weight.requires_grad]
    seconds = []
    for _ in range(TIMED_PASSES):
        began = device_seconds()
        with torch.autocast(kind, dtype, enabled=dtype is not None):
            loss = pipeline.loss(pipeline.outputs(batch), batch)[0]
        torch.autograd.grad(loss, trained, allow_unused=True)
        seconds.append(device_seconds() - began)
    return min(seconds)


def choose_frozen(d: Draft) -> tuple[tuple[Job, Choices], tuple[Finding, ...]]:
    """The Job with the precision of its frozen matrices, and the choice as the plan stores it.

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
