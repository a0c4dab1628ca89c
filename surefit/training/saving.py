"""What a run saves and resumes from: checkpoints, and the model of a step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from surefit.core import files
from surefit.errors import RunFailedError
from surefit.memory.process_memory import trim_heap
from surefit.models.lora import is_adapted
from surefit.models.save_model import save_model
from surefit.models.sharding import Skeleton
from surefit.pipeline.live_batch import StreamWindows
from surefit.pipeline.pipeline import Job, Pipeline
from surefit.plan.plan import Plan
from surefit.processes import (
    from_main,
    gather,
    is_main,
    together,
)
from surefit.run.checkpoints import (
    load_averages,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
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

if TYPE_CHECKING:
    from torch import nn


class Saver:
    """Saves checkpoints without waiting for the disk.

    When `save` returns, the bytes have been handed to the system, so training may change the
    weights. A thread waits until they are on the disk, gives the checkpoint its name and deletes
    old ones. What goes wrong there is raised by the next `save`, or at the end of the block.
    """

    def __init__(self, folder: Path, keep: int, engine: Engine, pipeline: Pipeline) -> None:
        self._folder, self._keep, self._engine, self._pipeline = folder, keep, engine, pipeline
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="surefit-save")
        self._waiting: Future[None] | None = None
        self._at_once = False

    def __enter__(self) -> Saver:
        self._pool.submit(int)  # starts the thread, which has no room to start near a memory limit
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait()
        finally:
            self._pool.shutdown()

    def save(self, state: State) -> None:
        """Save what a run needs to resume after this step; all processes call it.

        Of a sharded model, each writes its shards.
        """
        engine, live, best = self._engine, self._pipeline.live, state.best_step
        if isinstance(live, StreamWindows):
            state.stream = live.position()

        def finish(publish: Callable[[], None]) -> None:
            publish()
            prune_checkpoints(self._folder, self._keep, best)

        def later(publish: Callable[[], None]) -> None:
            if self._at_once:
                finish(publish)
            else:
                self._waiting = self._pool.submit(finish, publish)

        if is_main() or engine.is_sharded:
            with together("saving the step before") if engine.is_sharded else nullcontext():
                self._wait()
            scaler = engine.accelerator.scaler
            scale = scaler.state_dict() if scaler is not None else {}
            module, optimizer = self._pipeline.module, engine.plain_optimizer
            save_checkpoint(self._folder, module, optimizer, scale, state, later)
        engine.accelerator.wait_for_everyone()

    def save_at_once(self, state: State) -> None:
        """Save in the calling thread, as a process does that is short of memory.

        An earlier save that failed is forgotten, because this one replaces it.
        """
        with suppress(Exception):
            self._wait()
        self._at_once = True
        self.save(state)

    def _wait(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.result()


def save_model_of_step(
    plan: Plan, run: Run, skeleton: Skeleton | None, step: int | None, *, alone: bool = False
) -> None:
    """Save the run's model with its report: that of a saved step, or the one in memory.

    All processes call it and process 0 writes; `alone` means that it is the only one to call it.
    A skeleton is that of a sharded model.
    """
    from surefit.report.examples import finish_examples
    from surefit.report.page import write_report

    assert plan.job is not None
    assert plan.model is not None
    if not is_main() and skeleton is None:
        return
    module = _model_of_step(plan.job, run, skeleton, step, alone)
    if not is_main():
        return
    remember = partial(remember_code, plan, str(run.plan["run_id"]), run.path)
    save_model(module, plan.job.pipeline.encoder, plan.model.source, run.model_path, remember)
    if skeleton is None:  # the shards of a model compute together, and the others have left
        files.write_json(run.path / EXAMPLES, finish_examples(plan.job))
    write_report(run)


def _model_of_step(
    job: Job, run: Run, skeleton: Skeleton | None, step: int | None, alone: bool
) -> nn.Module:
    """Return the whole module with the weights of a step, or their averages; None for those in
    memory."""
    module = job.pipeline.module
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
        if job.optimizer.ema is not None:
            load_averages(path, job.optimizer.make(module))
    return gather_model(skeleton, module, run) if skeleton is not None and not alone else module


def gather_model(skeleton: Skeleton, module: nn.Module, run: Run) -> nn.Module:
    """Gather a sharded module, with the values on process 0 only; all processes call it."""
    trim_heap()  # of what the steps have freed
    return skeleton.gather(module, run.path)


def find_checkpoint(run: Run, notice: Callable[[str], None]) -> Chosen:
    """Return the checkpoint to resume from; what is damaged is renamed.

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
    return for_all


def resume_extended(state: State, run: Run, patience: int | None) -> None:
    """Let a run that had stopped early train further, if it was extended or has more patience."""
    extended = from_main(lambda: run.spans(0)[-1][0])
    if extended and state.step == extended:
        state.stale_evaluations, state.stopped_early = 0, False
    elif patience is None or state.stale_evaluations < patience:
        state.stopped_early = False
