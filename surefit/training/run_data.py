"""The data of a run: found where it was, and compared with what the run was begun with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from surefit import __version__
from surefit.config import RunConfig
from surefit.data.cache import entry_folder
from surefit.data.cache_entry import is_sound
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.inputs.store import Store
from surefit.pipeline.pipeline import Job
from surefit.plan.make_plan import make_plan
from surefit.plan.plan import Plan
from surefit.progress import Progress
from surefit.request import PythonObjects, Request
from surefit.run.run_folder import Run
from surefit.training.run import refuse_errors

if TYPE_CHECKING:
    from torch import nn

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
    if "data" in run.objects or "eval_data" in run.objects:
        raise UsageError(
            f"{run.path} was trained on Python objects, which it does not hold.",
            "Pass the rows: surefit evaluate RUN --data FILE.",
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
    for path in map(Path, (*config.data, *config.eval_paths)):
        if path.is_absolute() and not has_magic(str(path)) and not path.exists():
            raise UsageError(
                f"The data of {run.path} is gone: there is no {path}.",
                f"Pass its new place: surefit train --resume {run.path} --data FILE. It is "
                "accepted if its rows are those that the run was begun with. To evaluate: "
                f"surefit evaluate {run.path} --data FILE.",
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
