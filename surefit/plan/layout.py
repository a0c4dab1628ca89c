"""Chooses head, layout of batches, kernels, precision of frozen weights and compilation.

A head or layout is used only if a few real tokens show the results of the full head and of padded
batches. The plan stores the choices, and a resumed run uses them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.branches import cut_row, is_branched
from surefit.batches.collate import PADDING_FREE
from surefit.batches.field import IGNORE_INDEX, SEQUENCES, Field, starts_in_time
from surefit.batches.permutation import MOST_BLOCK_ROWS, block_rows
from surefit.errors import UsageError
from surefit.findings import Finding
from surefit.inputs.store import Store
from surefit.memory.limit import find_limit
from surefit.memory.predict_peak import stored_bytes, trace_batch, worst_batch
from surefit.models.lora import may_lower
from surefit.pipeline.open_pipeline import Choices, Compiling, apply_choices
from surefit.pipeline.pipeline import Job, Pipeline
from surefit.plan.draft import Draft
from surefit.speed.choose_head import HeadChoice, noting_logits, possible_heads
from surefit.speed.compiling import choose_compile, repeated_layers
from surefit.speed.numerics import (
    largest_difference,
    preserved_state,
    relative_difference,
    tolerance_of,
)
from surefit.speed.varlen_attention import (
    find_attention_limit,
    find_pretrained,
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
SMALL_GRADIENT = 1e-2
"""Gradients below this share of the largest one are compared with that share: the gradient of a
key's bias is zero but for rounding."""
OTHER_GRADIENTS = "its gradients differ in padding-free batches"
OTHER_AUXILIARY = "the model's auxiliary loss differs in padding-free batches"
Rows = Sequence[Mapping[str, Any]]


def choose_layout(d: Draft) -> tuple[Choices, tuple[Finding, ...]]:
    """Return the fastest head and layout that compute what the full head does on padded rows.

    The fastest of both are tried together, and apart only if their results differ.
    """
    if d.loss_fn is not None:
        return Choices(rows="padded", rows_reason="loss_fn computes the loss"), ()
    pipeline = apply_choices(d.probed, d.plan.choices)
    if find_sequence(pipeline.fields) is None or pipeline.collate_fn is not None:
        return Choices(), ()
    longest = max(int(each.lengths.max()) for each in (d.train, d.validation) if len(each))
    may_join = d.config.padding_free != "off" and d.config.compile != "on"
    trial = Trial(pipeline, d.train, longest)
    heads: tuple[HeadChoice | None, ...] = trial.padded.heads if trial.predicts else (None,)

    def joined(head: HeadChoice | None) -> tuple[tuple[Choices, ...], str | None]:
        """Padding-free layouts, the fastest first, or why there is none."""
        is_sparse = head is not None and head.positions == "labelled"
        why = _why_padded(trial, may_join, is_sparse)
        plain = Choices(head, PADDING_FREE)
        if why is not None:
            return (), why
        shares = is_sparse and is_branched(pipeline.fields) and training_device().type == "cpu"
        return ((replace(plain, shared_prompts=True), plain) if shares else (plain,)), None

    with observed_layers() as layers:
        options, why = joined(heads[0])
        chosen = next(iter(options), Choices(heads[0]))
        if trial.why_differs(chosen) is not None:
            chosen = next(each for each in map(Choices, heads) if trial.why_differs(each) is None)
            options, why = joined(chosen.head)
            for each in options:
                why = trial.why_differs(each)
                if why is None:
                    chosen = each
                    break
    if why is None:
        why, attention = choose_attention(layers, d.lower_dtype)
        chosen = replace(chosen, attention=attention)
    if why is None:
        return chosen, ()
    restore_attention(pipeline.module)
    return Choices(chosen.head, "padded", why), ()


@dataclass(frozen=True)
class PaddedPass:
    """What a model computes with the full head on padded rows."""

    loss: torch.Tensor
    count: float
    auxiliary_loss: torch.Tensor | None
    gradients: Mapping[torch.Tensor, torch.Tensor]
    """By weight, of those that have one."""
    heads: tuple[HeadChoice, ...]
    """The heads that its logits suggest, the fastest first."""


class Trial:
    """Runs a few real rows in several layouts; each must give the loss and gradients of padded
    rows.

    Gradients are compared rather than logits: the logits of untrained weights hardly depend on
    their rows, but the gradients of each weight show which tokens attended to which.
    """

    def __init__(self, pipeline: Pipeline, train: Store, longest: int) -> None:
        needed = pipeline.task.head_for(pipeline.encoder)
        self.pipeline, self.train, self.longest = pipeline, train, longest
        self.predicts = needed is not None and needed.predicts is not None
        self.limit = find_attention_limit(pipeline.module, longest)
        """The setting that limits attention within the rows; they have to reach beyond it."""
        self.tokens = PROBED_TOKENS + (self.limit[1] if self.limit is not None else 0)
        self.trained = [each for each in pipeline.module.parameters() if each.requires_grad]

    @cached_property
    def rows(self) -> Rows:
        """The rows that are run."""
        tokens = self.tokens if self.tokens <= MOST_PROBED_TOKENS else PROBED_TOKENS
        return _few_rows(self.pipeline, self.train, tokens)

    @cached_property
    def padded(self) -> PaddedPass:
        """The pass that the others must match; it keeps one gradient of each weight."""
        import torch

        module, batch = self.pipeline.module, self.pipeline.collate(self.rows)
        with preserved_state(module), noting_logits(module) as noted:
            outputs = self.pipeline.outputs(batch)
            loss, count = self.pipeline.by_sequence.loss(outputs, batch)
            gradients = torch.autograd.grad(loss, self.trained, allow_unused=True)
        heads: tuple[HeadChoice, ...] = ()
        if self.predicts:
            heads = possible_heads(
                module, noted, getattr(outputs, "logits", None), batch["labels"].numel()
            )
        known: dict[torch.Tensor, torch.Tensor] = {
            weight: gradient
            for weight, gradient in zip(self.trained, gradients, strict=True)
            if gradient is not None
        }
        added = getattr(outputs, "auxiliary_loss", None)
        return PaddedPass(loss.detach(), float(count), added, known, heads)

    def why_differs(self, choices: Choices) -> str | None:
        """Why a head and a layout would not give the same; None if they do."""
        if choices.rows is None and (choices.head is None or choices.head.positions == "all"):
            return None  # the padded pass itself
        try:
            with preserved_state(self.pipeline.module):
                return self._compare(self.padded, apply_choices(self.pipeline, choices))
        except Exception as error:  # the model's own code may fail in any way
            return f"the model fails on padding-free batches ({type(error).__name__})"

    def _compare(self, padded: PaddedPass, other: Pipeline) -> str | None:
        """Run another layout forward and back; it holds one gradient at a time."""
        import torch

        batch = other.collate(self.rows, other.layout)
        outputs = other.outputs(batch)
        loss, count = other.by_sequence.loss(outputs, batch)
        added, known = getattr(outputs, "auxiliary_loss", None), padded.auxiliary_loss
        if (
            added is not None
            and known is not None
            and not relative_difference(added, known) <= tolerance_of(added).values
        ):
            return OTHER_AUXILIARY
        sizes = (float(each.abs().max()) for each in padded.gradients.values() if each.numel())
        least, same = SMALL_GRADIENT * max(sizes, default=0.0), list[bool]()
        left = {*padded.gradients}

        def compare(weight: torch.Tensor) -> None:
            found, weight.grad = weight.grad, None
            assert found is not None
            left.discard(weight)
            wanted = padded.gradients.get(weight)
            wanted = torch.zeros_like(found) if wanted is None else wanted
            same.append(_close(found, wanted, tolerance_of(found, wanted).gradients, least))

        with _own_gradients(self.trained, compare):
            torch.autograd.backward(loss)
        close = tolerance_of(*(weight.dtype for weight in self.trained)).loss
        none_left = all(not bool(padded.gradients[weight].any()) for weight in left)
        is_same = none_left and all(same) and _close(loss, padded.loss, close, 1e-12)
        return None if is_same and float(count) == padded.count else OTHER_GRADIENTS


@contextmanager
def _own_gradients(
    weights: Sequence[nn.Parameter], take: Callable[[torch.Tensor], None]
) -> Iterator[None]:
    """While the block runs, let weights have no gradients, and `take` those that are computed."""
    before = [weight.grad for weight in weights]
    hooks = []
    try:
        for weight in weights:
            weight.grad = None
            hooks.append(weight.register_post_accumulate_grad_hook(take))  # type: ignore[no-untyped-call]
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for weight, gradient in zip(weights, before, strict=True):
            weight.grad = gradient


def _close(found: torch.Tensor, expected: torch.Tensor, relative: float, least: float) -> bool:
    """Whether they differ by at most a share of the expected size, which is at least `least`."""
    if found.numel() == 0:
        return True
    difference, _, size = largest_difference(found, expected)
    return difference <= relative * max(size, least)


def _why_padded(trial: Trial, may_join: bool, is_sparse: bool) -> str | None:
    """Why padding-free batches are not tried; None where the model now attends within rows."""
    pipeline, train, module = trial.pipeline, trial.train, trial.pipeline.module
    pretrained = find_pretrained(module)
    if not may_join:
        return "padding_free=off or compile=on"
    if not is_sparse and int(train.lengths.min()) == trial.longest:
        return "all rows have the same length"
    if pretrained is None:
        return "the model is not a transformers model"
    if is_sparse and not _in_one_sequence(pipeline.fields):
        return "the task's columns are not all aligned with one sequence"
    if "attention_mask" not in pipeline.call.arguments:
        return "the model has no argument attention_mask"
    if trial.limit is not None and trial.tokens > MOST_PROBED_TOKENS:
        name, value = trial.limit
        return (
            f"the model's attention is limited ({name} = {value}), and this is tested up to "
            f"{MOST_PROBED_TOKENS - PROBED_TOKENS} tokens"
        )
    if not use_varlen_attention(module):
        return f"{type(pretrained).__name__} does not let its attention be replaced"
    return None


def find_sequence(fields: Mapping[str, Field]) -> str | None:
    """Return the column with the tokens or steps of a row; None where rows have none."""
    named = (name for name in SEQUENCES if name in fields)
    return next((name for name in named if starts_in_time(fields[name])), None)


def _in_one_sequence(fields: Mapping[str, Field]) -> bool:
    """Return whether every column is one value per row or aligned with the sequence."""
    lead = find_sequence(fields)
    assert lead is not None
    return all(not f.axes or f.axes[0] == fields[lead].axes[0] for f in fields.values())


def _few_rows(pipeline: Pipeline, train: Store, tokens: int) -> Rows:
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
        if cuts:
            row = cut_row(row, fields, limit)
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
    layers: Sequence[tuple[Shape, Attention]], dtype: torch.dtype | None
) -> tuple[str | None, str | None]:
    """Return why rows are padded after all, or None; and the kernel, as the plan stores it.

    On an accelerator, attention row by row is slower than padding.
    """
    device = training_device()
    if device.type == "cpu":
        return None, None
    kernel, why = choose_kernel(layers, device, dtype)
    return (why, None) if kernel == BY_ROW else (None, kernel)


def choose_compiling(d: Draft) -> tuple[Choices, tuple[Finding, ...]]:
    """Return whether the model's layers are compiled, and the reason."""
    import torch

    job, on_cuda = d.work, torch.cuda.is_available()
    layers, padding_free = len(repeated_layers(job.pipeline.module)), job.batches.padding_free
    compiled, why = choose_compile(d.config.compile, layers, job.num_steps, on_cuda, padding_free)
    if job.parallel == "fsdp" and job.batches.num_processes > 1:
        compiled, why = False, "compiled layers of a sharded model are not tested"
    return Choices(compile=Compiling(compiled, why)), ()


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
        chosen = block_rows(len(train), stored_bytes(train), find_limit(host=True).bytes)
        return chosen if chosen > 1 else None
    stored = earlier.order_block_rows
    if stored is not None and (not 0 < stored <= MOST_BLOCK_ROWS or stored & (stored - 1)):
        raise UsageError(
            f"choices.order_block_rows of the run's plan.json is {stored!r}; expected a power of "
            f"two up to {MOST_BLOCK_ROWS}.",
            "Put back the plan.json that the run was begun with.",
        )
    return stored
