"""Training from start to end: plan, folder, engine, loop, saved model, report."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.config import RunConfig
from surefit.core.locks import lock_run
from surefit.data.cache import use_cache
from surefit.errors import FindingError, UsageError
from surefit.memory.predict_peak import Fit
from surefit.memory.process_memory import MemoryGuard
from surefit.models.pretrained import OVER_THIS_MACHINE
from surefit.pipeline.evaluation import EvaluationSettings
from surefit.pipeline.open_pipeline import Parallel
from surefit.pipeline.pipeline import Job
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
from surefit.run.checkpoints import load_checkpoint, prune_checkpoints
from surefit.run.choose_checkpoint import Chosen, State
from surefit.run.events import Event, Observer, cut_events, event_writer, read_events
from surefit.run.run_folder import Run, choose_folder
from surefit.speed.compiling import compile_layers
from surefit.speed.numerics import deterministic_algorithms
from surefit.targets.task_spec import better_of
from surefit.targets.tree_baseline import judge_by_trees
from surefit.tasks.custom import needs_loss_fn
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
from surefit.training.failures import StepInWork, Watch, bundled
from surefit.training.guards import LossWatch, check_trained, warning_event, watch_first_steps
from surefit.training.loop import Hooks, Pace, note_evaluation, train_rows
from surefit.training.measured_step import measure_step, needs_measuring
from surefit.training.rehearse import rehearse
from surefit.training.saving import (
    Saver,
    find_checkpoint,
    let_extended_go_on,
    save_model_of_step,
)
from surefit.training.schedule import lr_by_step, make_feed
from surefit.training.stops import (
    keeping_good_model,
    report_stops,
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
        report_stops(run, guard),
    ):
        return _train(plan, run, listeners, guard)


def _train(plan: Plan, run: Run, listeners: Listeners, guard: MemoryGuard) -> Run:
    assert plan.job is not None
    config, watch, pipeline = plan.config, Watch(), plan.job.pipeline
    pipeline = replace(pipeline, call=replace(pipeline.call, on_batch=watch.note))
    job = replace(plan.job, pipeline=pipeline)
    plan = replace(plan, job=job)
    chosen = find_checkpoint(run, listeners.notice)
    engine, state = open_engine(plan, run, chosen)
    let_extended_go_on(state, run, config.early_stopping.patience)
    work = StepInWork(run, engine, state, watch)
    if is_main():
        cut_events(run.events_path, state.step)
        prune_checkpoints(run.checkpoints, config.keep, state.best_step)  # a kill may prevent it
    save_step = partial(save_model_of_step, plan, run, engine.skeleton)
    with _observers(engine, run, plan, listeners.observers) as observers:
        emit = _make_emit(plan, work, observers)
        _try_first(plan, work, listeners, guard, fresh=chosen.path is None)
        pace = _pace(plan, run)
        evaluate = None
        if len(job.validation):
            settings, group = EvaluationSettings.of(config), engine.group
            evaluate = partial(
                pipeline.evaluate, job.validation, settings, group, listeners.progress
            )
        if config.eval_at_start and state.step == 0 and evaluate is not None:
            note_evaluation(evaluate(), 0, 0, pace, State(), emit)
        saver = Saver(run.checkpoints, config.keep, engine, pipeline)
        with (
            keeping_good_model(work, partial(save_step, alone=True)),
            stop_on_signal(listeners.on_stop) as asked,
            bundled(work, plan),
            saver,
            stop_at_limit(guard, work, saver.save_at_once, lambda: asked.value),
        ):
            hooks = Hooks(
                evaluate,
                saver.save,
                emit,
                lambda: asked.value or guard.is_near,
                watch.note_rows,
                listeners.notice,
            )
            feed = make_feed(job, engine, config.workers, asked.ask, listeners.notice)
            train_rows(engine, job, feed, pace, hooks, state, listeners.progress)
            _judge(plan, run, state, emit)
    save_step(state.best_step if state.best_step != state.step else None)
    engine.accelerator.wait_for_everyone()
    for tracker in engine.accelerator.trackers:
        tracker.finish()  # and not end_training: further runs of this process use its group
    return Run(
        run.path,
        plan.task,
        None if engine.is_sharded else pipeline.module,  # a shard alone computes nothing
        plan.objects.collate_fn,
        local=with_absolute_paths(config),
        loss_fn=plan.objects.loss_fn if needs_loss_fn(plan.task) else None,
    )


def open_engine(plan: Plan, run: Run, chosen: Chosen) -> tuple[Engine, State]:
    """Model and optimizer, sharded over processes if so planned, as the checkpoint left them."""
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


def _make_emit(plan: Plan, work: StepInWork, observers: Sequence[Observer]) -> Observer:
    """What the loop emits events to: the observers, then the checks of what is learned.

    Every process checks that what is to be trained takes gradients, and where the run is new, that
    the first steps move it; and that the loss neither blows up nor stays.
    """
    assert plan.job is not None
    assert plan.model is not None
    module, adaptation = plan.job.pipeline.module, plan.model.adaptation
    checks: list[Observer] = []

    def emit(event: Event) -> None:
        work.watch.pass_on(event, observers)
        for check in checks:
            check(event)

    if adaptation is not None:
        check_trained(module, adaptation.trained)
    if work.state.step == 0:
        meant = adaptation.trained - adaptation.not_in_every_batch if adaptation is not None else ()
        checks.append(watch_first_steps(module, work.engine.plain_optimizer, meant, emit))
    losses = LossWatch(emit, plan.job.num_steps, _prior_loss(plan.job))
    for event in read_events(work.run.events_path):
        losses.remember(event)
    checks.append(losses.observe)
    return emit


def _try_first(
    plan: Plan, work: StepInWork, listeners: Listeners, guard: MemoryGuard, *, fresh: bool
) -> None:
    """Measure a step where that may tell more than the plan; rehearse a run that begins."""
    if needs_measuring(plan):
        guard.free()  # what planning has left: the measured step needs its memory
        with bundled(work, plan):
            listeners.on_fit(measure_step(plan, work.engine, fresh=fresh))
    if fresh:
        for accepted in rehearse(plan, work.engine):
            listeners.notice(accepted.message)
    guard.free()  # and what the measured step and the rehearsal have
    work.watch.batch, work.watch.is_training = None, True


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
    measure = job.pipeline.task.figures.baselines
    if measure is None:
        return None
    known = measure(job.train, job.train, job.pipeline.encoder).values()
    return next((figures["loss"] for figures in known if "loss" in figures), None)


def _pace(plan: Plan, run: Run) -> Pace:
    assert plan.task is not None
    assert plan.job is not None
    config, job = plan.config, plan.job
    best = config.early_stopping.metric or plan.task.figures.best
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
def _observers(
    engine: Engine, run: Run, plan: Plan, shown: Sequence[Observer]
) -> Iterator[Sequence[Observer]]:
    """What hears every event, on the main process: the file, the display, callbacks, trackers."""
    if not is_main():
        yield ()
        return
    with event_writer(run.events_path) as write:
        trackers = []
        if plan.config.trackers:
            engine.accelerator.init_trackers("surefit")
            trackers = [partial(_track, engine.accelerator)]
        yield (write, *shown, *plan.objects.callbacks, *trackers)


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
