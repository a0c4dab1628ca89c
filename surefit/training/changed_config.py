"""What of a run's config may differ when it is resumed, and how a difference is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter, getitem
from typing import Any

from surefit.config import SHORT_KEYS, RunConfig, known_keys, make_config
from surefit.errors import UsageError
from surefit.run.run_folder import Run
from surefit.training.resolved_config import with_absolute_paths

LENGTH = ("epochs", "max_steps")
CHANGEABLE = (
    *LENGTH,
    "eval_every",
    "save_every",
    "keep",
    "early_stopping.patience",
    "on_nonfinite",
    "stall_seconds",
    "workers",
    "parallel",
    "trackers",
    "max_memory_gb",
    "cache",
    "cache_limit_gb",
    "rehearse",
    "verify_resume",
    "accept",
    "data",
    "eval_data",
    "output",
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

    Whatever else differs is refused, with both values.
    """
    begun, edited = _begun_config(run), run.config
    hand_edits = list_differences(begun, edited, known_keys())
    _refuse(run, [each for each in hand_edits if each.key not in CHANGEABLE], "config.yaml has")
    asked = with_absolute_paths(options)
    settled = {"batch_size", "grad_accum"} if options.batch_size == "auto" else set()
    keys = sorted(named_keys(named) - settled - set(run.objects) - {"output"})
    by_options = list_differences(edited, asked, keys)
    _refuse(run, [each for each in by_options if each.key not in CHANGEABLE], "you gave")
    settings = edited.model_dump(mode="json")
    for each in by_options:
        *sections, last = each.key.split(".")
        reduce(getitem, sections, settings)[last] = each.after
    return make_config(settings)


def as_dict(differences: list[Difference]) -> dict[str, Any]:
    """The new values by key, as plan.json keeps them."""
    return {each.key: each.after for each in differences}


def changes_of(run: Run, config: RunConfig) -> list[Difference]:
    """What differs from the config that the run was begun or last resumed with."""
    return list_differences(_begun_config(run), config, [k for k in CHANGEABLE if k != "output"])


def _begun_config(run: Run) -> RunConfig:
    """The config as the plan recorded it; version 0.3.0 did not, and config.yaml is believed."""
    recorded = run.plan.get("config")
    return make_config(recorded) if isinstance(recorded, Mapping) else run.config


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
