"""Choices made by trying them on the model: where the head is computed, how rows lie in a batch.

Each is proved equal to the plain way on a few real tokens, or not taken. The plan keeps what was
chosen, and a resumed run takes it as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from surefit.batches.batch_layout import Layout
from surefit.batches.collate import starts_in_time
from surefit.batches.field import IGNORED, SEQUENCES
from surefit.batches.loading import to_batch
from surefit.config import RunConfig
from surefit.encode.store import Store
from surefit.findings import Finding, rule
from surefit.kernels.choose_head import as_choice, choose_head, from_choice
from surefit.kernels.compiling import choose_compile, repeated_layers
from surefit.kernels.varlen_attention import (
    keep_rows_apart,
    same_logits,
    sees_whole_rows,
    stop_keeping_apart,
)
from surefit.plan.build_model import Fitted
from surefit.plan.plan import Given
from surefit.tasks.task_spec import TaskSpec

HEAD_EVERYWHERE = rule(
    "SF500",
    "info",
    "head computed at every position",
    why="Logits at positions without a label cost time and memory and are not used.",
    fix="Nothing to do; the results are the same.",
)

ROWS_PADDED = rule(
    "SF501",
    "info",
    "rows are padded",
    why="Rows laid end to end need no padding, but only some models can keep them apart.",
    fix="Nothing to do; padding_free=off leaves the question out.",
)

NOT_COMPILED = rule(
    "SF502",
    "info",
    "nothing to compile",
    why="compile=on compiles the layers that a model repeats, and this model repeats none.",
    fix="Nothing to do; the run is the same without it.",
)


PROBED_TOKENS = 24
Rows = Sequence[Mapping[str, Any]]


def choose_ways(
    fitted: Fitted,
    task: TaskSpec,
    train: Store,
    longest: int,
    config: RunConfig,
    given: Given,
    found: list[Finding],
) -> tuple[Fitted, dict[str, Any]]:
    """The model as it will be called, and the choices for the plan to keep."""
    learns = task.head.learns if task.head is not None else None
    if learns is None or given.loss_fn is not None or given.collate_fn is not None:
        return fitted, {}
    rows = _few_tokens(fitted, task, train, config.seed)
    if given.choices:
        head = from_choice(fitted.module, given.choices["head"])
    else:
        batch = to_batch(rows, fitted.fields, layout=Layout(learns=learns))
        head, why = choose_head(fitted.module, partial(fitted.call, fitted.module), batch)
        if head is None:
            found.append(HEAD_EVERYWHERE.finding(f"The head is computed at every position: {why}."))
    choices = {"head": as_choice(head), "rows": "padded"}
    if head is None:
        return fitted, choices
    layout = Layout(learns=learns)
    if given.choices:
        keeps = given.choices["rows"] == "end to end" and keep_rows_apart(fitted.module)
    else:
        keeps = _may_lie_end_to_end(fitted, rows, longest, config, found)
    if keeps:
        layout, choices["rows"] = replace(layout, end_to_end=True), "end to end"
    return replace(fitted, call=replace(fitted.call, head=head), layout=layout), choices


def choose_compiling(
    fitted: Fitted, num_steps: int, config: RunConfig, given: Given, found: list[Finding]
) -> dict[str, Any]:
    """Whether the model's layers are compiled, and why, for the plan to keep."""
    import torch

    if given.choices and "compile" in given.choices:
        return {"compile": given.choices["compile"]}
    layers, on_cuda = len(repeated_layers(fitted.module)), torch.cuda.is_available()
    compiled, why = choose_compile(config.compile, layers, num_steps, on_cuda)
    if config.compile == "on" and not compiled:
        found.append(NOT_COMPILED.finding(f"The model is not compiled: {why}."))
    return {"compile": {"compiled": compiled, "why": why}}


def _may_lie_end_to_end(
    fitted: Fitted, rows: Rows, longest: int, config: RunConfig, found: list[Finding]
) -> bool:
    """Whether rows may be laid end to end, and are to be; the model is then set up for it."""
    if config.padding_free == "off" or config.compile == "on":
        return False
    why = _cannot_keep_apart(fitted, rows, longest)
    if why is not None:
        found.append(ROWS_PADDED.finding(f"Rows are padded to a common length: {why}."))
    return why is None


def _cannot_keep_apart(fitted: Fitted, rows: Rows, longest: int) -> str | None:
    """Why rows end to end would not give the logits of padded ones; None where they do."""
    import torch

    in_rows = all(not spec.axes or starts_in_time(spec) for spec in fitted.fields.values())
    lead = next(name for name in SEQUENCES if name in fitted.fields)
    axes = {spec.axes[0] for spec in fitted.fields.values() if spec.axes}
    if not in_rows or axes != {fitted.fields[lead].axes[0]}:
        return "its columns do not all run along one sequence"
    if "attention_mask" not in fitted.call.arguments:
        return "the model takes no attention mask"
    if not keep_rows_apart(fitted.module):
        return "the model's attention cannot be exchanged"
    limit = sees_whole_rows(fitted.module, longest)
    why = f"the model does not see whole rows ({limit})" if limit else None
    if why is None:
        padded = to_batch(rows, fitted.fields)
        joined = to_batch(rows, fitted.fields, layout=Layout(end_to_end=True))
        training = fitted.module.training
        fitted.module.eval()
        try:
            with torch.no_grad():
                expected = fitted.call(fitted.module, padded).logits
                logits = fitted.call(fitted.module, joined).logits
            if not same_logits(expected, logits, joined["row_lengths"]):
                why = "the model does not keep rows that lie end to end apart"
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
            why = f"the model fails on rows that lie end to end ({type(error).__name__})"
        finally:
            fitted.module.train(training)
    if why is not None:
        stop_keeping_apart(fitted.module)
    return why


def _few_tokens(fitted: Fitted, task: TaskSpec, train: Store, seed: int) -> Rows:
    """The beginnings of two real rows, of unequal length; two of three of their tokens learned."""
    chosen = [int(train.lengths.argmax()), int(train.lengths.argmin())]
    prepare = task.preparer(fitted.encoder, seed)
    rows = []
    for number, limit in zip(chosen, (PROBED_TOKENS, PROBED_TOKENS * 2 // 3), strict=True):
        row = dict(train.row(number))
        if prepare is not None:
            row = dict(prepare(row, 0, int(train.source_row[number]), int(train.view[number])))
        row = {n: v[:limit] if starts_in_time(fitted.fields[n]) else v for n, v in row.items()}
        labels = row["labels"].copy()
        if fitted.fields["labels"].aligned_with is not None:
            labels = np.where(labels == IGNORED, row["input_ids"], labels)
        labels[2::3] = IGNORED
        rows.append({**row, "labels": labels})
    return rows
