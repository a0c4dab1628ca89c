"""Augmentation settings checked against the task; user functions found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from surefit.config import Augmentation
from surefit.encode.augment import CHANGES, read_synonyms
from surefit.encode.augment.augmented_copies import INSTRUCTIONS, AugmentedCopies
from surefit.encode.drop_reasons import DropReason, describe_counts
from surefit.encode.store import Store
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.request import Request
from surefit.tasks import TASKS
from surefit.tasks.task_spec import TaskSpec
from surefit.user_code import OWN_CODE_RUN, CodeGate
from surefit.user_code.named_code import source_file

IDENTICAL_COPIES = rule(
    "SF285",
    "info",
    "identical augmented copies",
    why="A copy that equals another copy of its row adds nothing new; it only weights the row.",
    fix="Name more changes under augment.changes, or lower augmentation_factor.",
)

COPIES_LEFT_OUT = rule(
    "SF287",
    "warning",
    "augmented copies left out",
    why="Rows with fewer copies have a smaller weight in training.",
    fix="Raise max_seq_length, or let the augmenting function keep some text.",
    accept="The copies are left out.",
)

VALIDATION_ROWS_COPIED = rule(
    "SF292",
    "info",
    "augmented copies equal to validation rows",
    why="Such a copy would leak a validation row into training, so it is discarded.",
    fix="Nothing to do.",
)

NOTHING_AUGMENTED = rule(
    "SF289",
    "warning",
    "nothing is augmented",
    why="augment is set, but augmentation_factor 1 makes no copies.",
    fix="Give --augmentation-factor 2 or more.",
    accept="No augmented copies are made.",
)


BY_DEFAULT = ("wording", "case", "spacing", "punctuation")


def make_copies(
    task: TaskSpec, roles: Mapping[str, str], request: Request
) -> tuple[AugmentedCopies | None, list[Finding]]:
    """How training rows are augmented; None without augmented copies."""
    config = request.config
    factor, asked, seed = config.augmentation_factor, config.augment, config.seed
    if factor == 1:
        unused = NOTHING_AUGMENTED.finding("augment is given, but augmentation_factor is 1.")
        if task.arrays(roles) is not None:  # the function changes arrays in each epoch
            passed = asked.model_copy(update={"function": None}) != Augmentation()
        else:
            passed = asked != Augmentation() or request.objects.augment is not None
        return None, [unused] if passed else []
    changeable = tuple(role for role in task.augments if role in roles)
    if not changeable:
        raise _nothing_to_change(factor, task)
    passed_in, code = request.objects.augment, request.code
    function, found = own_function("augment.function", asked.function, passed_in, code)
    changes = _changes(asked, has_function=function is not None)
    if not any(role in INSTRUCTIONS for role in changeable):
        changes.pop("wording", None)  # a text to be judged has no wording to spare
    if not changes and function is None:
        raise UsageError(
            f"augmentation_factor is {factor}, but no change is left that {task.name} can use.",
            f"Name some under augment.changes ({', '.join(CHANGES)}).",
        )
    return AugmentedCopies(factor, seed, changeable, task.targets, changes, function), found


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
    key: str, name: str | None, passed: Callable[..., Any] | None, code: CodeGate
) -> tuple[Callable[..., Any] | None, list[Finding]]:
    """The function passed from Python, or the one that the config names under `key`."""
    if passed is not None or name is None:
        return passed, []
    function: Callable[..., Any] = code.find(name)
    if not callable(function):
        raise UsageError(f"{key}: {name} is not a function.", "Name one as module:function.")
    found = OWN_CODE_RUN.finding(f"{key}: {name} is run.", file=source_file(function))
    return function, [found]


def check_copies(train: Store, copies: AugmentedCopies | None) -> Iterator[Finding]:
    """Augmented copies that are identical to others, or were left out."""
    if copies is None:
        return
    counts, dropped = train.notes["counts"], dict(train.notes["dropped_copies"])
    wanted = (copies.factor - 1) * counts.get("rows", 0)
    equal = counts.get("equal_copies", 0)
    if equal:
        yield IDENTICAL_COPIES.finding(
            f"{equal} of {wanted} augmented copies equal another copy of their row."
        )
    leaking = dropped.pop(DropReason.HELD_OUT, 0)
    if leaking:
        yield VALIDATION_ROWS_COPIED.finding(
            f"{leaking} of {wanted} augmented copies have the input of a validation row and are "
            "discarded."
        )
    if dropped:
        reasons = describe_counts(dropped, ("augmented copy", "augmented copies"))
        yield COPIES_LEFT_OUT.finding(
            f"{sum(dropped.values())} of {wanted} augmented copies are left out: {reasons}."
        )
