"""What was asked of augmentation, held against the task; and one's own functions by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from surefit.config import Augmentation, RunConfig
from surefit.encode.augment import CHANGES, read_synonyms
from surefit.encode.augment.augmented_copies import INSTRUCTIONS, Views
from surefit.encode.drop_reasons import describe_counts
from surefit.encode.store import Store
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.plan.plan import Given
from surefit.tasks import TASKS
from surefit.tasks.task_spec import TaskSpec
from surefit.user_code import OWN_CODE_RUN, find_object

IDENTICAL_COPIES = rule(
    "SF285",
    "info",
    "views alike",
    why="A view that equals another view of its row says nothing new; the row only weighs more.",
    fix="Name more changes under augment.changes, or lower augmentation_factor.",
)

COPIES_LEFT_OUT = rule(
    "SF287",
    "warning",
    "views left out",
    why="Rows with fewer views than others weigh less in training.",
    fix="Raise max_seq_length, or let the augmenting function keep some text.",
)

NOTHING_AUGMENTED = rule(
    "SF289",
    "warning",
    "nothing is augmented",
    why="Changes were asked for, but every row has one view, the row itself.",
    fix="Give --augmentation-factor 2 or more.",
)


BY_DEFAULT = ("wording", "case", "spacing", "punctuation")


def make_views(
    config: RunConfig,
    given: Given,
    task: TaskSpec,
    roles: Mapping[str, str],
    found: list[Finding],
) -> Views | None:
    """How training rows become views; None where each row is all there is."""
    asked = config.augment
    if config.augmentation_factor == 1:
        if asked != Augmentation():
            found.append(
                NOTHING_AUGMENTED.finding("augment is given, but augmentation_factor is 1.")
            )
        return None
    changeable = tuple(role for role in task.augments if role in roles)
    if not changeable:
        raise _nothing_to_change(config.augmentation_factor, task)
    function = own_function("augment.function", asked.function, given.augment, given, found)
    changes = _changes(asked, has_function=function is not None)
    if not any(role in INSTRUCTIONS for role in changeable):
        changes.pop("wording", None)  # a text to be judged has no wording to spare
    if not changes and function is None:
        raise UsageError(
            f"augmentation_factor is {config.augmentation_factor}, but no change is left that "
            f"{task.name} can use.",
            f"Name some under augment.changes ({', '.join(CHANGES)}).",
        )
    return Views(
        config.augmentation_factor, config.seed, changeable, task.targets, changes, function
    )


def _changes(asked: Augmentation, has_function: bool) -> dict[str, dict[str, Any]]:
    """The changes by name in the order they are applied, each with its settings."""
    names: tuple[str, ...] | None = asked.changes
    if names is None:
        tabled = ("synonyms",) if asked.synonyms else ()
        names = tabled if has_function else (*BY_DEFAULT, *tabled)
    settings: dict[str, dict[str, Any]] = {name: {} for name in CHANGES if name in names}
    if "wording" in settings:
        settings["wording"] = {"frames": asked.frames}
    if "typos" in settings:
        settings["typos"] = {"rate": asked.typo_rate}
    if "synonyms" in settings:
        if not asked.synonyms:
            raise UsageError(
                "augment.changes names synonyms, but there is no table of them.",
                "Give one: --set augment.synonyms=FILE.csv, a word and its synonyms per line.",
            )
        settings["synonyms"] = {"table": read_synonyms(asked.synonyms)}
    return settings


def _nothing_to_change(factor: int, task: TaskSpec) -> UsageError:
    if task.augments:
        roles = " or ".join(task.augments)
        return UsageError(
            f"augmentation_factor is {factor}, but the rows have no {roles} as text to change.",
            f"Give rows of text (columns.{task.augments[0]}), or leave the factor out.",
        )
    able = ", ".join(name for name, other in TASKS.items() if other.augments)
    return UsageError(
        f"augmentation_factor is {factor}, but {task.name} has no text that could be said "
        "otherwise.",
        f"Leave it out; tasks that have: {able}.",
    )


def own_function(
    key: str,
    name: str | None,
    handed: Callable[..., Any] | None,
    given: Given,
    found: list[Finding],
) -> Callable[..., Any] | None:
    """The function handed over from Python, or the one that the config names under `key`."""
    if handed is not None or name is None:
        return handed
    argument = "augment" if key.startswith("augment") else "scorer"
    if name.startswith("python:"):
        raise UsageError(
            f"{key} was a Python function ({name.removeprefix('python:')}), which no config holds.",
            f"Pass it again from Python: {argument}=…",
        )
    function: Callable[..., Any] = find_object(name, given.beside)
    if not callable(function):
        raise UsageError(f"{key}: {name} is not a function.", "Name one as module:function.")
    file = inspect.getsourcefile(inspect.unwrap(function)) if inspect.isroutine(function) else None
    found.append(OWN_CODE_RUN.finding(f"{key}: {name} is run.", file=file))
    return function


def check_views(train: Store, views: Views | None) -> Iterator[Finding]:
    """Views that turned out alike, or were left out."""
    if views is None:
        return
    counts, dropped = train.notes["counts"], train.notes["dropped_views"]
    wanted = (views.factor - 1) * counts.get("rows", 0)
    alike = counts.get("alike_views", 0)
    if alike:
        yield IDENTICAL_COPIES.finding(
            f"{alike} of {wanted} further views equal another view of their row."
        )
    if dropped:
        reasons = describe_counts(dropped, ("augmented copy", "augmented copies"))
        yield COPIES_LEFT_OUT.finding(
            f"{sum(dropped.values())} of {wanted} augmented copies are left out: {reasons}."
        )
