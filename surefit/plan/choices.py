"""Chooses a sparse head, padding-free batches and compilation by testing them on the model.

A choice is used only if a few real tokens show the results of the full head and of padded batches.
The plan stores the choices, and a resumed run uses them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.batch_layout import PADDING_FREE, Layout
from surefit.batches.collate import starts_in_time
from surefit.batches.field import IGNORE_INDEX, SEQUENCES, Field
from surefit.encode.store import Store
from surefit.findings import Finding, rule
from surefit.kernels.choose_head import as_choice, choose_head
from surefit.kernels.compiling import choose_compile, repeated_layers
from surefit.kernels.packed_body import find_varlen
from surefit.kernels.varlen_attention import (
    find_attention_limit,
    find_pretrained,
    observed_layers,
    restore_attention,
    use_varlen_attention,
)
from surefit.pipeline.open_pipeline import apply_choices, label_smoothing
from surefit.pipeline.pipeline import Pipeline
from surefit.plan.choose_attention import choose_attention
from surefit.plan.prove_layout import why_layout_differs

if TYPE_CHECKING:
    import torch
    from torch import nn

HEAD_EVERYWHERE = rule(
    "SF500",
    "info",
    "full head used",
    why="The model allows no sparse head, so logits are also computed at tokens without a label.",
    fix="Nothing to do; the results are the same, at the cost of time and memory.",
)

ROWS_PADDED = rule(
    "SF501",
    "info",
    "rows are padded",
    why=(
        "Padding-free batches compute nothing at padding and are shuffled freely, but this model "
        "does not support them."
    ),
    fix="Nothing to do; padding_free=off skips the test.",
)

NOT_COMPILED = rule(
    "SF502",
    "info",
    "nothing to compile",
    why="compile=on compiles the repeated layers of a model, and this model has none.",
    fix="Nothing to do; the results are the same.",
)

PROBED_TOKENS = 24
MOST_PROBED_TOKENS = 1024
"""Rows that show the limit of a model's attention are not tested beyond this length."""
CHOSEN = ("head", "rows", "rows_reason", "attention")
"""The choices of `choose_layout` in plan.json."""
Rows = Sequence[Mapping[str, Any]]
Choices = dict[str, Any]


def choose_layout(
    pipeline: Pipeline,
    train: Store,
    longest: int,
    may_join: bool,
    earlier: Mapping[str, Any],
    dtype: torch.dtype | None = None,
) -> tuple[tuple[Pipeline, Choices], list[Finding]]:
    """The Pipeline with the chosen head and batch layout, and the choices.

    `earlier` are the choices of a resumed run; `may_join` allows padding-free batches; `dtype` is
    the lower precision of mixed precision.
    """
    if find_sequence(pipeline.fields) is None or pipeline.collate_fn is not None:
        return (pipeline, {}), []
    if earlier:  # a plan without "rows" is that of an earlier version, which padded
        chosen = apply_choices(pipeline, earlier)
        kept = {name: earlier[name] for name in CHOSEN if name in earlier}
        return (chosen, {**kept, "rows": _shown(chosen.layout)}), []
    made, choices, notes = _with_head(pipeline, train)
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
            return (varlen, {**choices, "rows": PADDING_FREE, **attention}), notes
        notes.append(ROWS_PADDED.finding(f"Batches are padded: {refused}."))
    return (made, {**choices, "rows": "padded", "rows_reason": refused}), notes


def _with_head(pipeline: Pipeline, train: Store) -> tuple[Pipeline, Choices, list[Finding]]:
    """The Pipeline with a sparse head, where the task predicts tokens and the model allows one."""
    predicts = pipeline.task.head.predicts if pipeline.task.head is not None else None
    if predicts is None:
        return pipeline, {}, []
    batch = pipeline.collate(_few_rows(pipeline, train), Layout(predicts=predicts))
    head, why = choose_head(pipeline.module, pipeline.outputs, batch)
    if head is None:
        found = HEAD_EVERYWHERE.finding(f"Logits are computed at every token: {why}.")
        return pipeline, {"head": as_choice(head)}, [found]
    head = replace(head, smoothing=label_smoothing(pipeline.encoder))
    call, layout = replace(pipeline.call, head=head), Layout(predicts=predicts)
    return replace(pipeline, call=call, layout=layout), {"head": as_choice(head)}, []


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


def _shown(layout: Layout) -> str:
    return PADDING_FREE if layout.padding_free else "padded"


def choose_compiling(
    module: nn.Module, num_steps: int, wanted: str, layout: Layout, earlier: Mapping[str, Any]
) -> tuple[Choices, list[Finding]]:
    """Whether the model's layers are compiled, and the reason."""
    import torch

    if "compile" in earlier:
        return {"compile": earlier["compile"]}, []
    layers, on_cuda = len(repeated_layers(module)), torch.cuda.is_available()
    compiled, why = choose_compile(wanted, layers, num_steps, on_cuda, layout.padding_free)
    found = []
    if wanted == "on" and not compiled:
        found = [NOT_COMPILED.finding(f"The model is not compiled: {why}.")]
    return {"compile": {"compiled": compiled, "why": why}}, found


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
