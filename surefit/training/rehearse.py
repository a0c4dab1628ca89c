"""Dress rehearsal: what a run does hours later is done once before its first step.

Each phase writes into a scratch folder. Weights, buffers, random states and optimizer stay as they
are: training is the same as without the rehearsal, bit for bit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from surefit.checks.probes.trials import own_line
from surefit.core import files
from surefit.core.locks import scratch_folder
from surefit.errors import FindingError, SurefitError, describe_error
from surefit.explainer import explain
from surefit.findings import Finding, accept_findings, has_errors, rule
from surefit.models.save_model import save_model
from surefit.pipeline.evaluation import EvaluationSettings
from surefit.pipeline.pipeline import Job
from surefit.pipeline.step import restoring_state
from surefit.plan.disk import FEW_TOKENS
from surefit.plan.plan import Plan
from surefit.processes import from_main, gather, is_main
from surefit.report.page import write_report
from surefit.run.checkpoints import load_checkpoint, save_checkpoint, saved_tensors
from surefit.run.choose_checkpoint import State, checkpoint_path
from surefit.run.events import Event, event_writer
from surefit.run.run_folder import Run
from surefit.training.begin_run import begin_run
from surefit.training.engine import Engine
from surefit.training.guards import as_disk_failure
from surefit.training.measured_step import create_optimizer_state
from surefit.training.saving import gather_model
from surefit.training.watches import fingerprint

REHEARSAL_FAILED = rule(
    "SF863",
    "error",
    "a later phase of the run fails",
    why="What the run does after hours of training was tried before its first step, and failed.",
    fix="Correct what the message names; --debug shows the traceback.",
    accept="The run starts, and fails at that phase unless its cause goes away.",
)

NOT_RESTORED = rule(
    "SF864",
    "error",
    "a checkpoint does not restore what was saved",
    why="A run that resumes from it would differ from one that was not stopped.",
    fix="Let state_dict() and load_state_dict() of the module carry the same values.",
)


@dataclass(frozen=True)
class Stage:
    """What a phase needs; `run` is in the scratch folder. With `is_whole`, all at true size."""

    plan: Plan
    job: Job
    engine: Engine
    run: Run
    is_whole: bool


def rehearse(plan: Plan, engine: Engine) -> list[Finding]:
    """Do the phases that the plan names, in a scratch folder beside its output.

    What fails is raised, or returned if the user accepts it.
    """
    assert plan.job is not None
    assert plan.disk is not None
    assert plan.rehearsal is not None
    own, whole = plan.rehearsal.phases, plan.rehearsal.true_size
    phases = from_main(lambda: own)  # processes predict other times, and do phases together
    if not phases:
        return []
    with (
        scratch_folder(plan.disk.folder) if is_main() else nullcontext(Path()) as folder,
        nullcontext() if whole else files.without_waiting(),
        restoring_state(plan.job.pipeline.module, engine.plain_optimizer, fresh=False),
    ):
        run = begin_run(plan, uuid.uuid4().hex, folder) if is_main() else Run(folder)
        if engine.is_sharded:  # all write into the folder of the first
            run = run if (place := gather(run.path)[0]) == run.path else Run(place)
        stage, found = Stage(plan, plan.job, engine, run, whole), list[Finding]()
        for phase in phases:
            together = engine.is_sharded and phase != "report"
            if has_errors(found) or not (is_main() or phase == "evaluation" or together):
                continue
            new = _try_phase(phase, stage)
            found += next((each for each in gather(new) if each), []) if together else new
    found = list(accept_findings(found, plan.config.accept))
    if has_errors(found):
        raise FindingError(*found)
    return found


def _try_phase(phase: str, stage: Stage) -> list[Finding]:
    try:
        _PHASES[phase](stage)
        return []
    except FindingError as error:
        return list(error.findings)
    except Exception as error:
        if as_disk_failure(error, stage.run) is not None:
            raise  # not a fault of the phase
        failed = f"The rehearsal of {phase} failed"
        if isinstance(error, SurefitError):
            return [REHEARSAL_FAILED.finding(f"{failed}: {error.message}", fix=error.fix)]
        known, place = explain(error), own_line(error)
        where = f" ({place['file']}, line {place['line']})" if place else ""
        cause = f" Cause: {known.code} {known.title}." if known.known else ""
        message = f"{failed}: {describe_error(error)}{where}.{cause}"
        return [REHEARSAL_FAILED.finding(message, place, fix=known.fix or "")]


def _evaluate(stage: Stage) -> None:
    """Evaluate and generate, and write the event of it; one batch unless all is asked for.

    A metric may need more rows than one batch has: what fails there is tried on all of them.
    """
    job, group, settings = stage.job, stage.engine.group, EvaluationSettings.of(stage.plan.config)
    most = min(settings.max_new_tokens or FEW_TOKENS, FEW_TOKENS)
    few = replace(settings, max_batches=1, max_new_tokens=most)
    try:
        result = job.evaluate(settings if stage.is_whole else few, group)
    except Exception:
        if stage.is_whole or group.size > 1:
            raise
        result = job.evaluate(settings, group)
    if is_main():
        best = stage.plan.config.early_stopping.metric
        float(result.metrics[best if best in result.metrics else "loss"])
        event = {"event": "eval", "step": 1, "epoch": 1, "metrics": result.metrics}
        _emit(stage, {**event, "samples": result.samples} if result.samples else event)


def _emit(stage: Stage, event: Event) -> None:
    """Write an event; callbacks get it, marked, only where a rehearsal was asked for."""
    with event_writer(stage.run.events_path) as write:
        write(event)
    for callback in stage.plan.objects.callbacks if stage.is_whole else ():
        callback({**event, "rehearsal": True})


def _checkpoint(stage: Stage) -> None:
    """Save a checkpoint of full size, load it, and compare the weights and buffers.

    The optimizer is another one on the same weights, so that the run's own stays without state.
    """
    plan, module, folder = stage.plan, stage.job.pipeline.module, stage.run.checkpoints
    assert plan.model is not None
    passed = stage.job.optimizer.passed
    optimizer = stage.job.optimizer.make(module)
    if passed is None:
        create_optimizer_state(module, optimizer)
    folder.mkdir(parents=True, exist_ok=True)
    state = State(step=1, evaluated_step=1, best=0.5, best_step=1)
    save_checkpoint(folder, module, optimizer, {}, state)
    before = {name: fingerprint(tensor) for name, tensor in saved_tensors(module).items()}
    is_fresh = optimizer is not passed  # the state of the user's own stays as it is
    loaded, _ = load_checkpoint(checkpoint_path(folder, 1), module, optimizer if is_fresh else None)
    assert loaded == state
    for name, tensor in saved_tensors(module).items():
        if fingerprint(tensor) != before[name]:
            raise NOT_RESTORED.error(f"{name} of the module is another value after loading.")


def _model(stage: Stage) -> None:
    """Save the model with its tokenizer, as the end of the run does."""
    assert stage.plan.model is not None
    pipeline, skeleton = stage.job.pipeline, stage.engine.skeleton
    module = pipeline.module
    if skeleton is not None:
        module = gather_model(skeleton, module, stage.run)
    if is_main():
        save_model(module, pipeline.encoder, stage.plan.model.source, stage.run.model_path)


def _report(stage: Stage) -> None:
    """Write the report with the curves of a step."""
    step = {"event": "step", "step": 1, "epoch": 1, "loss": 1.0, "lr": 0.0, "tokens": 1}
    _emit(stage, {**step, "seconds": 0.0})
    write_report(stage.run)


_PHASES: Mapping[str, Callable[[Stage], None]] = {
    "evaluation": _evaluate,
    "checkpoint": _checkpoint,
    "model": _model,
    "report": _report,
}
