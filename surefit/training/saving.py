"""What a run saves and restores: checkpoints, the position of a stream, the model of a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from surefit.core import files
from surefit.errors import RunFailedError, UsageError
from surefit.memory.process_memory import trim_heap
from surefit.models.lora import is_adapted
from surefit.models.save_model import save_model
from surefit.models.sharding import Skeleton, is_sharded
from surefit.pipeline.pipeline import Job, Pipeline
from surefit.pipeline.stream_windows import StreamEndedError, StreamWindows
from surefit.plan.plan import Plan
from surefit.processes import (
    OtherProcessError,
    from_main,
    gather,
    host_name,
    is_main,
    name_process,
    together,
)
from surefit.progress import Progress
from surefit.run.checkpoints import Saver, load_checkpoint
from surefit.run.choose_checkpoint import (
    Chosen,
    State,
    checkpoint_path,
    choose_checkpoint,
    set_aside,
)
from surefit.run.run_folder import EXAMPLES, Run
from surefit.training.begin_run import remember_code
from surefit.training.engine import Engine
from surefit.training.loop import Hooks, Pace, last_place, note_evaluation, train
from surefit.training.step import Feed

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn


def save_state(
    saver: Saver, pipeline: Pipeline, optimizer: Any, accelerator: Accelerator, state: State
) -> None:
    """Save a checkpoint; all processes call it: of a divided model, each writes its shares."""
    note_position(pipeline, state)
    if is_main() or is_sharded(pipeline.module):
        scaler = accelerator.scaler.state_dict() if accelerator.scaler is not None else {}
        saver.save(pipeline.module, optimizer, scaler, state)
    accelerator.wait_for_everyone()


def save_model_of_step(
    plan: Plan, run: Run, skeleton: Skeleton | None, step: int | None, *, alone: bool = False
) -> None:
    """Save the run's model with its report: that of a saved step, or the one in memory.

    All processes call it and process 0 writes; `alone` means that it is the only one to call it.
    A skeleton is that of a divided model.
    """
    from surefit.report.examples import make_mask_examples
    from surefit.report.page import write_report

    assert plan.job is not None
    assert plan.model is not None
    if not is_main() and skeleton is None:
        return
    module = _model_of_step(plan.job.pipeline.module, run, skeleton, step, alone)
    if not is_main():
        return
    remember = partial(remember_code, plan, str(run.plan["run_id"]), run.path)
    save_model(module, plan.job.pipeline.encoder, plan.model.source, run.model_path, remember)
    examples = make_mask_examples(plan.job)
    if examples:
        files.write_json(run.path / EXAMPLES, examples)
    write_report(run)


def _model_of_step(
    module: nn.Module, run: Run, skeleton: Skeleton | None, step: int | None, alone: bool
) -> nn.Module:
    """The whole module with the weights of a step; None for those in memory."""
    path = None if step is None else checkpoint_path(run.checkpoints, step)
    if skeleton is not None and alone:
        assert path is not None
        if is_adapted(module):
            raise RunFailedError(
                f"{path} holds the adapters of step {step}; no model is written, because the "
                "other processes hold shares of the frozen weights.",
                "",
            )
        module = skeleton.allocate(module, run.path)
    if path is not None:
        load_checkpoint(path, module)
    return gather_model(skeleton, module, run) if skeleton is not None and not alone else module


def gather_model(skeleton: Skeleton, module: nn.Module, run: Run) -> nn.Module:
    """The whole of a divided module, with the values on process 0 only; all processes call it."""
    trim_heap()  # of what the steps have freed
    return skeleton.gather(module, run.path)


def find_checkpoint(run: Run, notice: Callable[[str], None]) -> Chosen:
    """The checkpoint to resume from; what is damaged is renamed.

    The first process chooses for all, and reads each file once.
    """
    chosen: Chosen | None = None
    with together("choosing a checkpoint"):
        if is_main():
            chosen = choose_checkpoint(run.checkpoints)
            set_aside(run.checkpoints, chosen.path)
            for text in chosen.notices:
                notice(text)
    for_all = gather(chosen)[0]
    assert for_all is not None
    _refuse_missing(for_all, gather((host_name(), for_all.path is None or for_all.path.is_dir())))
    return for_all


def _refuse_missing(chosen: Chosen, told: list[tuple[str, bool]]) -> None:
    """Refuse to resume where a host does not have the checkpoint in its folder of the run."""
    for rank, (host, has_it) in enumerate(told):
        if not has_it:
            raise OtherProcessError(
                f"{name_process(rank, host)} does not have the checkpoint {chosen.path}, which the "
                "run resumes from.",
                "Use a folder that all hosts share, or copy the run of the first host to each.",
                UsageError.exit_code,
            )


def restore(
    chosen: Chosen, module: nn.Module, optimizer: Any, lr: float
) -> tuple[State, dict[str, Any]]:
    """Put the checkpoint's weights and optimizer state back; its State, and that of the scaler."""
    if chosen.path is None:
        return State(), {}
    state, scaler = load_checkpoint(chosen.path, module, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = group.get("initial_lr", lr)
    if chosen.forgets_best:
        state.best = state.best_loss = state.best_step = None
        state.stale_evaluations = 0
    return state, scaler


def go_on(state: State, run: Run, patience: int | None) -> None:
    """Let a run that had stopped early go on, if it was extended or given more patience."""
    extended = from_main(lambda: run.spans(0)[-1][0])
    if extended and state.step == extended:
        state.stale_evaluations, state.stopped_early = 0, False
    elif patience is None or state.stale_evaluations < patience:
        state.stopped_early = False


def note_position(pipeline: Pipeline, state: State) -> None:
    """Note in the State of a run where its stream is."""
    if isinstance(pipeline.live, StreamWindows):
        state.stream = pipeline.live.position()


def train_rows(
    engine: Engine,
    job: Job,
    feed: Feed,
    pace: Pace,
    hooks: Hooks,
    state: State,
    progress: Progress,
) -> None:
    """Train from `state` on; a stream is moved to where it was, and its end is the run's."""
    live = job.pipeline.live
    if isinstance(live, StreamWindows):
        live.notices[:] = [hooks.notice]
        if state.stream is not None:
            live.seek(job.pipeline, state.stream, progress)
    try:
        train(engine, job, feed, pace, hooks, state)
    except StreamEndedError as error:
        if not state.step:
            raise
        hooks.notice(" ".join(error.lines))
        if hooks.evaluate is not None and state.evaluated_step != state.step:
            epoch = last_place(job.batches, state, pace).epoch + 1
            note_evaluation(hooks.evaluate(), state.step, epoch, pace, state, hooks.emit)
        hooks.save(state)
