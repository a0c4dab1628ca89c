"""The Pipeline of a finished run: the saved model, read and called as in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from surefit.batches.collate import PADDED, PADDING_FREE, Layout
from surefit.inputs.encoder import Encoder
from surefit.models.auxiliary_loss import find_auxiliary_loss
from surefit.models.call import Call, Names, OwnLoss, TargetUse, match_arguments, with_module_loss
from surefit.models.module_outputs import StepScores
from surefit.models.save_model import load_model
from surefit.pipeline.pipeline import Pipeline, batch_columns, expect_scores, only_read
from surefit.pipeline.row_groups import RowGroups
from surefit.speed.choose_head import from_choice
from surefit.speed.varlen_attention import find_varlen, use_varlen_attention
from surefit.speed.varlen_kernels import BY_ROW
from surefit.targets.class_loss import read_class_loss
from surefit.targets.task_spec import Loss, TaskSpec
from surefit.user_code import CodeGate

if TYPE_CHECKING:
    from torch import nn


class Choices(TypedDict, total=False):
    """What was decided by trying, as plan.json stores it; a resumed run does not try again."""

    head: dict[str, Any]
    """Where logits are computed, as `kernels.choose_head.as_choice` has it."""
    rows: str
    """padded or padding-free"""
    rows_reason: str | None
    attention: str
    """The kernel of padding-free attention."""
    row_groups: dict[str, Any]
    step_scores: dict[str, Any]
    targets: dict[str, Any]
    output: dict[str, Any]
    """Which of several outputs of a module is used."""
    auxiliary_loss: bool
    parallel: dict[str, bool]
    compile: dict[str, Any]
    frozen: str
    """The precision of frozen matrices."""
    order_block_rows: int


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
    columns = batch_columns(task.fields_for(encoder))
    if collate_fn is not None:  # whose columns only the plan knows
        columns = list(plan["model"]["columns"].values())
    names = (plan.get("model") or {}).get("columns") or {}
    call, _ = match_arguments(module, columns, expect_scores(Names(names), task, encoder))
    if call.clock is not None:  # after training, the last epoch and step
        call.clock.epoch, call.clock.step = plan["epochs"] - 1, plan["steps"]
    encoder = only_read(encoder, call) if loss_fn is None else encoder
    opened = build_pipeline(task, encoder, module, call, loss_fn, collate_fn, plan["seed"])
    return apply_choices(opened, plan.get("choices", {}))


def build_pipeline(
    task: TaskSpec,
    encoder: Encoder,
    module: nn.Module,
    call: Call,
    loss_fn: Callable[..., Any] | None,
    collate_fn: Callable[..., Any] | None,
    seed: int,
) -> Pipeline:
    """The Pipeline of a plan or of a run, to which its Choices are then applied."""
    own = OwnLoss(loss_fn) if loss_fn is not None else None
    loss: Loss = own or with_module_loss(task.loss_for(encoder))
    fields = task.fields_for(encoder)
    return Pipeline(task, encoder, module, call, loss, fields, PADDED, collate_fn, seed)


def apply_choices(pipeline: Pipeline, choices: Mapping[str, Any]) -> Pipeline:
    """The head and the layout that planning chose by trying, without trying again."""
    pipeline = replace(pipeline, row_groups=RowGroups(**choices.get("row_groups", {})))
    if choices.get("auxiliary_loss"):
        auxiliary = find_auxiliary_loss(pipeline.module)
        pipeline = replace(pipeline, call=replace(pipeline.call, auxiliary=auxiliary))
    if choices.get("step_scores"):
        reads = replace(pipeline.call.reads, step_scores=StepScores(**choices["step_scores"]))
        pipeline = replace(pipeline, call=replace(pipeline.call, reads=reads))
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
