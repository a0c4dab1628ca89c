"""The Pipeline of a finished run: the saved model, read and called as in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.batches.batch_layout import PADDED, PADDING_FREE, Layout
from surefit.encode.encoder import Encoder
from surefit.kernels.choose_head import from_choice
from surefit.kernels.packed_body import find_varlen
from surefit.kernels.varlen_attention import use_varlen_attention
from surefit.kernels.varlen_kernels import BY_ROW
from surefit.models.auxiliary_loss import find_auxiliary_loss
from surefit.models.call import Names, OwnLoss, TargetUse, match_arguments, with_module_loss
from surefit.models.class_scores import StepScores
from surefit.models.save_model import load_model
from surefit.pipeline.pipeline import Pipeline, batch_columns, expect_scores, only_read
from surefit.pipeline.row_groups import RowGroups
from surefit.tasks.class_loss import read_class_loss
from surefit.tasks.task_spec import Loss, TaskSpec
from surefit.user_code import CodeGate

if TYPE_CHECKING:
    from torch import nn


def open_pipeline(
    folder: Path,
    task: TaskSpec,
    plan: Mapping[str, Any],
    code: CodeGate,
    module: nn.Module | None = None,
    collate_fn: Callable[..., Any] | None = None,
    loss_fn: Callable[..., Any] | None = None,
) -> Pipeline:
    """Load the model in `folder`; `plan` is the run's, which keeps what was chosen by trying.

    With a `loss_fn`, rows need the columns that it reads.
    """
    module, encoder = load_model(folder, task, code, module)
    fields = task.fields_for(encoder)
    columns = batch_columns(fields)
    if collate_fn is not None:  # whose columns only the plan knows
        columns = list(plan["model"]["columns"].values())
    names = (plan.get("model") or {}).get("columns") or {}
    call, _ = match_arguments(module, columns, expect_scores(Names(names), task, encoder))
    if call.clock is not None:  # after training, the last epoch and step
        call.clock.epoch, call.clock.step = plan["epochs"] - 1, plan["steps"]
    loss: Loss
    if loss_fn is None:
        encoder, loss = only_read(encoder, call), with_module_loss(task.loss_for(encoder))
    else:
        loss = OwnLoss(loss_fn)
    fields = task.fields_for(encoder)
    opened = Pipeline(task, encoder, module, call, loss, fields, PADDED, collate_fn, plan["seed"])
    return apply_choices(opened, plan.get("choices", {}))


def apply_choices(pipeline: Pipeline, choices: Mapping[str, Any]) -> Pipeline:
    """The head and the layout that planning chose by trying, without trying again."""
    pipeline = replace(pipeline, row_groups=RowGroups(**choices.get("row_groups", {})))
    if choices.get("auxiliary_loss"):
        auxiliary = find_auxiliary_loss(pipeline.module)
        pipeline = replace(pipeline, call=replace(pipeline.call, auxiliary=auxiliary))
    if choices.get("step_scores"):
        scores = StepScores(**choices["step_scores"])
        pipeline = replace(pipeline, call=replace(pipeline.call, step_scores=scores))
    if choices.get("targets"):
        use = choices["targets"]
        targets = TargetUse(**{**use, "columns": tuple(use["columns"])})
        pipeline = replace(pipeline, call=replace(pipeline.call, targets=targets))
    labelled = pipeline.task.head.predicts if pipeline.task.head is not None else None
    head = from_choice(pipeline.module, choices["head"]) if choices.get("head") else None
    if head is not None:
        head = replace(head, smoothing=label_smoothing(pipeline.encoder))
    labelled = labelled if head is not None else None
    wanted = choices.get("rows") == PADDING_FREE
    kernel = choices.get("attention", BY_ROW)
    padding_free = wanted and use_varlen_attention(pipeline.module, kernel)
    varlen = find_varlen(pipeline.module) if padding_free else pipeline.call.varlen
    return replace(
        pipeline,
        call=replace(pipeline.call, head=head, varlen=varlen),
        layout=Layout(padding_free, labelled, body_only=padding_free and labelled is None),
    )


def label_smoothing(encoder: Encoder) -> float:
    """How much a run smooths its labels."""
    return read_class_loss(encoder.settings).label_smoothing
