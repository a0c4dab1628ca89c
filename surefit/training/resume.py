"""Resuming a run: what must be as it was when the run began, and what to do where it is not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import __version__
from surefit.config import RunConfig
from surefit.core import files
from surefit.core.locks import FILE as LOCK_FILE
from surefit.core.locks import lock_run
from surefit.data.cache import entry_folder
from surefit.data.cache_entry import is_sound
from surefit.data.cell_files import with_files
from surefit.errors import RunFailedError, UsageError
from surefit.findings import Finding, accept_findings, note, rule
from surefit.inputs.store import Store
from surefit.plan.disk import fit_on_disk
from surefit.plan.fit_in_memory import NOTHING_TO_DIVIDE
from surefit.plan.make_plan import make_plan
from surefit.plan.plan import Plan
from surefit.plan.prepare_data import open_tables
from surefit.processes import is_main, main_first, num_processes, together
from surefit.progress import Progress
from surefit.report.page import write_report
from surefit.request import PythonObjects, Request
from surefit.run.run_folder import Run, choose_folder, open_run, write_beginning
from surefit.training.begin_run import check_common_folder
from surefit.training.resume_changes import (
    GOES_ON,
    as_dict,
    changes_of,
    describe_changed_rows,
    describe_extension,
    extend_spans,
    named_keys,
    resumed_config,
)
from surefit.training.run import SILENT, Listeners, refuse_errors, run_plan
from surefit.user_code import RunCode
from surefit.user_code.named_code import code_names

if TYPE_CHECKING:
    from torch import nn

    from surefit.pipeline.pipeline import Pipeline


DATA_KEYS = ("data_key", "eval_key", "stores", "table_keys")
"""What a run's plan has of its data: all of it is that of the rows it resumed with."""
DATA_CHANGED = rule(
    "SF403",
    "error",
    "the data changed since the run began",
    why="A resumed run must see the rows it was begun with, or it is another run.",
    fix="Put the old data back, or start a new run.",
    accept=(
        "The run resumes with the rows as they are now. It no longer equals an uninterrupted run, "
        "and its metrics before and after are of different validation rows."
    ),
)


def resume_run(
    path: str | Path,
    request: Request,
    named: set[str],
    listeners: Listeners = SILENT,
    trust_code: Iterable[str] = (),
) -> Run:
    """Resume exactly where a run stopped; options (`named`) may repeat what it was begun with.

    What may differ is in `changed_config.CHANGEABLE`; more epochs or steps extend a run. With
    another output, a copy of the run goes on there.
    """
    if num_processes() > 1:
        check_common_folder(Path(path))
    with together("opening the run"):
        run = open_run(path, trust_code)
    run = _in_output(run, request.config.output)
    with _locked(run):
        code = _with_named(run.code, request, named)
        return _resume(run, replace(request, code=code), named, listeners)


def _in_output(run: Run, output: str | None) -> Run:
    """The run, or its copy in another folder if one is asked for."""
    if output is None or Path(output).resolve() == run.path.resolve():
        return run
    with main_first():
        if not is_main():
            return Run(Path(output), trust_code=run.trust_code)
        with _locked(run):
            return _copy_run(run, output)


def _copy_run(run: Run, output: str) -> Run:
    """A copy of the run in `output`, a new or an empty folder; the run stays as it was."""
    folder = choose_folder(output, "run")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f"{folder} is not empty, so {run.path} cannot be resumed there.",
            "Choose another --output, or leave it out to resume in place.",
        )
    try:
        with files.new_folder(folder) as temporary:
            shutil.copytree(run.path, temporary, dirs_exist_ok=True, ignore=_not_copied)
    except (OSError, shutil.Error) as error:
        raise RunFailedError(
            f"{run.path} cannot be copied to {folder}: {error}.",
            "Choose another --output, or leave it out to resume in place.",
        ) from None
    return replace(run, path=folder)


def _not_copied(folder: str, names: list[str]) -> list[str]:
    """Locks, what killed writes left, and links, which could lead out of the run."""
    return [
        name
        for name in names
        if name == LOCK_FILE
        or files.TEMPORARY.fullmatch(name)
        or os.path.islink(Path(folder, name))
    ]


def _locked(run: Run) -> AbstractContextManager[None]:
    return lock_run(run.path) if is_main() else nullcontext()


def _resume(run: Run, request: Request, named: set[str], listeners: Listeners) -> Run:
    with together("comparing the config with the run's"):
        stored, config = run.plan, resumed_config(run, request.config, named)
        _refuse_other_version(run, stored)
    changes = changes_of(run, config)
    if run.finished and not any(change.key in GOES_ON for change in changes):
        if is_main() and not run.report_path.is_file():
            write_report(run)
        listeners.notice(f"{run.path} is already finished.")
        return run
    with together("finding the data and the steps of the run"):
        config, moved = find_moved(run, config)
        changes = changes_of(run, config)
        spread = spread_steps(run, config)
    plan = plan_of_run(run, replace(request, config=spread), listeners.progress).found(moved)
    if "parallel" not in named_keys(named):  # a sharded run may resume in one process
        left = (found for found in plan.findings if found.code != NOTHING_TO_DIVIDE.code)
        plan = replace(plan, findings=tuple(left))
    other_rows = _changed_rows(run, plan)
    plan = plan.found(accept_findings(other_rows, config.accept))
    spans = run.spans(stored["steps"])
    if plan.job is not None:
        spans = extend_spans(run, spans, plan.job.num_steps)
        notes = [note(f"{change}.") for change in changes]
        plan = plan.found(notes, describe_extension(plan, run, spans))
        plan = fit_on_disk(plan, run.path)
    listeners.on_plan(plan, run.path)
    refuse_errors(plan)
    assert plan.job is not None
    if run.finished and plan.job.num_steps <= run.saved_step:
        return run
    if (changes or other_rows) and is_main():
        noted = [*stored.get("changes", []), {"step": run.saved_step, **as_dict(changes)}]
        extended = {"steps": plan.job.num_steps, "spans": spans, "changes": noted}
        extended |= {key: plan.as_dict()[key] for key in DATA_KEYS}
        write_beginning(run.path, config, {**stored, **extended})
    return run_plan(plan, run, listeners)


def plan_of_run(run: Run, request: Request, progress: Progress) -> Plan:
    """The plan of a run made again from its data, with the choices it was begun with."""
    stored = run.plan
    _refuse_other_version(run, stored)
    _refuse_missing_objects(run, request.objects)
    plan = make_plan(replace(request, choices=stored.get("choices", {})), progress)
    return replace(plan, baselines=stored.get("baselines", {}))


def validation_rows(
    run: Run, pipeline: Pipeline, model: nn.Module | None, progress: Progress
) -> Store:
    """The encoded rows that a finished run was validated on.

    They are in the cache; where it no longer has them, or the data differs, they are planned again.
    """
    if "data" in run.objects or "eval_data" in run.objects:
        raise UsageError(
            f"{run.path} was trained on Python objects, which it does not hold.",
            "Pass the rows: surefit evaluate RUN --data FILE.",
        )
    _refuse_other_version(run, run.plan)
    config, _ = find_moved(run, run.config)
    tables, _ = open_tables(config, PythonObjects(), run.task)
    sides = (tables[0], tables[1] or tables[0])
    named = (with_files(side, pipeline.encoder.roles, run.task.file_roles) for side in sides)
    if [side.key for side in named] == run.plan.get("table_keys"):
        folder = entry_folder("encoded", run.plan["stores"]["validation"])
        if is_sound(folder) and Store(folder).key == run.plan["eval_key"]:
            return Store(folder)
    return _encode_again(run, config, model, progress)


def _encode_again(
    run: Run, config: RunConfig, model: nn.Module | None, progress: Progress
) -> Store:
    """The validation rows of a plan made anew; refused where they are not those of the run."""
    # validation rows have no augmented copies; the scorer is the run's; rows are encoded alike in
    # every precision, and this machine may not have the run's
    generate = config.generate.model_copy(update={"scorer": None})
    plain = {
        "augmentation_factor": 1,
        "generate": generate,
        "early_stopping": type(config.early_stopping)(),
        "metrics": {n: each for n, each in config.metrics.items() if each.function is None},
        "precision": "fp32",
    }
    # what `train` returns holds the trained module; the plan builds a named model from its name
    passed = run.module_object if "model" in run.objects else None
    objects = PythonObjects(
        model=model if model is not None else passed,
        task=run.task_object,
        collate_fn=run.collate_fn,
        loss_fn=run.loss_fn,
    )
    config = config.model_copy(update=plain)
    request = Request(config, objects, run.code, run.plan.get("choices", {}))
    plan = make_plan(request, progress)
    refuse_errors(plan)
    assert plan.job is not None
    if plan.job.validation.key != run.plan["eval_key"]:
        raise DATA_CHANGED.error(
            f"The validation rows of {run.path} are not those it was trained with. "
            + describe_changed_rows(run.plan, plan.job, sides=("validation",)),
            fix="Put the old data back, or name the rows: surefit evaluate RUN --data FILE.",
        )
    return plan.job.validation


def _changed_rows(run: Run, plan: Plan) -> list[Finding]:
    """The error about rows that are not those the run was begun with."""
    if not plan.ok or plan.job is None or plan.data_key == run.plan["data_key"]:
        return []
    message = f"The rows of {run.path} are not those it was begun with. " + describe_changed_rows(
        run.plan, plan.job
    )
    fix = f"{DATA_CHANGED.fix} To resume with these rows: --set accept=[{DATA_CHANGED.code}]."
    return [DATA_CHANGED.finding(message, fix=fix)]


def _with_named(code: RunCode, request: Request, named: set[str]) -> RunCode:
    """The gate of a run's code, which also allows what the options or the config file name."""
    keys = named_keys(named)
    names = {
        name
        for key, name in code_names(request.config).items()
        if key in keys or key.split(".")[0] in keys
    }
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


def spread_steps(run: Run, config: RunConfig) -> RunConfig:
    """The config with the micro-batches of a step spread over the processes that are there now."""
    count, before = num_processes(), int(run.plan["num_processes"])
    in_step = config.grad_accum * before
    if in_step % count == 0:
        return config.model_copy(update={"grad_accum": in_step // count})
    possible = [str(n) for n in range(1, in_step + 1) if in_step % n == 0]
    raise UsageError(
        f"{run.path} was begun with {before} processes and has {in_step} micro-batches in a step, "
        f"which cannot be spread evenly over {count} processes.",
        f"Launch it with {' or '.join(possible)} processes.",
    )


def find_moved(run: Run, config: RunConfig) -> tuple[RunConfig, list[Finding]]:
    """The config with the places at which the data is now, and a note for each that moved."""
    found: dict[str, tuple[str, ...]] = {}
    notes = []
    for key in ("data", "eval_data"):
        places = []
        for named in getattr(config, key):
            place = _find(run, Path(named))
            if place is not None:
                message = f"{named} is gone; {place} is read in its place."
                notes.append(note(message, file=str(place)))
            places.append(str(place or named))
        found[key] = tuple(places)
    return config.model_copy(update=found), notes


def _find(run: Run, path: Path) -> Path | None:
    """Where a path of the run's data is now; None if it is still there, or is a hub id."""
    if path.exists() or not path.is_absolute():
        return None
    folder = run.path.resolve()
    beside = (Path.cwd(), Path.cwd() / path.parent.name, folder.parent, folder.parent.parent)
    for place in (folder / path.name for folder in beside):
        if place.exists():
            return place.resolve()
    raise UsageError(
        f"The data of {run.path} is gone: there is no {path}.",
        f"Pass its new place: surefit train --resume {run.path} --data FILE. It is accepted if its "
        "rows are those that the run was begun with. To evaluate: surefit evaluate "
        f"{run.path} --data FILE.",
    )
