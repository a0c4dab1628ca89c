"""Dress rehearsal: what a run does hours later is done once before its first step.

Each phase writes into a scratch folder. Weights, buffers, random states and optimizer stay as they
are: training is the same as without the rehearsal, bit for bit.
"""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import atomic, digests
from surefit.checks.probes.save_reload import RELOAD_DIFFERS
from surefit.errors import FindingError, SurefitError, describe_error
from surefit.explainer import explain
from surefit.findings import Finding, accept_findings, rule
from surefit.memory.prove import create_optimizer_state, restoring_state
from surefit.models.cpu_copy import cpu_copy
from surefit.models.optimizer import make_optimizer
from surefit.models.save_model import load_model, needs_module, save_merged, save_model
from surefit.models.shard_module import own_shard
from surefit.pipeline.evaluation import EvaluationSettings
from surefit.pipeline.job import Job
from surefit.plan.choose_rehearsal import FEW_TOKENS, Rehearsal
from surefit.plan.plan import Plan
from surefit.processes import from_main, gather, is_main
from surefit.progress import Progress, silent
from surefit.report.page import write_report
from surefit.run.checkpoint_state import State
from surefit.run.checkpoints import load_checkpoint, save_checkpoint, saved_tensors
from surefit.run.choose_checkpoint import checkpoint_path
from surefit.run.events import Event, event_writer
from surefit.run.run_folder import Run
from surefit.run.scratch_folder import scratch_folder
from surefit.run.sharded_checkpoints import saved_state
from surefit.training.disk_failures import as_disk_failure
from surefit.training.engine import Engine
from surefit.training.save_step import gather_model
from surefit.user_code import RunCode

if TYPE_CHECKING:
    from torch import nn

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
    why="A run that resumes from it would not go on where it stopped.",
    fix="Let state_dict() and load_state_dict() of the module carry the same values.",
)


@dataclass(frozen=True)
class Stage:
    """What a phase needs: the plan, the engine, and a run in the scratch folder."""

    plan: Plan
    engine: Engine
    run: Run
    progress: Progress = silent

    @property
    def job(self) -> Job:
        """What is trained on what."""
        assert self.plan.job is not None
        return self.plan.job

    @property
    def module(self) -> nn.Module:
        """The model."""
        return self.job.pipeline.module

    @property
    def rehearsal(self) -> Rehearsal:
        """What is rehearsed."""
        assert self.plan.rehearsal is not None
        return self.plan.rehearsal


def rehearse(
    plan: Plan, engine: Engine, prepare: Callable[[Path], Run], settings: EvaluationSettings
) -> list[Finding]:
    """Do the phases that the plan names, in a scratch folder beside its output; what failed.

    `prepare` makes a run of the scratch folder, with config and plan.
    """
    assert plan.disk is not None
    assert plan.rehearsal is not None
    own = plan.rehearsal.phases
    phases = from_main(lambda: own)  # processes predict other times, and do phases together
    if not phases:
        return []
    assert plan.job is not None
    with (
        scratch_folder(plan.disk.folder) if is_main() else nullcontext(Path()) as folder,
        nullcontext() if plan.rehearsal.is_whole else atomic.without_waiting(),
        restoring_state(plan.job.pipeline.module, engine.plain_optimizer, fresh=False),
    ):
        run = prepare(folder) if is_main() else Run(folder)
        if engine.is_sharded:  # all write into the folder of the first
            run = run if (place := gather(run.path)[0]) == run.path else Run(place)
        stage = Stage(plan, engine, run)
        for phase in phases:
            if not _takes_part(phase, engine):
                continue
            found = _try_phase(phase, stage, settings)
            if engine.is_sharded and phase in TOGETHER:
                found = next((each for each in gather(found) if each), [])
            if found:
                return list(accept_findings(found, plan.config.accept))
    return []


def _takes_part(phase: str, engine: Engine) -> bool:
    """Whether this process does the phase."""
    return is_main() or phase == "evaluation" or (engine.is_sharded and phase in TOGETHER)


def _try_phase(phase: str, stage: Stage, settings: EvaluationSettings) -> list[Finding]:
    try:
        return _PHASES[phase](stage, settings)
    except FindingError as error:
        return list(error.findings)
    except Exception as error:
        if as_disk_failure(error, stage.run) is not None:
            raise  # not a fault of the phase
        return [_failed(phase, error)]


def _failed(phase: str, error: Exception) -> Finding:
    """The finding about an exception of a phase."""
    if isinstance(error, SurefitError):
        return REHEARSAL_FAILED.finding(
            f"The rehearsal of {phase} failed: {error.message}", fix=error.fix
        )
    known = explain(error)
    cause = f" Cause: {known.code} {known.title}." if known.known else ""
    message = f"The rehearsal of {phase} failed: {describe_error(error)}{_place(error)}.{cause}"
    return REHEARSAL_FAILED.finding(message, fix=known.fix or "")


def _place(error: Exception) -> str:
    """Where in the user's own code it was raised; empty where it was not."""
    import surefit

    known = {sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib")}
    others = (str(Path(surefit.__file__).parent), "<", *known)
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(others):
            place = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _evaluate(stage: Stage, settings: EvaluationSettings) -> list[Finding]:
    """Evaluate and generate, and write the event of it; one batch unless all is asked for.

    A metric may need more rows than one batch has: what fails there is tried on all of them.
    """
    job, group = stage.job, stage.engine.group
    few = replace(settings, max_batches=1, max_new_tokens=min(settings.max_new_tokens, FEW_TOKENS))
    if stage.rehearsal.is_whole:
        result = job.pipeline.evaluate(job.validation, settings, group, stage.progress)
    else:
        try:
            result = job.pipeline.evaluate(job.validation, few, group)
        except Exception:
            if group.size > 1:
                raise
            result = job.pipeline.evaluate(job.validation, settings, group)
    if not is_main():
        return []
    best = stage.plan.config.early_stopping.metric
    float(result.metrics[best if best in result.metrics else "loss"])
    event = {"event": "eval", "step": 1, "epoch": 1, "metrics": result.metrics}
    _emit(stage, {**event, "samples": result.samples} if result.samples else event)
    return []


def _emit(stage: Stage, event: Event) -> None:
    """Write an event; callbacks get it, marked, only where a rehearsal was asked for."""
    with event_writer(stage.run.events_path) as write:
        write(event)
    if stage.plan.config.rehearse:
        for callback in stage.plan.objects.callbacks:
            callback({**event, "rehearsal": True})


def _checkpoint(stage: Stage, settings: EvaluationSettings) -> list[Finding]:
    """Save a checkpoint of full size, load it, and compare it with what was saved.

    The optimizer is another one on the same weights, so that the run's own stays without state.
    """
    import torch

    plan, module = stage.plan, stage.module
    assert plan.model is not None
    passed = plan.objects.optimizer
    is_object = isinstance(passed, torch.optim.Optimizer)
    optimizer = make_optimizer(
        module, plan.model.lr, plan.config.weight_decay, passed, plan.config.lr_by
    )
    if passed is None:
        create_optimizer_state(module, optimizer)
    stage.run.checkpoints.mkdir(parents=True, exist_ok=True)
    state = State(step=1, evaluated_step=1, best=0.5, best_step=1)
    save_checkpoint(stage.run.checkpoints, module, optimizer, {}, state)
    path = checkpoint_path(stage.run.checkpoints, 1)
    sharded = stage.engine.is_sharded
    before = _copy_shares(module) if sharded else {}
    wrong = "" if sharded else _compare(path, module, "saved as another value")
    if not wrong:
        loaded, _ = load_checkpoint(path, module, None if is_object else optimizer)
        assert loaded == state
        how = "another value after loading"
        wrong = _compare_shares(before, module, how) if sharded else _compare(path, module, how)
    return [NOT_RESTORED.finding(wrong)] if wrong else []


def _copy_shares(module: nn.Module) -> dict[str, Any]:
    return {n: own_shard(t).detach().clone() for n, (t, _) in saved_state(module).items()}


def _compare_shares(before: Mapping[str, Any], module: nn.Module, how: str) -> str:
    """The first weight or buffer of which this process has another share than before."""
    now = _copy_shares(module)
    wrong = (name for name, share in before.items() if not _same(now[name], share))
    return next((f"{name} of the module is {how}." for name in wrong), "")


def _compare(path: Path, module: nn.Module, how: str) -> str:
    """The first weight or buffer that differs from the checkpoint's file; empty if none does."""
    from safetensors import safe_open

    own = saved_tensors(module)
    with safe_open(str(path / "model.safetensors"), "pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no dict
            if not _same(own.get(name), file.get_tensor(name)):
                return f"{name} of the module is {how}."
    return ""


def _same(one: Any, two: Any) -> bool:
    """Whether two tensors have the same values; NaN equals NaN."""
    import torch

    if one is None or one.shape != two.shape:
        return False
    one, two = one.detach().cpu(), two.to(one.dtype).cpu()
    return bool(torch.equal(one, two)) or bool(
        torch.allclose(one, two, rtol=0.0, atol=0.0, equal_nan=True)
    )


def _model(stage: Stage, settings: EvaluationSettings) -> list[Finding]:
    """Save the model with its tokenizer, as the end of the run does."""
    assert stage.plan.model is not None
    source, pipeline = stage.plan.model.source, stage.job.pipeline
    module, skeleton = pipeline.module, stage.engine.skeleton
    if skeleton is not None:
        module = gather_model(skeleton, module, stage.run)
    if is_main():
        save_model(module, pipeline.encoder, source, stage.run.model_path)
    return []


def _reload(stage: Stage, settings: EvaluationSettings) -> list[Finding]:
    """Load the saved model, and compare its weights.

    On the CPU: the device that trains may have no memory for the weights a second time. A base
    model in 4 bits is read as it is in its files; its scales are not part of what is saved.
    """
    assert stage.plan.task is not None
    module, path = stage.module, stage.run.model_path
    other = _emptied(cpu_copy(module)) if needs_module(path) else None
    loaded, _ = load_model(path, stage.plan.task, _gate(stage), other, quantized=False)
    packed = tuple(f"{n}." for n, p in module.named_parameters() if hasattr(p, "quant_state"))
    found, saved = loaded.state_dict(), saved_tensors(module)
    own = {name: tensor for name, tensor in saved.items() if not name.startswith(packed)}
    wrong = [name for name, tensor in own.items() if not _same(found.get(name), tensor)]
    if not wrong:
        return []
    message = f"{len(wrong)} of {len(own)} weights differ once saved and loaded: {wrong[0]}."
    return [RELOAD_DIFFERS.finding(message)]


def _emptied(module: nn.Module) -> nn.Module:
    """The module with zeros for what it has learned."""
    import torch

    with torch.no_grad():
        for weight in module.parameters():
            if weight.requires_grad:
                weight.zero_()
    return module


def _gate(stage: Stage) -> RunCode:
    assert stage.plan.model is not None
    trusted = stage.plan.model.source.trust_remote_code
    return RunCode(stage.run.path, trust_remote_code=trusted)


def _export(stage: Stage, settings: EvaluationSettings) -> list[Finding]:
    """Merge the adapters into the model, as `surefit export --merge` does."""
    assert stage.plan.task is not None
    model = stage.run.model_path
    named = stage.plan.model is not None and "function" in stage.plan.model.source.recipe
    if named or stage.plan.objects.model is not None:  # code that no folder holds
        return []
    save_merged(model, stage.plan.task, stage.run.path / "export", _gate(stage))
    return []


def _report(stage: Stage, settings: EvaluationSettings) -> list[Finding]:
    """Write the report; the curves, which need a second for their library, only where all is."""
    if stage.rehearsal.is_whole:
        step = {"event": "step", "step": 1, "epoch": 1, "loss": 1.0, "lr": 0.0, "tokens": 1}
        _emit(stage, {**step, "seconds": 0.0})
    elif importlib.util.find_spec("plotly") is None:
        raise ImportError("plotly, which draws the curves of the report, is not installed")
    shutil.rmtree(stage.run.checkpoints, ignore_errors=True)
    write_report(stage.run)
    return []


TOGETHER = ("evaluation", "checkpoint", "model")
"""Phases that all processes of a divided model do together."""
Phase = Callable[[Stage, EvaluationSettings], list[Finding]]
_PHASES: Mapping[str, Phase] = {
    "evaluation": _evaluate,
    "checkpoint": _checkpoint,
    "model": _model,
    "reloading the model": _reload,
    "export": _export,
    "report": _report,
}


def copy_beginning(run: Run) -> Callable[[Path], Run]:
    """Make a run of a scratch folder with the config and plan of a run that has begun."""

    def prepare(folder: Path) -> Run:
        for name in ("config.yaml", "plan.json", digests.FILE):
            shutil.copyfile(run.path / name, folder / name)
        return Run(folder, run.task_object)

    return prepare
