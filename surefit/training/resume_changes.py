"""What may differ when a run is resumed, and how it is shown: config, number of steps, rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter, getitem
from typing import Any

import numpy as np
import xxhash

from surefit.config import LOCAL_KEYS, SHORT_KEYS, RunConfig, known_keys, make_config
from surefit.data.cache import entry_folder
from surefit.data.cache_entry import is_sound
from surefit.errors import UsageError
from surefit.findings import Finding, note
from surefit.inputs.store import Store
from surefit.pipeline.pipeline import Job
from surefit.plan.plan import Plan
from surefit.run.run_folder import Run
from surefit.training.begin_run import with_absolute_paths
from surefit.training.schedule import lr_by_step

LENGTH = ("epochs", "max_steps")
CHANGEABLE = (
    *(*LENGTH, "eval_every", "save_every", "keep", "early_stopping.patience", "on_nonfinite"),
    *("parallel", "accept", "data", "eval_data", *LOCAL_KEYS),
)
"""Keys that decide when a run evaluates, saves and ends, or what it runs on; not what it learns.

Data may be in another place; its rows are compared by content."""


GOES_ON = (*LENGTH, "early_stopping.patience")
"""Keys that let a finished run go on."""


@dataclass(frozen=True)
class Difference:
    """A key whose value differs from the one the run was begun with."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.before!r} → {self.after!r}"


def resumed_config(run: Run, options: RunConfig, named: set[str]) -> RunConfig:
    """The config to resume with: the run's, with what config.yaml and the options may change.

    Whatever else differs is refused, with both values. What belongs to the machine is that of the
    options.
    """
    begun, edited = make_config(run.plan["config"]), run.config
    hand_edits = list_differences(begun, edited, known_keys())
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
    """The new values by key, as plan.json keeps them."""
    return {each.key: each.after for each in differences}


def changes_of(run: Run, config: RunConfig) -> list[Difference]:
    """What differs from the config that the run was begun or last resumed with."""
    begun = make_config(run.plan["config"])
    return list_differences(begun, config, [k for k in CHANGEABLE if k != "output"])


def list_differences(before: RunConfig, after: RunConfig, keys: list[str]) -> list[Difference]:
    """The keys whose values differ. A dict in `after` may leave out what was inferred."""
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
    """The keys of a config that options set, sections as the single keys in them."""
    named = {SHORT_KEYS.get(key, key) for key in options}
    within = {key for name in named for key in known_keys() if name.startswith(f"{key}.")}
    return within | {key for key in known_keys() if key in named or key.split(".")[0] in named}


Spans = list[tuple[int, int]]
"""Pairs: after which step a total number of steps applies."""


def extend_spans(run: Run, spans: Spans, num_steps: int) -> Spans:
    """The spans with a new total from the saved step on; refuses one that is already exceeded."""
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
    """The learning rate before and after, where the number of steps changed."""
    before = run.spans(run.plan["steps"])
    if spans == before:
        return []
    assert plan.model is not None
    config, saved, peak = plan.config, spans[-1][0], plan.model.lr
    then, now = (lr_by_step(each, config.warmup, config.schedule) for each in (before, spans))
    return [
        note(
            f"The run has {spans[-1][1]} steps instead of {before[-1][1]}. Learning rate "
            f"({config.schedule}): {peak * then(max(saved, 1)):.3g} at step {max(saved, 1)}, "
            f"{peak * now(saved + 1):.3g} at step {saved + 1}."
        )
    ]


def describe_changed_rows(
    stored: Mapping[str, Any], job: Job, sides: Sequence[str] = ("train", "validation")
) -> str:
    """What differs between the rows of a run's plan and those of a new Job.

    A row that changed may also have moved from training to validation; so with both `sides`, they
    are compared together.
    """
    names = stored.get("stores") or {}
    folders = [entry_folder("encoded", names[side]) for side in sides if side in names]
    if not folders or not all(is_sound(folder) for folder in folders):
        return "The cache no longer has the rows it was begun with, so they cannot be compared."
    now = {"train": job.train, "validation": job.validation}
    old = _rows_by_digest(Store(folder) for folder in folders)
    new = _rows_by_digest(now[side] for side in sides)
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
    """The hash of the encoded columns of each row, with its number in the data."""
    digests: dict[int, Any] = {}
    for store in stores:
        for place in np.flatnonzero(np.asarray(store.copy) == 0):
            digest = digests.setdefault(int(store.source_row[place]), xxhash.xxh3_64())
            for value in store.row(int(place)).values():
                digest.update(f"{value.shape}".encode() + value.tobytes())
    return {digest.intdigest(): row for row, digest in digests.items()}
