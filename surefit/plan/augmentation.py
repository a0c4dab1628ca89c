"""Augmentation settings checked against the task; user functions found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.config import Augmentation, RunConfig
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule
from surefit.inputs.audio.audio_format import extract
from surefit.inputs.audio.audio_input import audio_format
from surefit.inputs.augment.array_augment import ArrayAugment, AugmentError, same_row
from surefit.inputs.augment.array_changes import MIXES, ImageChanges, SeriesChanges
from surefit.inputs.augment.augmented_copies import (
    AUGMENT_FUNCTION_FAILED,
    INSTRUCTIONS,
    AugmentedCopies,
)
from surefit.inputs.augment.text_changes import CHANGES, read_synonyms
from surefit.inputs.encoded_row import DropReason, describe_counts
from surefit.inputs.encoder import Encoder
from surefit.inputs.features.feature_sequences import feature_statistics
from surefit.inputs.image.image_reading import pixel_format
from surefit.inputs.store import Store
from surefit.models.call import has_module_loss
from surefit.pipeline.pipeline import Pipeline
from surefit.request import Request
from surefit.targets.task_spec import TaskSpec
from surefit.tasks import TASKS
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
    """How training rows are augmented; None without augmented copies."""
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
    """The function passed from Python, or the one that the config names under `key`."""
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
    config, task, section = d.config, d.task, d.task.reads.arrays(d.forms.roles)
    for name in KINDS:
        asked = _asked(config, name)
        if asked and name != section:
            able = [spec.name for spec in TASKS.values() if spec.reads.arrays({name: name}) == name]
            raise UsageError(
                f"{name}.augment is set ({', '.join(asked)}), but {task.name} has no "
                f"{WHAT[name]} to change here.",
                f"Leave it out; tasks that have: {', '.join(able)}.",
            )
    factor = config.augmentation_factor
    if section is not None and factor > 1:
        raise UsageError(
            f"augmentation_factor is {factor}, but {WHAT[section]} are augmented anew in each "
            "epoch, without copies.",
            f"Leave it out, and name changes under {section}.augment: {', '.join(KINDS[section])}.",
        )


def make_array_augment(d: Draft) -> tuple[ArrayAugment | None, list[Finding]]:
    """How training rows of arrays are augmented, tried on a few; None without augmentation."""
    request, config, pipeline, train = d.request, d.config, d.pipeline, d.train
    encoder = pipeline.encoder
    section = pipeline.task.reads.arrays(encoder.roles)
    if section is None:
        return None, []
    passed = request.objects.augment
    function, found = own_function(
        "augment.function", config.augment.function, passed, request.code
    )
    changes = _asked(config, section)
    if not changes and function is None:
        return None, []
    kind = MAKERS[section](changes, encoder, pipeline)
    further = [
        replace(MAKERS[section](changes, own, pipeline), column=column)
        for column, own in encoder.further.items()
    ]
    augment = ArrayAugment(train, config.seed, kind, function, tuple(further))
    if augment.mixes:
        _check_mixing(section, request, augment, pipeline)
    if function is not None and len(train):
        found = [*found, *_try_own(augment)]
    return augment, found


def asks_change(config: RunConfig, passed: Any, section: str) -> bool:
    """Whether arrays of this section are changed in each epoch, also by a user's own function."""
    own = passed is not None or config.augment.function is not None
    return own or bool(_asked(config, section))


def _asked(config: RunConfig, section: str) -> dict[str, float]:
    return dict(attrgetter(f"{section}.augment")(config).asked())


def _image_changes(
    changes: Mapping[str, float], encoder: Encoder, pipeline: Pipeline
) -> ImageChanges:
    pixels = pixel_format(encoder)
    if pixels.channels not in (3, 4) and "saturation" in changes:
        count = "one channel" if pixels.channels == 1 else f"{pixels.channels} channels"
        raise UsageError(
            f"image.augment.saturation is set, but images of {count} have no colours.",
            "Leave it out; brightness and contrast change images of any number of channels.",
        )
    return ImageChanges.of(changes, pixels)


def _series_changes(
    changes: Mapping[str, float], encoder: Encoder, pipeline: Pipeline
) -> SeriesChanges:
    vectors = "features" in pipeline.fields
    if vectors and "time_mask" in changes:
        raise UsageError(
            "features.augment.time_mask is set, but each row is one vector, without time steps.",
            "Leave it out; channel_mask hides a part of a vector.",
        )
    known = feature_statistics(encoder)
    time, channel = (None, 0) if vectors else (0, 1)
    column = "features" if vectors else "inputs_embeds"
    return SeriesChanges(changes, column, time, channel, known.mean, known.scale)


def _audio_changes(
    changes: Mapping[str, float], encoder: Encoder, pipeline: Pipeline
) -> SeriesChanges:
    form = audio_format(encoder)
    value = pipeline.fields[form.column]
    if "time" in value.axes:
        time = value.axes.index("time")
    else:  # an extractor pads all rows to one length: the axis that the mel bands are not
        made = form.extractor or {}
        shape = extract(made, np.zeros(form.rate, np.float32))[form.column].shape
        bands = made.get("num_mel_bins") or made.get("feature_size")
        time = next((axis for axis, size in enumerate(shape) if size != bands), 0)
    others = [axis for axis in range(value.rank) if axis != time and value.axes[axis] != "channel"]
    if not others and "channel_mask" in changes:
        raise UsageError(
            "audio.augment.channel_mask is set, but the model reads waveforms, of one channel.",
            "Leave it out; time_mask hides a part of a waveform.",
        )
    spread = (1.0,) if form.mels is not None and form.extractor is None else None
    return SeriesChanges(changes, form.column, time, others[-1] if others else None, spread=spread)


MakeKind = Callable[[Mapping[str, float], Encoder, Pipeline], ImageChanges | SeriesChanges]
MAKERS: dict[str, MakeKind] = {
    "image": _image_changes,
    "features": _series_changes,
    "audio": _audio_changes,
}
"""How the changes of a section of the config are made ready for the rows of a run."""
KINDS: dict[str, tuple[str, ...]] = {
    name: tuple(attrgetter(f"{name}.augment")(RunConfig()).usual) for name in MAKERS
}
WHAT = {"image": "images", "features": "series or vectors of features", "audio": "recordings"}


def _check_mixing(
    section: str, request: Request, augment: ArrayAugment, pipeline: Pipeline
) -> None:
    """Refuse mixup and cutmix where labels cannot be mixed, or the loss would not know of it."""
    name = next(name for name in MIXES if name in augment.kind.changes)
    key, train = f"{section}.augment.{name}", augment.train
    if request.config.loss.class_weights is not None:
        raise UsageError(
            f"{key} and loss.class_weights are set, but a mixed row has two classes.",
            "Leave one of them out.",
        )
    for what in ("loss_fn", "collate_fn"):
        if getattr(request.objects, what) is not None:
            raise UsageError(
                f"{key} gives a row two labels, which your own {what} does not read.",
                "Leave one of them out.",
            )
    shapes = {train.value(augment.kind.column, row).shape for row in _some_rows(train, 1000)}
    if len(shapes) > 1:
        lengths = sorted(shape[0] for shape in shapes)
        raise UsageError(
            f"{key} blends rows, and these are of different lengths ({lengths[0]} to "
            f"{lengths[-1]}).",
            "Leave it out, or give rows of one length.",
        )
    if pipeline.fields["labels"].time_axis is not None:
        raise UsageError(
            f"{key} would give every time step two classes.",
            "Leave it out; jitter, scale, time_mask and channel_mask keep the class of each step.",
        )
    if pipeline.fields["labels"].rank == 2 and name == "mixup":
        raise UsageError(
            f"{key} would give every pixel two classes.", "Use cutmix, which pastes the mask, too."
        )
    import torch

    with torch.no_grad():
        outputs = pipeline.outputs(pipeline.batch(train, np.arange(min(2, len(train)))))
    if has_module_loss(outputs):
        raise UsageError(
            f"{key} gives a row two labels, but the module computes its own loss from labels.",
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
    """The changes by name and one's own function, as the plan has them; None for none."""
    if augment is None:
        return None
    function = augment.function
    name = None if function is None else getattr(function, "__name__", type(function).__name__)
    return {"changes": dict(augment.kind.changes), "function": name}
