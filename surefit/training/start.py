"""A Plan put to work: device, optimizer, observers and checkpoints around the loop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from surefit.batches.loading import from_workers, load_batch, prefetch
from surefit.config import RunConfig
from surefit.encode.store import Store
from surefit.errors import FindingError, UsageError
from surefit.kernels.compiling import compile_layers
from surefit.memory.host import give_back
from surefit.memory.predict_peak import Fit
from surefit.models.save_model import save_model
from surefit.pipeline.evaluation import Evaluator
from surefit.plan.plan import Parts, Plan
from surefit.processes import is_main, on_cpu
from surefit.progress import Progress, silent
from surefit.run import Run
from surefit.training.check_updates import check_trained, watch_moves
from surefit.training.checkpoints import (
    Saver,
    State,
    checkpoint_path,
    latest_checkpoint,
    load_checkpoint,
)
from surefit.training.events import Event, Observer, cut_events, event_writer
from surefit.training.failures import Watch, bundled
from surefit.training.loop import Pace, note_evaluation, train
from surefit.training.prove_plan import prove_plan
from surefit.training.schedule import lr_factor

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn


def run_plan(
    plan: Plan,
    run: Run,
    observers: Sequence[Observer] = (),
    progress: Progress = silent,
    on_fit: Callable[[Fit], None] = lambda fit: None,
) -> Run:
    """Train what was planned into the run's folder, from its latest checkpoint if it has one."""
    assert plan.parts is not None
    assert plan.task is not None
    config, watch = plan.config, Watch()
    parts = replace(plan.parts, call=replace(plan.parts.call, on_batch=watch.note))
    accelerator = make_accelerator(config, run)
    optimizer = make_optimizer(parts.module, parts.lr, config.weight_decay, plan.given.optimizer)
    latest = latest_checkpoint(run.checkpoints)
    state = State()
    scaler: dict[str, Any] = {}
    if latest is not None:
        state, scaler = load_checkpoint(latest, parts.module, optimizer)
        for group in optimizer.param_groups:
            group["lr"] = group.get("initial_lr", parts.lr)
    if plan.choices.get("compile", {}).get("compiled"):
        compile_layers(parts.module)
    model, prepared = accelerator.prepare(parts.module, optimizer)
    if scaler and accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(scaler)
    if is_main():
        cut_events(run.events_path, state.step)
    with _emitting(accelerator, run, config, (*observers, *plan.given.callbacks)) as tell_all:
        emit = watch.tell(tell_all)
        if parts.adaptation is not None:
            check_trained(parts.module, parts.adaptation.trained)
            if state.step == 0:
                moving = parts.adaptation.trained - parts.adaptation.not_in_every_batch
                skipped = lambda: accelerator.optimizer_step_was_skipped  # noqa: E731
                emit = watch_moves(parts.module, moving, skipped, emit)

        prepare = plan.task.preparer(parts.encoder, config.seed)

        def load(
            store: Store, rows: Any, epoch: int = 0, device: Any = accelerator.device
        ) -> dict[str, Any]:
            collate_fn = plan.given.collate_fn
            return load_batch(
                store, rows, parts.fields, collate_fn, device, prepare, epoch, parts.layout
            )

        feed, first_device = prefetch, accelerator.device
        if config.workers:  # which make batches on the CPU; they are moved where they are used
            feed = partial(from_workers, workers=config.workers, device=accelerator.device)
            first_device = "cpu"

        watched = replace(plan, parts=parts)
        with bundled(watch, plan, run, state):
            proved = prove_plan(watched, accelerator, model, optimizer, load, fresh=latest is None)
        on_fit(proved)
        give_back()  # what planning and the proof have freed
        evaluator = make_evaluator(plan, parts, accelerator, load, progress)
        pace = Pace(
            parts.num_steps,
            config.eval_every,
            config.save_every,
            config.early_stopping.metric or plan.task.best,
            config.early_stopping.patience,
        )
        evaluate = (
            partial(evaluator, parts.module, parts.evaluation) if len(parts.evaluation) else None
        )
        saver = Saver(run.checkpoints, config.keep)
        save = partial(_save, saver, parts.module, optimizer, accelerator)
        if config.eval_at_start and state.step == 0 and evaluate is not None:
            note_evaluation(evaluate(), 0, 0, pace, State(), emit)
        with stop_on_signal() as asked, bundled(watch, plan, run, state), saver:
            train(
                accelerator=accelerator,
                model=model,
                # Accelerate's wrapper scales fp16 gradients; without that it only costs time.
                optimizer=prepared if accelerator.scaler is not None else prepared.optimizer,
                batches=parts.batches,
                load=lambda epoch, rows: load(parts.train, rows, epoch, first_device),
                feed=feed,
                call=parts.call,
                loss=parts.loss,
                num_targets=parts.train.num_targets,
                lr_factor=lambda step: lr_factor(
                    step, parts.num_steps, config.warmup, config.schedule
                ),
                clip=config.clip,
                seed=config.seed,
                pace=pace,
                state=state,
                evaluate=evaluate,
                save=save,
                emit=emit,
                stop_asked=lambda: asked.value,
            )
    if is_main():
        if state.best_step is not None and state.best_step != state.step:
            load_checkpoint(checkpoint_path(run.checkpoints, state.best_step), parts.module)
        save_model(parts.module, parts.encoder, parts.source, run.model_path)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return Run(run.path, plan.task, parts.module, plan.given.collate_fn)


def measure_plan(plan: Plan) -> Plan:
    """The plan with its peak and time measured by a real step; nothing is kept of the step."""
    assert plan.parts is not None
    assert plan.task is not None
    parts, config = plan.parts, plan.config
    accelerator = make_accelerator(config)
    optimizer = make_optimizer(parts.module, parts.lr, config.weight_decay, plan.given.optimizer)
    model, _ = accelerator.prepare(parts.module, optimizer)
    prepare = plan.task.preparer(parts.encoder, config.seed)

    def load(store: Store, rows: Any) -> dict[str, Any]:
        collate_fn = plan.given.collate_fn
        return load_batch(store, rows, parts.fields, collate_fn, accelerator.device, prepare)

    try:
        fit = prove_plan(plan, accelerator, model, optimizer, load, fresh=True)
    except FindingError as error:
        return replace(plan, findings=(*plan.findings, *error.findings))
    return replace(plan, fit=fit)


def make_accelerator(config: RunConfig, run: Run | None = None) -> Accelerator:
    """Accelerate with everything it would do to batches, losses and schedules left to us."""
    import torch
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    if config.deterministic:
        torch.use_deterministic_algorithms(True)
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if torch.cuda.is_available() else "fp32"
    AcceleratorState._reset_state()  # an earlier run in this process may have left its precision
    accelerator = Accelerator(
        cpu=on_cpu(),
        gradient_accumulation_steps=1,
        mixed_precision="no" if precision == "fp32" else precision,
        log_with=list(config.trackers) or None,
        project_dir=str(run.path) if run is not None else None,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    if accelerator.distributed_type.value == "DEEPSPEED":
        raise UsageError(
            "DeepSpeed divides the loss by itself, which cannot be reconciled with one divisor "
            "per step.",
            "Launch with FSDP or DDP.",
        )
    return accelerator


def make_optimizer(
    module: nn.Module, lr: float, weight_decay: float, given: Callable[..., Any] | None = None
) -> Any:
    """Fused AdamW, without decay for biases and norms; or what the user gave."""
    import torch

    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if isinstance(given, torch.optim.Optimizer):
        optimizer: Any = given
    elif given is not None:
        optimizer = given(trained)
    else:
        groups = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        optimizer = torch.optim.AdamW(groups, lr=lr, fused=True)
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return optimizer


def make_evaluator(
    plan: Plan,
    parts: Parts,
    accelerator: Accelerator,
    load: Callable[[Store, Any], Mapping[str, Any]],
    progress: Progress,
) -> Evaluator:
    """The evaluator of a plan, over all its processes."""
    from accelerate.utils import gather_object

    assert plan.task is not None
    config = plan.config

    def reduce(tensor: Any) -> Any:
        if accelerator.num_processes == 1:
            return tensor
        return accelerator.reduce(tensor.to(accelerator.device), reduction="sum").cpu()

    return Evaluator(
        plan.task,
        parts.call,
        parts.loss,
        parts.encoder,
        load,
        config.micro_batch_rows,
        config.max_tokens,
        config.generate.rows,
        config.generate.max_new_tokens,
        accelerator.process_index,
        accelerator.num_processes,
        reduce,
        gather_object if accelerator.num_processes > 1 else (lambda items: items),
        progress,
    )


@contextmanager
def _emitting(
    accelerator: Accelerator, run: Run, config: RunConfig, observers: Sequence[Observer]
) -> Iterator[Observer]:
    """One observer that tells all others; only the main process speaks."""
    if not is_main():
        yield lambda event: None
        return
    with event_writer(run.events_path) as write:
        everyone = [write, *observers]
        if config.trackers:
            accelerator.init_trackers("surefit")
            everyone.append(partial(_track, accelerator))

        def emit(event: Event) -> None:
            for observer in everyone:
                observer(event)

        yield emit


def _track(accelerator: Accelerator, event: Event) -> None:
    values = event["metrics"] if event["event"] == "eval" else event
    prefix = "eval/" if event["event"] == "eval" else "train/"
    numbers = {
        prefix + name: value
        for name, value in values.items()
        if isinstance(value, int | float) and name != "step"
    }
    accelerator.log(numbers, step=event["step"])


def _save(
    saver: Saver, module: nn.Module, optimizer: Any, accelerator: Accelerator, state: State
) -> None:
    if is_main():
        scaler = accelerator.scaler.state_dict() if accelerator.scaler is not None else {}
        saver.save(module, optimizer, scaler, state)
    accelerator.wait_for_everyone()


@dataclass
class _Asked:
    value: bool = False


@contextmanager
def stop_on_signal() -> Iterator[_Asked]:
    """While the block runs, SIGINT and SIGTERM ask to stop after the step; a second one kills."""
    asked = _Asked()
    signals = (signal.SIGINT, signal.SIGTERM)

    def ask(number: int, frame: Any) -> None:
        if asked.value:
            raise KeyboardInterrupt
        asked.value = True

    try:
        before = {number: signal.signal(number, ask) for number in signals}
    except ValueError:  # not the main thread: signals are someone else's
        yield asked
        return
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
