"""What a run saves: a checkpoint of a step, and the model of a step with the report."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from surefit import atomic
from surefit.errors import RunFailedError
from surefit.memory.process_memory import trim_heap
from surefit.models.gathered_model import Skeleton
from surefit.models.lora import is_adapted
from surefit.models.save_model import save_model
from surefit.models.shard_module import is_sharded
from surefit.peers.signs_of_life import NOTES
from surefit.pipeline.pipeline import Pipeline
from surefit.plan.plan import Plan
from surefit.processes import is_main
from surefit.run.checkpoint_state import State
from surefit.run.checkpoints import Saver, load_checkpoint
from surefit.run.choose_checkpoint import checkpoint_path
from surefit.run.run_folder import EXAMPLES, Run
from surefit.training.remember_code import remember_code
from surefit.training.stream_position import note_position

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn


def save_state(
    saver: Saver, pipeline: Pipeline, optimizer: Any, accelerator: Accelerator, state: State
) -> None:
    """Save a checkpoint; all processes call it: of a divided model, each writes its shares."""
    NOTES.note("saving")
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
    from surefit.report.mask_examples import make_mask_examples
    from surefit.report.page import write_report

    NOTES.note("writing the model")
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
        atomic.write_json(run.path / EXAMPLES, examples)
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
