"""Resuming a run: its config and its data must be as they were when the run began.

The validation rows of a finished run are found in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from glob import has_magic
from operator import attrgetter, getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from surefit import __version__
from surefit.config import LOCAL_KEYS, SHORT_KEYS, RunConfig, config_fields, make_config
from surefit.core.locks import lock_run
from surefit.data.cache import entry_folder
from surefit.data.cache_entry import is_sound
from surefit.errors import UsageError, shell, to_resume
from surefit.findings import Finding, accept_findings, note, rule
from surefit.inputs.store import Store
from surefit.models.learning_rate import Schedule
from surefit.pipeline.pipeline import Job
from surefit.plan.disk import fit_on_disk
from surefit.plan.fit_in_memory import NOTHING_TO_DIVIDE
from surefit.plan.make_plan import make_plan
from surefit.plan.plan import Plan
from surefit.processes import is_main, num_processes, together
from surefit.progress import Progress
from surefit.report.page import write_report
from surefit.request import PythonObjects, Request
from surefit.run.run_folder import Run, open_run, write_beginning
from surefit.training.begin_run import check_common_folder, with_absolute_paths
from surefit.training.run import refuse_errors, run_plan
from surefit.training.work import SILENT, Listeners
from surefit.user_code import RunCode
from surefit.user_code.named_code import code_names

if TYPE_CHECKING:
    from torch import nn


DATA_KEYS = ("data_key", "eval_key", "stores")
"""What a run's plan has of its data: all of it is that of the rows it resumed with."""


def resume_run(
    path: str | Path,
    request: Request,
    named: set[str],
    listeners: Listeners = SILENT,
    trust_code: Iterable[str] = (),
) -> Run:
    """Resume exactly where a run stopped; options (`named`) may repeat what it was begun with.

    What may differ is in `CHANGEABLE`; more epochs or steps extend a run.
    """
    if num_processes() > 1:
        check_common_folder(Path(path))
    with together("opening the run"):
        run, output = open_run(path, trust_code), request.config.output
        if output is not None and Path(output).resolve() != run.path.resolve():
            raise UsageError(
                f"--resume resumes {run.path} where it is; --output is {output}.",
                f"Leave --output out. To keep the run as it is, copy it first: "
                f"cp -r {shell(run.path)} {shell(output)}; then --resume {shell(output)}.",
            )
    with lock_run(run.path) if is_main() else nullcontext():
        code = _with_named(run.code, request, named)
        return _resume(run, replace(request, code=code), named, listeners)


def _resume(run: Run, request: Request, named: set[str], listeners: Listeners) -> Run:
    with together("comparing the config with the run's"):
        stored, config = run.plan, resumed_config(run, request.config, named)
        refuse_other_version(run, stored)
    changes = changes_of(run, config)
    if run.finished and not any(change.key in EXTENDING for change in changes):
        if is_main() and not run.report_path.is_file():
            write_report(run)
        listeners.notice(f"{run.path} is already finished.")
        return run
    with together("finding the data and the steps of the run"):
        refuse_missing_data(run, config)
        spread = spread_steps(run, config)
    plan = plan_of_run(run, replace(request, config=spread), listeners.progress)
    if "parallel" not in named_keys(named):  # a sharded run may resume in one process
        left = (found for found in plan.findings if found.code != NOTHING_TO_DIVIDE.code)
        plan = replace(plan, findings=tuple(left))
    other_rows = changed_rows(run, plan)
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
    """Return the plan of a run made again from its data, with the choices it was begun with."""
    stored = run.plan
    refuse_other_version(run, stored)
    _refuse_missing_objects(run, request.objects)
    plan = make_plan(replace(request, choices=run.choices), progress)
    return replace(plan, baselines=stored.get("baselines", {}))


def _with_named(code: RunCode, request: Request, named: set[str]) -> RunCode:
    """Return the gate of a run's code, which also allows what options or the config file name."""
    keys = named_keys(named)
    names = {
        name
        for key, name in code_names(request.config).items()
        if key in keys or key.split(".")[0] in keys
    }
    remote = "trust_remote_code" in keys and request.config.trust_remote_code
    beside = request.code.beside
    return replace(code, trusted=code.trusted | names, beside=beside, trust_remote_code=remote)


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
    """Spread the micro-batches of a step over the processes that are there now."""
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


LENGTH = ("epochs", "max_steps")
CHANGEABLE = (
    *(*LENGTH, "eval_every", "save_every", "keep", "early_stopping.patience", "on_nonfinite"),
    *("parallel", "accept", "data", "eval_data", *LOCAL_KEYS),
)
"""Keys that decide when a run evaluates, saves and ends, or what it runs on; not what it learns.

Data may be in another place; its rows are compared by content."""


EXTENDING = (*LENGTH, "early_stopping.patience")
"""Keys that let a finished run train further."""


@dataclass(frozen=True)
class Difference:
    """A key whose value differs from the one the run was begun with."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.before!r} → {self.after!r}"


def resumed_config(run: Run, options: RunConfig, named: set[str]) -> RunConfig:
    """Return the config to resume with: the run's, with what config.yaml and the options may
    change.

    Whatever else differs is refused, with both values. What belongs to the machine is that of the
    options.
    """
    begun, edited = make_config(run.plan["config"]), run.config
    hand_edits = list_differences(begun, edited, [*config_fields()])
    _refuse(run, [each for each in hand_edits if each.key not in CHANGEABLE], "config.yaml has")
    asked = with_absolute_paths(options)
    settled = {"batch_size", "grad_accum"} if options.batch_size == "auto" else set()
    keys = sorted(named_keys(named) - settled - set(run.objects) - set(LOCAL_KEYS))
    by_options = list_differences(edited, asked, keys)
    _refuse(run, [each for each in by_options if each.key not in CHANGEABLE], "you gave")
    settings = edited.model_dump(mode="json")
    for each in by_options:
        *sections, last = each.key.split(".")
        reduce(getitem, sections, settings)[last] = each.after
    return make_config(settings).with_local(
        asked.model_copy(update={"output": str(run.path.resolve())})
    )


def as_dict(differences: list[Difference]) -> dict[str, Any]:
    """Return the new values by key, as plan.json keeps them."""
    return {each.key: each.after for each in differences}


def changes_of(run: Run, config: RunConfig) -> list[Difference]:
    """Return what differs from the config that the run was begun or last resumed with."""
    begun = make_config(run.plan["config"])
    return list_differences(begun, config, [k for k in CHANGEABLE if k != "output"])


def list_differences(before: RunConfig, after: RunConfig, keys: list[str]) -> list[Difference]:
    """Return the keys whose values differ. A dict in `after` may leave out what was inferred."""
    found = []
    for key in keys:
        old, new = attrgetter(key)(before), attrgetter(key)(after)
        if isinstance(old, dict) and isinstance(new, dict):
            old = {name: old.get(name) for name in new}
        if old != new:
            found.append(Difference(key, old, new))
    return found


def _refuse(run: Run, differences: list[Difference], who: str) -> None:
    if not differences:
        return
    lines = [
        f"{each.key}: the run has {each.before!r}, {who} {each.after!r}" for each in differences
    ]
    raise UsageError(
        f"--resume contradicts {', '.join(each.key for each in differences)}. "
        + "; ".join(lines)
        + ".",
        "A resumed run keeps what it was begun with; put the value back, or start a new run. "
        f"These may change: {', '.join(CHANGEABLE)}.",
    )


def named_keys(options: set[str]) -> set[str]:
    """Return the keys of a config that options set, sections as the single keys in them."""
    named = {SHORT_KEYS.get(key, key) for key in options}
    within = {key for name in named for key in config_fields() if name.startswith(f"{key}.")}
    return within | {key for key in config_fields() if key in named or key.split(".")[0] in named}


Spans = list[tuple[int, int]]
"""Pairs: after which step a total number of steps applies."""


def extend_spans(run: Run, spans: Spans, num_steps: int) -> Spans:
    """Add a new total from the saved step on; refuse one that is already exceeded."""
    if num_steps == spans[-1][1]:
        return spans
    saved = run.saved_step
    if num_steps < saved:
        raise UsageError(
            f"{run.path} has finished step {saved}; epochs and max_steps now allow {num_steps}.",
            "Give a larger number, or leave it out.",
        )
    return [*(span for span in spans if span[0] < saved or span[0] == 0), (saved, num_steps)]


def describe_extension(plan: Plan, run: Run, spans: Spans) -> list[Finding]:
    """Return the learning rate before and after, where the number of steps changed."""
    before = run.spans(run.plan["steps"])
    if spans == before:
        return []
    assert plan.model is not None
    config, saved, peak = plan.config, spans[-1][0], plan.model.lr
    then, now = (Schedule.of(config).by_step(each) for each in (before, spans))
    return [
        note(
            f"The run has {spans[-1][1]} steps instead of {before[-1][1]}. Learning rate "
            f"({config.schedule}): {peak * then(max(saved, 1)):.3g} at step {max(saved, 1)}, "
            f"{peak * now(saved + 1):.3g} at step {saved + 1}."
        )
    ]


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


def validation_rows(run: Run, model: nn.Module | None, progress: Progress) -> Store:
    """Return the encoded rows that a finished run was validated on.

    They are in the cache; where it no longer has them, they are planned again.
    """
    if run.validation is not None:
        return run.validation
    if "data" in run.objects or "eval_data" in run.objects:
        raise UsageError(
            f"{run.path} was trained on Python objects, which its folder does not hold.",
            "Pass the rows: surefit.evaluate(run, rows), run.worst(20, rows), or --data FILE.",
        )
    refuse_other_version(run, run.plan)
    store = _cached_rows(run)
    if store is None:
        refuse_missing_data(run, run.config)
        _encode_again(run, model, progress)
        store = _cached_rows(run)
    if store is None:
        raise DATA_CHANGED.error(
            f"The validation rows of {run.path} are not those it was trained with.",
            fix="Put the old data back, or name the rows: surefit evaluate RUN --data FILE.",
        )
    return store


def _cached_rows(run: Run) -> Store | None:
    folder = entry_folder("encoded", run.plan["stores"]["validation"])
    if not is_sound(folder) or Store(folder).key != run.plan["eval_key"]:
        return None
    return Store(folder)


def _encode_again(run: Run, model: nn.Module | None, progress: Progress) -> None:
    """Encode the rows of a run into the cache, as its plan did."""
    # Validation rows have no augmented copies, and are encoded alike in every precision; this
    # machine may not have the run's.
    config = run.config.model_copy(update={"augmentation_factor": 1, "precision": "fp32"})
    # What `train` returns holds the trained module; the plan builds a named model from its name.
    passed = run.module_object if "model" in run.objects else None
    objects = PythonObjects(
        model=model if model is not None else passed,
        task=run.task_object,
        collate_fn=run.collate_fn,
        loss_fn=run.loss_fn,
        predict_fn=run.predict_fn,
        training_step=run.training_step,
    )
    request = Request(config, objects, run.code, run.choices, encodes_only=True)
    refuse_errors(make_plan(request, progress))


def changed_rows(run: Run, plan: Plan) -> list[Finding]:
    """Return the error about rows that are not those the run was begun with."""
    if not plan.ok or plan.job is None or plan.data_key == run.plan["data_key"]:
        return []
    message = f"The rows of {run.path} are not those it was begun with. " + _describe_changes(
        run.plan, plan.job
    )
    fix = f"{DATA_CHANGED.fix} To resume with these rows: --set accept=[{DATA_CHANGED.code}]."
    return [DATA_CHANGED.finding(message, fix=fix)]


def refuse_other_version(run: Run, stored: Mapping[str, Any]) -> None:
    """Refuse the run of another version, which may encode rows differently."""
    version = stored.get("version")
    if version != __version__:
        raise UsageError(
            f"{run.path} was begun with surefit {version}; this is {__version__}, which may encode "
            "rows differently, so it cannot resume to the bit.",
            f"Resume it with surefit {version}, or start a new run from its model: "
            f"--model {run.path}.",
        )


def refuse_missing_data(run: Run, config: RunConfig) -> None:
    """Refuse a run whose data is no longer where it was; a hub id is looked up later."""
    for path in map(Path, (*config.data_paths, *config.eval_paths)):
        if path.is_absolute() and not has_magic(str(path)) and not path.exists():
            raise UsageError(
                f"The data of {run.path} is gone: there is no {path}.",
                f"Pass its new place: {to_resume(run.path)} --data FILE. It is "
                "accepted if its rows are those that the run was begun with. To evaluate: "
                f"surefit evaluate {shell(run.path)} --data FILE.",
            )


def _describe_changes(stored: Mapping[str, Any], job: Job) -> str:
    """Describe what differs between the rows of a run's plan and those of a new Job.

    A row that changed may also have moved from training to validation, so both are compared
    together.
    """
    folders = [entry_folder("encoded", name) for name in (stored.get("stores") or {}).values()]
    if not folders or not all(is_sound(folder) for folder in folders):
        return "The cache no longer has the rows it was begun with, so they cannot be compared."
    old = _rows_by_digest(Store(folder) for folder in folders)
    new = _rows_by_digest((job.train, job.validation))
    added = sorted(new[digest] for digest in new.keys() - old.keys())
    gone = sorted(old[digest] for digest in old.keys() - new.keys())
    if not added and not gone:
        return (
            "No row of the data differs: the rows are encoded otherwise than then, or split "
            "otherwise (another tokenizer, template, or code of the task)."
        )
    shown = [
        f"{len(rows):,} {how}: row {', '.join(map(str, rows[:3]))}{' …' if len(rows) > 3 else ''}"
        for how, rows in (("new or changed", added), ("gone or changed", gone))
        if rows
    ]
    return f"Rows that differ: {'; '.join(shown)}."


def _rows_by_digest(stores: Iterable[Store]) -> dict[int, int]:
    """Return the hash of the encoded columns of each row, with its number in the data."""
    digests: dict[int, Any] = {}
    for store in stores:
        for place in np.flatnonzero(np.asarray(store.copy) == 0):
            digest = digests.setdefault(int(store.source_row[place]), xxhash.xxh3_64())
            for value in store.row(int(place)).values():
                digest.update(f"{value.shape}".encode() + value.tobytes())
    return {digest.intdigest(): row for row, digest in digests.items()}
