"""Training from start to end: plan, folder, engine, loop, saved model, report."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.config import RunConfig
from surefit.core.locks import is_asked_to_stop, lock_run
from surefit.data.cache import use_cache
from surefit.errors import FindingError, UsageError
from surefit.memory.process_memory import MemoryGuard
from surefit.models.learning_rate import Schedule
from surefit.models.optimizer import averaged_weights
from surefit.models.pretrained import OVER_THIS_MACHINE
from surefit.pipeline.evaluation import Evaluation, EvaluationSettings
from surefit.pipeline.open_pipeline import Parallel
from surefit.pipeline.own_step import OwnStep
from surefit.plan.disk import fit_on_disk
from surefit.plan.make_plan import make_plan
from surefit.plan.plan import Plan
from surefit.processes import (
    OtherProcessError,
    distributed_run,
    from_main,
    gather,
    is_main,
    num_processes,
    together,
)
from surefit.request import Request, metric_of, named_eval_data
from surefit.run.checkpoints import load_checkpoint, prune_checkpoints
from surefit.run.choose_checkpoint import Chosen, State
from surefit.run.events import cut_events
from surefit.run.run_folder import Run, choose_folder
from surefit.speed.compiling import compile_layers
from surefit.speed.numerics import deterministic_algorithms
from surefit.targets.own_outputs import needs_loss_fn
from surefit.targets.task_spec import better_of
from surefit.training.begin_run import (
    begin_run,
    check_common_folder,
    remember_code,
    with_absolute_paths,
)
from surefit.training.engine import (
    Engine,
    make_accelerator,
    make_engine,
    shard,
    with_shards,
)
from surefit.training.guards import (
    bundle_failure,
    finish_saving,
    keep_good_model,
    report_stops,
    stop_at_memory_limit,
    stop_on_signal,
)
from surefit.training.loop import Hooks, Pace, note_evaluation, train_rows
from surefit.training.measured_step import measure_step, needs_measuring
from surefit.training.own_steps import factors_by_part
from surefit.training.reference import check_reference, with_reference
from surefit.training.rehearse import rehearse
from surefit.training.saving import (
    Saver,
    find_checkpoint,
    resume_extended,
    save_model_of_step,
)
from surefit.training.schedule import make_feed
from surefit.training.watches import judge_best_step, write_events
from surefit.training.work import SILENT, Guard, Listeners, Show, Watch, Work, guarded

if TYPE_CHECKING:
    from surefit.training.folds import FoldRuns

GUARDS: tuple[Guard, ...] = (
    write_events,  # observers, callbacks, trackers and the checks of what is learned
    keep_good_model,  # the loss diverges: `model/` becomes that of the best step before
    stop_on_signal,  # SIGINT, SIGTERM, SIGHUP: stop after the step
    bundle_failure,  # another exception: its cause in plain words, and a bundle with the batch
    finish_saving,  # the checkpoint that is being saved gets onto the disk
    stop_at_memory_limit,  # memory runs out: save the last step, and stop
)
"""What surrounds the loop, the outermost first."""


def train_request(
    request: Request,
    show: Show,
    resume: str | Path | None,
    named: set[str],
    trusted: Sequence[str],
) -> Run | FoldRuns:
    """Train a new run or resume one; where folds are asked for, a run for each of them.

    `named` has the config keys that the user has set, with which a resumed run must agree.
    """
    # Both train through `run_plan` of this module, which they import.
    from surefit.training.folds import is_folds, train_folds, wants_folds
    from surefit.training.resume import resume_run

    if wants_folds(request) if resume is None else is_folds(resume):
        return train_folds(request, show, resume, named, trusted)
    with show("") as listeners:
        if resume is None:
            return start_run(request, listeners)
        return resume_run(resume, request, named, listeners, trusted)


def start_run(request: Request, listeners: Listeners = SILENT) -> Run:
    """Plan and train a new run; nothing is written where the plan has errors."""
    config = request.config
    folder = _agree_on_folder(config)
    plan = fit_on_disk(make_plan(request, listeners.progress), folder)
    listeners.on_plan(plan, folder)
    refuse_errors(plan)
    refuse_weightless(plan)
    assert plan.task is not None
    if not is_main():
        return run_plan(plan, Run(folder, plan.task), listeners)
    choose_folder(str(folder), "run")  # another command may have begun a run there meanwhile
    run_id = uuid.uuid4().hex
    remember_code(plan, run_id, folder)
    run = begin_run(plan, run_id, folder)
    try:
        with lock_run(folder):
            return run_plan(plan, run, listeners)
    except (FindingError, KeyboardInterrupt, OtherProcessError):
        run.discard()  # without a step, there is no run; the lock's file was in the folder
        raise


def _agree_on_folder(config: RunConfig) -> Path:
    """Return the folder that process 0 chooses for a new run; all can write to it if they must."""
    with together("choosing the run's folder"):
        if config.scan is not None:
            raise UsageError(
                f"scan={config.scan} is for check; training reads every row.", "Leave scan out."
            )
        folder = choose_folder(config.output, "run")
    folder = gather(folder)[0]
    if config.parallel == "fsdp" and num_processes() > 1:
        check_common_folder(folder)
    return folder


def run_plan(plan: Plan, run: Run, listeners: Listeners = SILENT) -> Run:
    """Train what was planned into the run's folder, from its latest checkpoint if it has one."""
    assert plan.fit is not None
    memory = MemoryGuard(plan.fit.limit, workers=plan.config.workers)
    with (
        distributed_run(str(run.path)),  # a failure ends all processes, and one reports it
        use_cache(plan.config.cache),
        deterministic_algorithms(plan.config.deterministic),
        memory.enforced(),  # an allocation beyond the limit fails
        report_stops(run, memory),  # what ends the run before or after its steps
    ):
        work = _begin_work(plan, run, listeners, memory)
        with guarded(GUARDS, work):
            _train_steps(work)
        return _finish(work)


def _begin_work(plan: Plan, run: Run, listeners: Listeners, memory: MemoryGuard) -> Work:
    """Open the model as the latest checkpoint left it; try what comes later once, if all is new."""
    size = plan.config.micro_batch_rows
    plan = with_reference(plan, run.path, size, listeners.progress)
    assert plan.job is not None
    watch, pipeline = Watch(), plan.job.pipeline
    pipeline = replace(pipeline, call=replace(pipeline.call, on_batch=watch.note))
    plan = replace(plan, job=replace(plan.job, pipeline=pipeline))
    chosen = find_checkpoint(run, listeners.notice)
    engine, state = open_engine(plan, run, chosen)
    resume_extended(state, run, plan.config.early_stopping.patience)
    if is_main():
        cut_events(run.events_path, state.step)
        prune_checkpoints(run.checkpoints, plan.config.keep, state.best_step)  # after a kill
    saver = Saver(run.checkpoints, plan.config.keep, engine, pipeline)
    work = Work(plan, run, listeners, memory, engine, state, saver, watch)
    if needs_measuring(plan):
        memory.free()  # what planning has left: the measured step needs its memory
        with bundle_failure(work):
            listeners.on_fit(measure_step(plan, engine, fresh=chosen.path is None))
    if chosen.path is None:
        check_reference(plan, size)
        for accepted in rehearse(plan, engine):
            listeners.notice(accepted.message)
    memory.free()  # and what the measured step and the rehearsal have
    watch.forget()
    return work


def _train_steps(work: Work) -> None:
    """Run the loop to its end, with what it calls."""
    job, config, engine, state = work.job, work.plan.config, work.engine, work.state
    evaluate, pace, emit = None, _pace(work), work.watch.emit
    if len(job.validation):
        settings, progress = EvaluationSettings.of(config), work.listeners.progress

        plain = partial(job.evaluate, settings, engine.group, progress)

        def evaluate() -> Evaluation:
            with averaged_weights(job.pipeline.module, engine.plain_optimizer):
                return plain()

    first = config.eval_at_start
    if first is None:
        model = work.plan.model
        is_trained = model is not None and not model.source.untrained
        first = is_trained and job.pipeline.task.figures.from_start
    if first and state.step == 0 and evaluate is not None:
        note_evaluation(evaluate(), 0, 0, pace, State(), emit)
    hooks = Hooks(
        evaluate,
        work.saver.save,
        emit,
        lambda: work.stop.value or work.memory.is_near or is_asked_to_stop(work.run.path),
        work.watch.note_rows,
        work.listeners.notice,
    )
    feed = make_feed(job, engine, config.workers, work.listeners.notice)
    train_rows(engine, job, feed, pace, hooks, state, work.listeners.progress)
    judge_best_step(work)


def _finish(work: Work) -> Run:
    """Save the model of the best step with its report; return the run."""
    plan, run, state, engine = work.plan, work.run, work.state, work.engine
    assert plan.task is not None
    best = state.best_step if state.best_step != state.step else None
    if plan.config.ema is not None:  # the average is read from the checkpoint
        best = state.best_step or state.step
    save_model_of_step(plan, run, engine.skeleton, best)
    engine.accelerator.wait_for_everyone()
    held = None if plan.config.eval_data else plan.objects.data
    if plan.objects.eval_data is not None:
        held = next(iter(named_eval_data(plan.request).values()), plan.objects.eval_data)
    return Run(
        run.path,
        plan.task,
        None if engine.is_sharded else work.job.pipeline.module,  # a shard computes nothing
        plan.objects.collate_fn,
        local=with_absolute_paths(plan.config),
        loss_fn=plan.objects.loss_fn if needs_loss_fn(plan.task) else None,
        predict_fn=plan.objects.predict_fn,
        training_step=plan.objects.training_step,
        validation=None if held is None else work.job.validation,
        rows_object=held,
    )


def open_engine(plan: Plan, run: Run, chosen: Chosen) -> tuple[Engine, State]:
    """Open model and optimizer, sharded if so planned, as the checkpoint left them."""
    assert plan.job is not None
    assert plan.model is not None
    config, module = plan.config, plan.job.pipeline.module
    shared = plan.choices.parallel or Parallel()
    accelerator = make_accelerator(config.precision, config.trackers, run.path, shared.unused)
    with with_shards(plan.job.optimizer.passed, module):
        sharded = shard(accelerator, module, config.parallel, shared, config.seed)
    optimizer = plan.job.optimizer.make(module)
    state, scaler = State(), dict[str, Any]()
    if chosen.path is not None:
        state, scaler = load_checkpoint(chosen.path, module, optimizer)
        for group in optimizer.param_groups:
            group["lr"] = group.get("initial_lr", plan.model.lr)
    if chosen.forgets_best:
        state.best = state.best_loss = state.best_step = None
        state.stale_evaluations = 0
    compiling = plan.choices.compile
    if compiling is not None and compiling.compiled and sharded is None:
        compile_layers(module)
    engine = make_engine(accelerator, module, optimizer, sharded, plan.job.frozen_dtype)
    if scaler and accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(scaler)
    return engine, state


def _pace(work: Work) -> Pace:
    config, job, task = work.plan.config, work.job, work.job.pipeline.task
    best = metric_of(config.early_stopping.metric, job.named) or task.figures.best
    spans = from_main(lambda: work.run.spans(job.num_steps))
    return Pace(
        job.num_steps,
        config.eval_every,
        config.save_every,
        best,
        config.early_stopping.patience,
        config.clip,
        Schedule.of(config).by_step(spans),
        config.on_nonfinite == "skip",
        factors_by_part(job, spans),
        best == "loss"
        and isinstance(job.pipeline.loss, OwnStep)
        and not job.pipeline.loss.has_judge,
        better_of(task, best),
    )


def refuse_errors(plan: Plan) -> None:
    """Raise the errors of a plan, if it has any."""
    errors = [found for found in plan.findings if found.severity == "error"]
    if errors:
        raise FindingError(*errors)


def refuse_weightless(plan: Plan) -> None:
    """Refuse to train a model that was planned from its config alone."""
    if plan.model is None or plan.model.source.loads != "config":
        return
    name, found = plan.model.source.name, {each.code: each for each in plan.findings}
    if OVER_THIS_MACHINE.code in found:
        fault = found[OVER_THIS_MACHINE.code]
        raise UsageError(fault.message, OVER_THIS_MACHINE.fix)
    raise UsageError(
        f"{name} holds no weights, so there is nothing to train.",
        "Put the weights into the folder, or start from fresh ones with --from-scratch.",
    )
