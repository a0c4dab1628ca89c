"""The Pipeline of a finished run: the saved model, read and called as in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from surefit.batches.collate import PADDED, PADDING_FREE, Layout
from surefit.config import Generation
from surefit.inputs.encoder import Encoder
from surefit.models.auxiliary_loss import find_auxiliary_loss
from surefit.models.call import Call, Names, TargetUse, match_arguments, with_module_loss
from surefit.models.module_outputs import OutputChoice, StepScores
from surefit.models.named_modules import Part
from surefit.models.save_model import load_model
from surefit.pipeline.own_step import OwnStep
from surefit.pipeline.pipeline import Pipeline, batch_columns, expect_scores, only_read
from surefit.pipeline.row_groups import ANY_LENGTHS, RowGroups
from surefit.speed.choose_head import HeadChoice, from_choice
from surefit.speed.varlen_attention import find_varlen, use_varlen_attention
from surefit.speed.varlen_kernels import BY_ROW
from surefit.targets.generation import own_config
from surefit.targets.own_loss import OwnLoss
from surefit.targets.sampling import (
    choose_settings,
    known_settings,
    refuse_system,
    refuse_unused,
)
from surefit.targets.task_spec import Loss, TaskSpec
from surefit.user_code import CodeGate

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Parallel:
    """What several processes need to know of the model; by default, the safe answer."""

    unused: bool = True
    """Whether a parameter may get no gradient in some micro-batch."""
    whole: bool = False
    """Whether a sharded model is gathered as a whole, not block by block."""


@dataclass(frozen=True)
class Compiling:
    """Whether the model's layers are compiled, and the reason."""

    compiled: bool
    why: str


@dataclass(frozen=True)
class Choices:
    """What was decided by trying, as plan.json stores it; a resumed run does not try again."""

    head: HeadChoice | None = None
    """Where logits are computed."""
    rows: Literal["padded", "padding-free"] | None = None
    rows_reason: str | None = None
    attention: str | None = None
    """The kernel of padding-free attention."""
    shared_prompts: bool = False
    """Whether two answers to a prompt share its computation."""
    row_groups: RowGroups | None = None
    step_scores: StepScores | None = None
    targets: TargetUse | None = None
    output: OutputChoice | None = None
    auxiliary_loss: bool = False
    parallel: Parallel | None = None
    compile: Compiling | None = None
    frozen: str | None = None
    """The precision of frozen matrices."""
    order_block_rows: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the choices that were made, as JSON has them."""
        made = {name: value for name, value in asdict(self).items() if value not in (None, False)}
        return {
            name: {k: v for k, v in value.items() if v is not None}
            if isinstance(value, dict)
            else value
            for name, value in made.items()
        }


def open_pipeline(
    folder: Path,
    task: TaskSpec,
    plan: Mapping[str, Any],
    code: CodeGate,
    module: nn.Module | None = None,
    collate_fn: Callable[..., Any] | None = None,
    loss_fn: Callable[..., Any] | None = None,
) -> Pipeline:
    """Load the model in `folder`; `plan` is that of the run. Its Choices are then applied.

    With a `loss_fn`, rows need the columns that it reads.
    """
    module, encoder = load_model(folder, task, code, module)
    columns = batch_columns(task.fields_for(encoder))
    if collate_fn is not None:  # whose columns only the plan knows
        columns = list(plan["model"]["columns"].values())
    names = (plan.get("model") or {}).get("columns") or {}
    call, _ = match_arguments(module, columns, expect_scores(Names(names), task, encoder))
    call.clock.epoch, call.clock.step = plan["epochs"] - 1, plan["steps"]  # the last ones
    if loss_fn is None and collate_fn is None:
        encoder = only_read(encoder, call)
    return build_pipeline(task, encoder, module, call, loss_fn, collate_fn, plan["seed"])


def build_pipeline(
    task: TaskSpec,
    encoder: Encoder,
    module: nn.Module,
    call: Call,
    loss_fn: Callable[..., Any] | None,
    collate_fn: Callable[..., Any] | None,
    seed: int,
) -> Pipeline:
    """Return the Pipeline of a plan or of a run, to which its Choices are then applied."""
    own = OwnLoss(loss_fn) if loss_fn is not None else None
    loss: Loss = own or with_module_loss(task.loss_for(encoder))
    fields = task.fields_for(encoder)
    return Pipeline(task, encoder, module, call, loss, fields, PADDED, collate_fn, seed)


def with_own_step(
    pipeline: Pipeline, training_step: Callable[..., Any], parts: Mapping[str, Part]
) -> Pipeline:
    """Return the Pipeline with a user's own step; a `loss_fn` that it has is for evaluation."""
    known = pipeline.loss if isinstance(pipeline.loss, OwnLoss) else None
    clock = pipeline.call.clock
    step = OwnStep(training_step, parts_of=parts, clock=clock, evaluated_by=known)
    return replace(pipeline, loss=step)


def apply_choices(pipeline: Pipeline, choices: Choices) -> Pipeline:
    """Apply the head and the layout that planning chose by trying, without trying again."""
    call, module = pipeline.call, pipeline.module
    if choices.auxiliary_loss:
        call = replace(call, auxiliary=find_auxiliary_loss(module))
    if choices.step_scores is not None:
        call = replace(call, reads=replace(call.reads, step_scores=choices.step_scores))
    if choices.targets is not None:
        call = replace(call, targets=choices.targets)
    needed = pipeline.task.head_for(pipeline.encoder)
    labelled = needed.predicts if needed is not None else None
    head = from_choice(module, choices.head) if choices.head is not None else None
    if head is not None and needed is not None:
        smoothing = label_smoothing(pipeline.encoder)
        head = replace(head, smoothing=smoothing, by_token=needed.by_token)
    labelled = labelled if head is not None else None
    wanted = choices.rows == PADDING_FREE
    padding_free = wanted and use_varlen_attention(module, choices.attention or BY_ROW)
    varlen = find_varlen(module) if padding_free else call.varlen
    return replace(
        pipeline,
        call=replace(call, head=head, varlen=varlen),
        layout=Layout(
            padding_free,
            labelled,
            body_only=padding_free and labelled is None,
            shares_prompt=padding_free and choices.shared_prompts,
        ),
        row_groups=choices.row_groups or ANY_LENGTHS,
    )


def with_generation(
    pipeline: Pipeline,
    wanted: Generation,
    as_model: bool = False,
    before: Mapping[str, Any] | None = None,
) -> Pipeline:
    """Return the Pipeline that generates as `wanted`.

    `generate.from_model` takes settings from those `before`: of the run, if no others are passed.
    With `as_model`, it samples where the model's generation config does.
    """
    generate, encoder = pipeline.task.generate, pipeline.encoder
    if generate is None or not generate.possible(pipeline.module, encoder):
        refuse_unused(wanted)
        return pipeline
    refuse_system(encoder, wanted)
    before = encoder.settings.generate or {} if before is None else before
    taken = {name: before[name] for name in wanted.from_model if name in before}
    greedy = {**generate.settings(pipeline.module, encoder), **taken}
    known = known_settings(own_config(pipeline.module))
    settings = choose_settings(greedy, wanted, known, as_model)
    seed = encoder.settings.seed if wanted.seed is None else wanted.seed
    return replace(pipeline, encoder=encoder.with_settings(generate=settings, seed=seed))


def label_smoothing(encoder: Encoder) -> float:
    """Return how much a run smooths its labels."""
    return encoder.settings.loss.label_smoothing
