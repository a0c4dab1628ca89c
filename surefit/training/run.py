"""Training from start to end: plan, folder, engine, loop, saved model, report."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from surefit.config import RunConfig
from surefit.core.locks import lock_run
from surefit.data.cache import use_cache
from surefit.errors import FindingError, UsageError
from surefit.kernels.compiling import compile_layers
from surefit.kernels.numerics import deterministic_algorithms
from surefit.memory.enforce_limit import MemoryGuard
from surefit.memory.predict_peak import Fit
from surefit.models.optimizer import make_optimizer
from surefit.models.pretrained import OVER_THIS_MACHINE
from surefit.pipeline.evaluation import EvaluationSettings
from surefit.pipeline.pipeline import Job
from surefit.plan.choose_parallel import KEY as PARALLEL
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
from surefit.progress import Progress, silent
from surefit.request import Request
from surefit.run.checkpoints import Saver, prune_checkpoints
from surefit.run.choose_checkpoint import Chosen, State
from surefit.run.events import Event, Observer, cut_events, event_writer, read_events
from surefit.run.run_folder import Run, choose_folder
from surefit.tasks.custom import needs_loss_fn
from surefit.tasks.task_spec import better_of
from surefit.tasks.tree_baseline import judge_by_trees
from surefit.training.begin_run import (
    begin_run,
    check_common_folder,
    remember_code,
    with_absolute_paths,
)
from surefit.training.engine import (
    Engine,
    divide,
    make_accelerator,
    make_engine,
    with_shards,
)
from surefit.training.failures import Watch, bundled
from surefit.training.guards import LossWatch, check_trained, warning_event, watch_first_steps
from surefit.training.loop import Hooks, Pace, note_evaluation
from surefit.training.rehearse import prove_together, rehearse
from surefit.training.saving import (
    find_checkpoint,
    go_on,
    restore,
    save_model_of_step,
    save_state,
    train_rows,
)
from surefit.training.schedule import lr_by_step
from surefit.training.step import make_feed
from surefit.training.stops import (
    StepInWork,
    keeping_good_model,
    report_disk,
    report_interrupt,
    report_limit,
    stop_at_limit,
    stop_on_signal,
)

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class Listeners:
    """Who hears of the plan, of its fit, of progress, of every event and of what happened."""

    observers: tuple[Observer, ...] = ()
    progress: Progress = silent
    on_plan: Callable[[Plan, Path], None] = lambda plan, folder: None
    on_fit: Callable[[Fit], None] = lambda fit: None
    notice: Callable[[str], None] = lambda text: None
    """What happened to the run: a damaged checkpoint, a skipped step, split micro-batches."""
    on_stop: Callable[[int], None] = lambda number: None
    """The first signal to stop, by its number; called in its handler."""


SILENT = Listeners()


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
    """The folder of a new run, as process 0 chooses it; one that all can write to if they must."""
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
    guard = MemoryGuard(plan.fit.limit, workers=plan.config.workers)
    with (
        distributed_run(str(run.path)),
        use_cache(plan.config.cache),
        deterministic_algorithms(plan.config.deterministic),
        guard.enforced(),
        report_limit(guard, run),
        report_interrupt(run),
        report_disk(run),
    ):
        return _train(plan, run, listeners, guard)


def _train(plan: Plan, run: Run, listeners: Listeners, guard: MemoryGuard) -> Run:
    assert plan.job is not None
    assert plan.model is not None
    config, watch = plan.config, Watch()
    pipeline = plan.job.pipeline
    pipeline = replace(pipeline, call=replace(pipeline.call, on_batch=watch.note))
    job, module = replace(plan.job, pipeline=pipeline), pipeline.module
    chosen = find_checkpoint(run, listeners.notice)
    engine, state = open_engine(plan, run, chosen)
    accelerator, optimizer = engine.accelerator, engine.plain_optimizer
    go_on(state, run, config.early_stopping.patience)
    if is_main():
        cut_events(run.events_path, state.step)
        prune_checkpoints(run.checkpoints, config.keep, state.best_step)  # a kill may prevent it
    observers = (*listeners.observers, *plan.objects.callbacks)
    with _emitting(accelerator, run.events_path, config.trackers, observers) as emit_all:
        emit = _checking_updates(plan, engine, state, watch.observe(emit_all))
        losses = LossWatch(emit, job.num_steps, _prior_loss(job))
        for event in read_events(run.events_path):
            losses.remember(event)
        guard.free()  # what planning has left: the measured step needs its memory
        with bundled(watch, plan, run, state):
            fit = prove_together(replace(plan, job=job), engine, fresh=chosen.path is None)
        listeners.on_fit(fit)
        if chosen.path is None:
            for accepted in rehearse(plan, engine):
                listeners.notice(accepted.message)
        guard.free()  # and what the measured step and the rehearsal have
        pace = _pace(plan, run)
        evaluate = None
        if len(job.validation):
            settings, group = EvaluationSettings.of(config), engine.group
            evaluate = partial(
                pipeline.evaluate, job.validation, settings, group, listeners.progress
            )
        if config.eval_at_start and state.step == 0 and evaluate is not None:
            note_evaluation(evaluate(), 0, 0, pace, State(), emit)
        saver = Saver(run.checkpoints, config.keep)
        save = partial(save_state, saver, pipeline, optimizer, accelerator)
        save_step = partial(save_model_of_step, plan, run, engine.skeleton)

        def save_at_once(state: State) -> None:
            saver.save_at_once()
            save(state)

        with (
            keeping_good_model(run, state, partial(save_step, alone=True)),
            stop_on_signal(listeners.on_stop) as asked,
            bundled(watch, plan, run, state),
            saver,
            stop_at_limit(
                guard,
                StepInWork(run, module, engine.plain_optimizer, state, watch),
                save_at_once,
                lambda: asked.value,
            ),
        ):
            hooks = Hooks(
                evaluate,
                save,
                losses.observe,
                lambda: asked.value or guard.is_near,
                watch.note_rows,
                listeners.notice,
            )
            feed = make_feed(job, engine, config.workers, asked.ask, listeners.notice)
            train_rows(engine, job, feed, pace, hooks, state, listeners.progress)
            _judge(plan, run, state, emit)
    best = state.best_step
    save_step(best if best is not None and best != state.step else None)
    accelerator.wait_for_everyone()
    for tracker in accelerator.trackers:
        tracker.finish()  # and not end_training: further runs of this process use its group
    kept = None if engine.is_sharded else module  # a share alone computes nothing
    return Run(
        run.path,
        plan.task,
        kept,
        plan.objects.collate_fn,
        local=with_absolute_paths(config),
        loss_fn=plan.objects.loss_fn if needs_loss_fn(plan.task) else None,
    )


def open_engine(plan: Plan, run: Run, chosen: Chosen) -> tuple[Engine, State]:
    """Model and optimizer, divided over processes if so planned, as the checkpoint left them."""
    assert plan.job is not None
    assert plan.model is not None
    config, module = plan.config, plan.job.pipeline.module
    shared = plan.choices.get(PARALLEL, {})
    accelerator = make_accelerator(
        config.precision, config.trackers, run.path, shared.get("unused", True)
    )
    passed = plan.objects.optimizer
    with with_shards(passed, module):
        divided = divide(accelerator, module, config.parallel, shared, config.seed)
    optimizer = make_optimizer(module, plan.model.lr, config.weight_decay, passed, config.lr_by)
    state, scaler = restore(chosen, module, optimizer, plan.model.lr)
    if plan.choices.get("compile", {}).get("compiled"):
        compile_layers(module)
    engine = make_engine(accelerator, module, optimizer, divided, plan.job.frozen_dtype)
    if scaler and accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(scaler)
    return engine, state


def _judge(plan: Plan, run: Run, state: State, emit: Observer) -> None:
    """Compare the best step of a run that has come to its end with the trees of its plan."""
    assert plan.job is not None
    job, history = plan.job, run.history
    evals = [event for event in history if event["event"] == "eval"]
    best = next((e for e in evals if e["step"] == state.best_step), None)
    if best is None or not is_main() or plan.objects.loss_fn is not None:
        return
    if state.step < job.batches.steps_per_epoch:
        return  # fewer steps than one epoch say nothing about the network
    found = judge_by_trees(best["metrics"], run.plan.get("baselines", {}), len(job.validation))
    if found is None:
        return
    event = warning_event(found, state.step, evals[-1]["epoch"])
    if event not in history:  # written before the process was killed
        emit(event)


def _prior_loss(job: Job) -> float | None:
    """The training loss of a predictor that ignores the inputs; None where there is none."""
    measure = job.pipeline.task.baselines
    if measure is None:
        return None
    known = measure(job.train, job.train, job.pipeline.encoder).values()
    return next((figures["loss"] for figures in known if "loss" in figures), None)


def _checking_updates(plan: Plan, engine: Engine, state: State, emit: Observer) -> Observer:
    """The observer also checks that the first steps have moved what is to be trained."""
    assert plan.job is not None
    assert plan.model is not None
    module, adaptation = plan.job.pipeline.module, plan.model.adaptation
    if adaptation is not None:
        check_trained(module, adaptation.trained)
    if state.step:
        return emit

    moving = adaptation.trained - adaptation.not_in_every_batch if adaptation is not None else ()
    return watch_first_steps(module, engine.plain_optimizer, moving, emit)


def _pace(plan: Plan, run: Run) -> Pace:
    assert plan.task is not None
    assert plan.job is not None
    config, job = plan.config, plan.job
    best = config.early_stopping.metric or plan.task.best
    return Pace(
        job.num_steps,
        config.eval_every,
        config.save_every,
        best,
        config.early_stopping.patience,
        config.clip,
        lr_by_step(from_main(lambda: run.spans(job.num_steps)), config.warmup, config.schedule),
        config.on_nonfinite == "skip",
        better_of(job.pipeline.task, best),
    )


def refuse_errors(plan: Plan) -> None:
    """Raise the errors of a plan, if it has any."""
    errors = [found for found in plan.findings if found.severity == "error"]
    if errors:
        raise FindingError(*errors)


def refuse_weightless(plan: Plan) -> None:
    """Refuse to train a model that was planned from its config alone."""
    if plan.model is None or not plan.model.source.weightless or plan.model.source.late:
        return
    name, found = plan.model.source.name, {each.code: each for each in plan.findings}
    if OVER_THIS_MACHINE.code in found:
        fault = found[OVER_THIS_MACHINE.code]
        raise UsageError(fault.message, OVER_THIS_MACHINE.fix)
    raise UsageError(
        f"{name} holds no weights, so there is nothing to train.",
        "Put the weights into the folder, or start from fresh ones with --from-scratch.",
    )


@contextmanager
def _emitting(
    accelerator: Accelerator, events: Path, trackers: Sequence[str], observers: Sequence[Observer]
) -> Iterator[Observer]:
    """One observer that passes events to all others, on the main process only."""
    if not is_main():
        yield lambda event: None
        return
    with event_writer(events) as write:
        everyone = [write, *observers]
        if trackers:
            accelerator.init_trackers("surefit")
            everyone.append(partial(_track, accelerator))

        def emit(event: Event) -> None:
            for observer in everyone:
                observer(event)

        yield emit


def _track(accelerator: Accelerator, event: Event) -> None:
    if event["event"] == "warning":
        return
    values = event["metrics"] if event["event"] == "eval" else event
    prefix = "eval/" if event["event"] == "eval" else "train/"
    numbers = {
        prefix + name: value
        for name, value in values.items()
        if isinstance(value, int | float) and name != "step"
    }
    accelerator.log(numbers, step=event["step"])
