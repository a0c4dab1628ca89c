"""Resuming a run: what must be as it was when the run began, and what to do where it is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import __version__
from surefit.config import SHORT_KEYS, RunConfig, known_keys
from surefit.errors import UsageError
from surefit.findings import rule
from surefit.plan.plan import Plan
from surefit.plan.stages import make_plan
from surefit.processes import num_processes
from surefit.progress import Progress
from surefit.request import PythonObjects, Request
from surefit.run.run_folder import Run, open_run
from surefit.training.resolved_config import with_absolute_paths
from surefit.training.start import SILENT, Listeners, refuse_errors, run_plan
from surefit.user_code import RunCode
from surefit.user_code.named_code import code_names

if TYPE_CHECKING:
    from torch import nn

DATA_CHANGED = rule(
    "SF403",
    "error",
    "the data changed since the run began",
    why="A resumed run must see the rows it was begun with, or it is another run.",
    fix="Put the old data back, or start a new run.",
)


def resume_run(
    path: str | Path,
    request: Request,
    named: set[str],
    listeners: Listeners = SILENT,
    trust_code: Iterable[str] = (),
) -> Run:
    """Resume exactly where a run stopped; options (`named`) may repeat what it was begun with.

    Only `max_memory_gb` may differ.
    """
    run = open_run(path, trust_code)
    _refuse_contradictions(run, request.config, named)
    if run.finished:
        return run
    stored = run.plan
    _refuse_other_version(run, stored)
    _refuse_missing_objects(run, request.objects)
    code = _with_named(run.code, request, named)
    config = run.config
    if "max_memory_gb" in named:  # a limit of the machine, which changes nothing that is trained
        config = config.model_copy(update={"max_memory_gb": request.config.max_memory_gb})
    request = replace(request, config=config, code=code, choices=stored.get("choices", {}))
    plan = make_plan(request, listeners.progress)
    if plan.ok and plan.data_key != stored["data_key"]:
        message = f"The rows of {run.path} are not those it was begun with."
        plan = plan.found([DATA_CHANGED.finding(message)])
    listeners.on_plan(plan, run.path)
    refuse_errors(plan)
    if num_processes() != stored["num_processes"]:
        raise UsageError(
            f"{run.path} was begun with {stored['num_processes']} processes, not "
            f"{num_processes()}.",
            "Launch it with the same number.",
        )
    return run_plan(plan, run, listeners)


def plan_again(run: Run, model: nn.Module | None, progress: Progress) -> Plan:
    """The plan of a finished run made anew, to have its validation rows again."""
    if "data" in run.objects or "eval_data" in run.objects:
        raise UsageError(
            f"{run.path} was trained on Python objects, which it does not hold.",
            "Pass the rows: surefit evaluate RUN --data FILE.",
        )
    _refuse_other_version(run, run.plan)
    # validation rows have no augmented copies; the scorer is the run's; rows are encoded alike in
    # every precision, and this machine may not have the run's
    config = run.config
    generate = config.generate.model_copy(update={"scorer": None})
    stopping = type(config.early_stopping)()
    plain = {
        "augmentation_factor": 1,
        "generate": generate,
        "early_stopping": stopping,
        "precision": "fp32",
    }
    objects = PythonObjects(
        model=model if model is not None else run.module_object,
        task=run.task_object,
        collate_fn=run.collate_fn,
    )
    request = Request(
        config.model_copy(update=plain), objects, run.code, run.plan.get("choices", {})
    )
    plan = make_plan(request, progress)
    refuse_errors(plan)
    assert plan.job is not None
    if plan.job.validation.key != run.plan["eval_key"]:
        raise DATA_CHANGED.error(f"The rows of {run.path} are not those it was trained on.")
    return plan


def _with_named(code: RunCode, request: Request, named: set[str]) -> RunCode:
    """The gate of a run's code, which also allows what the options or the config file name."""
    keys = _given_keys(named)
    names = {name for key, name in code_names(request.config).items() if key in keys}
    remote = "trust_remote_code" in keys and request.config.trust_remote_code
    beside = request.code.beside
    return replace(code, trusted=code.trusted | names, beside=beside, trust_remote_code=remote)


def _refuse_other_version(run: Run, stored: Mapping[str, Any]) -> None:
    version = stored.get("version")
    if version != __version__:
        raise UsageError(
            f"{run.path} was begun with surefit {version}; this is {__version__}, which may encode "
            "rows differently, so it cannot resume to the bit.",
            f"Resume it with surefit {version}, or start a new run from its model: "
            f"--model {run.path}.",
        )


def _refuse_missing_objects(run: Run, objects: PythonObjects) -> None:
    missing = [name for name in run.objects if name not in objects.names()]
    if missing:
        shown = ", ".join(f"{name} ({run.objects[name]})" for name in missing)
        raise UsageError(
            f"{run.path} was begun with Python objects that it does not hold: {shown}.",
            "Resume it from Python and pass them again: "
            f"surefit.train(resume=…, {', '.join(f'{name}=…' for name in missing)}).",
        )


def _refuse_contradictions(run: Run, config: RunConfig, options: set[str]) -> None:
    config = with_absolute_paths(config)
    settled = {"batch_size", "grad_accum"} if config.batch_size == "auto" else set()
    may_differ = {"output", "max_memory_gb"} | settled | set(run.objects)
    for name in sorted(_given_keys(options) - may_differ):
        asked, stored = attrgetter(name)(config), attrgetter(name)(run.config)
        if isinstance(stored, dict):  # the run's has what was inferred besides
            stored = {key: stored.get(key) for key in asked}
        if asked != stored:
            raise UsageError(
                f"--resume contradicts {name}: the run has {stored!r}, you gave {asked!r}.",
                "Leave the option out; a resumed run keeps what it was begun with.",
            )
    if config.output is not None and Path(config.output).resolve() != run.path.resolve():
        raise UsageError(
            f"--resume continues in {run.path}, not in {config.output}.", "Leave --output out."
        )


def _given_keys(options: set[str]) -> set[str]:
    """The keys of a config that options set, sections as the single keys in them."""
    named = {SHORT_KEYS.get(key, key) for key in options}
    return {key for key in known_keys() if key in named or key.split(".")[0] in named}
