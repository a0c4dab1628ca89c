"""Augmentation settings checked against the task; user functions found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.config import Augmentation, RunConfig
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule
from surefit.inputs.augment.array_augment import MIXES, ArrayAugment, AugmentError, same_row
from surefit.inputs.augment.augmented_copies import (
    AUGMENT_FUNCTION_FAILED,
    INSTRUCTIONS,
    AugmentedCopies,
)
from surefit.inputs.augment.text_changes import CHANGES, read_synonyms
from surefit.inputs.encoded_row import DropReason, describe_counts
from surefit.inputs.row_input import RowInput
from surefit.inputs.store import Store
from surefit.models.call import has_module_loss
from surefit.pipeline.pipeline import Pipeline
from surefit.request import Request
from surefit.targets.task_spec import TaskSpec
from surefit.tasks import INPUTS, TASKS
from surefit.user_code import CodeGate
from surefit.user_code.named_code import source_file

if TYPE_CHECKING:
    from surefit.plan.draft import Draft

COPIES_LEFT_OUT = rule(
    "SF287",
    "warning",
    "augmented copies left out",
    why="Rows with fewer copies have a smaller weight in training.",
    fix="Raise max_seq_length, or let the augmenting function keep some text.",
    accept="The copies are left out.",
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


def make_copies(d: Draft) -> tuple[AugmentedCopies | None, list[Finding]]:
    """Return how training rows are augmented; None without augmented copies."""
    task, roles, request, config = d.task, d.forms.roles, d.request, d.config
    factor, asked, seed = config.augmentation_factor, config.augment, config.seed
    if factor == 1:
        unused = NOTHING_AUGMENTED.finding("augment is given, but augmentation_factor is 1.")
        if task.reads.arrays(roles) is not None:  # the function changes arrays in each epoch
            passed = asked.model_copy(update={"function": None}) != Augmentation()
        else:
            passed = asked != Augmentation() or request.objects.augment is not None
        return None, [unused] if passed else []
    changeable = tuple(role for role in task.text.augments if role in roles)
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
    """Return the changes by name in the order they are applied, each with its settings."""
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
    if task.text.augments:
        roles = " or ".join(task.text.augments)
        return UsageError(
            f"augmentation_factor is {factor}, but the rows have no {roles} as text to change.",
            f"Give rows of text (columns.{task.text.augments[0]}), or leave the factor out.",
        )
    able = ", ".join(name for name, other in TASKS.items() if other.text.augments)
    return UsageError(
        f"augmentation_factor is {factor}, but {task.name} has no text that could be said "
        "otherwise.",
        f"Leave it out; tasks that have: {able}.",
    )


def own_function(
    key: str, name: str | None, passed: Callable[..., Any] | None, code: CodeGate
) -> tuple[Callable[..., Any] | None, list[Finding]]:
    """Return the function passed from Python, or the one that the config names under `key`."""
    if passed is not None or name is None:
        return passed, []
    function: Callable[..., Any] = code.find(name)
    if not callable(function):
        raise UsageError(f"{key}: {name} is not a function.", "Name one as module:function.")
    found = note(f"{key}: {name} is run.", file=source_file(function))
    return function, [found]


def check_copies(train: Store, copies: AugmentedCopies | None) -> Iterator[Finding]:
    """Augmented copies that are identical to others, or were left out."""
    if copies is None:
        return
    counts, dropped = train.notes["counts"], dict(train.notes["dropped_copies"])
    wanted = (copies.factor - 1) * counts.get("rows", 0)
    equal = counts.get("equal_copies", 0)
    if equal:
        yield note(f"{equal} of {wanted} augmented copies equal another copy of their row.")
    leaking = dropped.pop(DropReason.HELD_OUT, 0)
    if leaking:
        yield note(
            f"{leaking} of {wanted} augmented copies have the input of a validation row and are "
            "discarded."
        )
    if dropped:
        reasons = describe_counts(dropped)
        yield COPIES_LEFT_OUT.finding(
            f"{sum(dropped.values())} of {wanted} augmented copies are left out: {reasons}."
        )


TRIED_ROWS = 4
"""Rows that a user's own change is tried on before training, in two epochs."""


def check_array_changes(d: Draft) -> None:
    """Refuse changes of arrays that rows of the task do not have."""
    config, task, given = d.config, d.task, d.task.reads.arrays(d.forms.roles)
    for role, each in INPUTS.items():
        asked = _asked(config, each)
        if asked and (given is None or each.section != given.section):
            able = [spec.name for spec in TASKS.values() if spec.reads.arrays({role: role})]
            raise UsageError(
                f"{each.section}.augment is set ({', '.join(asked)}), but {task.name} has no "
                f"{each.content_name} to change here.",
                f"Leave it out; tasks that have: {', '.join(able)}.",
            )
    factor = config.augmentation_factor
    if given is not None and factor > 1:
        usual = attrgetter(f"{given.section}.augment")(RunConfig()).usual
        raise UsageError(
            f"augmentation_factor is {factor}, but {given.content_name} are augmented anew in each "
            "epoch, without copies.",
            f"Leave it out, and name changes under {given.section}.augment: {', '.join(usual)}.",
        )


def make_array_augment(d: Draft) -> tuple[ArrayAugment | None, list[Finding]]:
    """How training rows of arrays are augmented, tried on a few; None without augmentation."""
    request, config, pipeline, train = d.request, d.config, d.pipeline, d.train
    encoder = pipeline.encoder
    given = pipeline.task.reads.arrays(encoder.roles)
    if given is None or given.changes is None:
        return None, []
    passed = request.objects.augment
    function, found = own_function(
        "augment.function", config.augment.function, passed, request.code
    )
    changes = _asked(config, given)
    if not changes and function is None:
        return None, []
    kind = given.changes(changes, encoder, pipeline.fields)
    further = [
        replace(given.changes(changes, own, pipeline.fields), column=column)  # type: ignore[type-var]
        for column, own in encoder.further.items()
    ]
    augment = ArrayAugment(train, config.seed, kind, function, tuple(further))
    if augment.mixes:
        _check_mixing(f"{given.section}.augment", request, augment, pipeline)
    if function is not None and len(train):
        found = [*found, *_try_own(augment)]
    return augment, found


def asks_change(config: RunConfig, passed: Any, given: RowInput | None) -> bool:
    """Whether arrays of this input are changed in each epoch, also by a user's own function."""
    own = passed is not None or config.augment.function is not None
    return given is not None and (own or bool(_asked(config, given)))


def _asked(config: RunConfig, given: RowInput) -> dict[str, float]:
    if given.section is None:
        return {}
    return dict(attrgetter(f"{given.section}.augment")(config).asked())


def _check_mixing(key: str, request: Request, augment: ArrayAugment, pipeline: Pipeline) -> None:
    """Refuse mixup and cutmix where labels cannot be mixed, or the loss would not know of it."""
    name = next(name for name in MIXES if name in augment.kind.changes)
    key, train, labels = f"{key}.{name}", augment.train, pipeline.fields["labels"]
    objects = request.objects
    own = next((n for n in ("loss_fn", "collate_fn") if getattr(objects, n) is not None), None)
    shapes = {train.value(augment.kind.column, row).shape for row in _some_rows(train, 1000)}
    lengths = sorted(shape[0] for shape in shapes)
    leave = "Leave one of them out."
    refused = (
        (
            request.config.loss.class_weights is not None,
            f"{key} and loss.class_weights are set, but a mixed row has two classes.",
            leave,
        ),
        (
            own is not None,
            f"{key} gives a row two labels, which your own {own} does not read.",
            leave,
        ),
        (
            len(shapes) > 1,
            f"{key} blends rows, and these are of different lengths ({lengths[0]} to "
            f"{lengths[-1]}).",
            "Leave it out, or give rows of one length.",
        ),
        (
            labels.time_axis is not None,
            f"{key} would give every time step two classes.",
            "Leave it out; changes of single rows keep the class of each step.",
        ),
        (
            labels.rank == 2 and name == "mixup",
            f"{key} would give every pixel two classes.",
            "Use cutmix, which pastes the mask, too.",
        ),
    )
    for is_refused, message, fix in refused:
        if is_refused:
            raise UsageError(message, fix)


def check_mixed_loss(d: Draft) -> None:
    """Refuse mixup and cutmix where the module computes its own loss."""
    if d.augment is None or not d.augment.mixes or not has_module_loss(d.first.outputs):
        return
    name = next(name for name in MIXES if name in d.augment.kind.changes)
    given = d.task.reads.arrays(d.encoder.roles)
    assert given is not None
    raise UsageError(
        f"{given.section}.augment.{name} gives a row two labels, but the module computes its own "
        "loss from labels.",
        "Leave it out, or let forward return the scores.",
    )


def _some_rows(train: Store, most: int) -> list[int]:
    places = np.linspace(0, len(train) - 1, min(most, len(train)))
    return [int(place) for place in np.unique(places.astype(int))]


def _try_own(augment: ArrayAugment) -> list[Finding]:
    """Call the user's own change on a few rows; twice, as it must draw from `rng` alone."""
    for row in _some_rows(augment.train, TRIED_ROWS):
        for epoch in (0, 1):
            try:
                first, again = augment.row(row, epoch), augment.row(row, epoch)
            except AugmentError as error:
                return [AUGMENT_FUNCTION_FAILED.finding(error.message)]
            if not same_row(first, again):
                number = int(augment.train.source_row[row])
                message = (
                    f"row {number}: the augmenting function returned other values when it was "
                    "called again with the same rng, so a resumed run would differ."
                )
                return [AUGMENT_FUNCTION_FAILED.finding(message)]
    return []


def describe_augment(augment: ArrayAugment | None) -> dict[str, Any] | None:
    """Return the changes by name and one's own function, as the plan has them; None for none."""
    if augment is None:
        return None
    function = augment.function
    name = None if function is None else getattr(function, "__name__", type(function).__name__)
    return {"changes": dict(augment.kind.changes), "function": name}
