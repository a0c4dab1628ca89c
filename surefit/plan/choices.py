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
from surefit.batches.field import IGNORE_INDEX, SEQUENCES
from surefit.encode.store import Store
from surefit.findings import Finding, rule
from surefit.kernels.choose_head import as_choice, choose_head
from surefit.kernels.compiling import choose_compile, repeated_layers
from surefit.kernels.varlen_attention import (
    find_attention_limit,
    restore_attention,
    same_logits,
    use_varlen_attention,
)
from surefit.pipeline.open_pipeline import apply_choices
from surefit.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
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
    why="Padding-free batches are faster, but the model's attention does not support them.",
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
Rows = Sequence[Mapping[str, Any]]
Choices = dict[str, Any]


def choose_layout(
    pipeline: Pipeline, train: Store, longest: int, may_join: bool, earlier: Mapping[str, Any]
) -> tuple[tuple[Pipeline, Choices], list[Finding]]:
    """The Pipeline with the chosen head and batch layout, and the choices.

    `earlier` are the choices of a resumed run; `may_join` allows padding-free batches.
    """
    head_spec = pipeline.task.head
    predicts = head_spec.predicts if head_spec is not None else None
    if predicts is None or pipeline.collate_fn is not None:
        return (pipeline, {}), []
    if earlier:
        chosen = apply_choices(pipeline, earlier)
        return (chosen, {"head": earlier["head"], "rows": _shown(chosen.layout)}), []
    rows = _few_tokens(pipeline, train)
    batch = pipeline.collate(rows, Layout(predicts=predicts))
    head, why = choose_head(pipeline.module, pipeline.outputs, batch)
    choices = {"head": as_choice(head), "rows": "padded"}
    if head is None:
        found = HEAD_EVERYWHERE.finding(f"Logits are computed at every token: {why}.")
        return (pipeline, choices), [found]
    layout, notes = Layout(predicts=predicts), []
    if may_join:
        refused = _why_not_padding_free(pipeline, rows, longest)
        layout = replace(layout, padding_free=refused is None)
        if refused is not None:
            notes = [ROWS_PADDED.finding(f"Batches are padded: {refused}.")]
    call = replace(pipeline.call, head=head)
    made = replace(pipeline, call=call, layout=layout)
    return (made, {**choices, "rows": _shown(layout)}), notes


def _shown(layout: Layout) -> str:
    return PADDING_FREE if layout.padding_free else "padded"


def choose_compiling(
    module: nn.Module, num_steps: int, wanted: str, earlier: Mapping[str, Any]
) -> tuple[Choices, list[Finding]]:
    """Whether the model's layers are compiled, and the reason."""
    import torch

    if "compile" in earlier:
        return {"compile": earlier["compile"]}, []
    layers, on_cuda = len(repeated_layers(module)), torch.cuda.is_available()
    compiled, why = choose_compile(wanted, layers, num_steps, on_cuda)
    found = []
    if wanted == "on" and not compiled:
        found = [NOT_COMPILED.finding(f"The model is not compiled: {why}.")]
    return {"compile": {"compiled": compiled, "why": why}}, found


def _why_not_padding_free(pipeline: Pipeline, rows: Rows, longest: int) -> str | None:
    """Why padding-free batches would not give the logits of padded ones; None if they do."""
    import torch

    fields, module = pipeline.fields, pipeline.module
    in_rows = all(not spec.axes or starts_in_time(spec) for spec in fields.values())
    lead = next(name for name in SEQUENCES if name in fields)
    axes = {spec.axes[0] for spec in fields.values() if spec.axes}
    if not in_rows or axes != {fields[lead].axes[0]}:
        return "its columns are not all aligned with one sequence"
    if "attention_mask" not in pipeline.call.arguments:
        return "the model has no argument attention_mask"
    if not use_varlen_attention(module):
        return "the model's attention cannot be replaced"
    limit = find_attention_limit(module, longest)
    why = f"the model's attention does not cover whole rows ({limit})" if limit else None
    if why is None:
        padded, varlen = pipeline.collate(rows), pipeline.collate(rows, Layout(padding_free=True))
        training = module.training
        module.eval()
        try:
            with torch.no_grad():
                expected = pipeline.outputs(padded).logits
                logits = pipeline.outputs(varlen).logits
            if not same_logits(expected, logits, varlen["row_lengths"]):
                why = "its logits differ in padding-free batches"
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
            why = f"the model fails on padding-free batches ({type(error).__name__})"
        finally:
            module.train(training)
    if why is not None:
        restore_attention(module)
    return why


def _few_tokens(pipeline: Pipeline, train: Store) -> Rows:
    """The first tokens of two real rows of different length, two thirds of them labelled."""
    chosen = [int(train.lengths.argmax()), int(train.lengths.argmin())]
    fields, prepare = pipeline.fields, pipeline.prepare
    rows = []
    for number, limit in zip(chosen, (PROBED_TOKENS, PROBED_TOKENS * 2 // 3), strict=True):
        row = dict(train.row(number))
        if prepare is not None:
            row = dict(prepare(row, 0, int(train.source_row[number]), int(train.copy[number])))
        row = {n: v[:limit] if starts_in_time(fields[n]) else v for n, v in row.items()}
        labels = row["labels"].copy()
        if fields["labels"].aligned_with is not None:
            labels = np.where(labels == IGNORE_INDEX, row["input_ids"], labels)
        labels[2::3] = IGNORE_INDEX
        rows.append({**row, "labels": labels})
    return rows
