"""Augmentation of images, series and vectors: the settings checked against task, data and model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from surefit.config import RunConfig
from surefit.encode.audio.audio_format import extract, read_audio_format
from surefit.encode.augment.array_augment import ArrayAugment, AugmentError, same_row
from surefit.encode.augment.augmented_copies import AUGMENT_FUNCTION_FAILED
from surefit.encode.augment.image_changes import ImageChanges
from surefit.encode.augment.mixing import MIXES
from surefit.encode.augment.series_changes import SeriesChanges
from surefit.encode.encoder import Encoder
from surefit.encode.images.pixel_format import read_format
from surefit.encode.store import Store
from surefit.errors import UsageError
from surefit.findings import Finding
from surefit.models.call import has_module_loss
from surefit.pipeline.pipeline import Pipeline
from surefit.plan.augmentation import own_function
from surefit.request import Request
from surefit.tasks import TASKS
from surefit.tasks.task_spec import TaskSpec

TRIED_ROWS = 4
"""Rows that a user's own change is tried on before training, in two epochs."""


def check_array_changes(config: RunConfig, task: TaskSpec, roles: Mapping[str, str]) -> None:
    """Refuse changes of arrays that rows of the task do not have."""
    section = task.arrays(roles)
    for name in KINDS:
        asked = _asked(config, name)
        if asked and name != section:
            able = [spec.name for spec in TASKS.values() if spec.arrays({name: name}) == name]
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


def make_array_augment(
    request: Request, pipeline: Pipeline, train: Store
) -> tuple[ArrayAugment | None, list[Finding]]:
    """How training rows of arrays are augmented, tried on a few; None without augmentation."""
    config, encoder = request.config, pipeline.encoder
    section = pipeline.task.arrays(encoder.roles)
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


def _asked(config: RunConfig, section: str) -> dict[str, float]:
    return dict(attrgetter(f"{section}.augment")(config).asked())


def _image_changes(
    changes: Mapping[str, float], encoder: Encoder, pipeline: Pipeline
) -> ImageChanges:
    pixels = read_format(encoder.fitted["pixels"])
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
    mean, spread = encoder.fitted["feature_mean"], encoder.fitted["feature_scale"]
    time, channel = (None, 0) if vectors else (0, 1)
    column = "features" if vectors else "inputs_embeds"
    return SeriesChanges(changes, column, time, channel, tuple(mean), tuple(spread))


def _audio_changes(
    changes: Mapping[str, float], encoder: Encoder, pipeline: Pipeline
) -> SeriesChanges:
    form = read_audio_format(encoder.fitted["audio"])
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
        raise UsageError(
            f"{key} blends rows, and these are of different lengths ({_lengths(shapes)}).",
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


def _lengths(shapes: set[tuple[int, ...]]) -> str:
    lengths = [shape[0] for shape in shapes]
    return f"{min(lengths)} to {max(lengths)}"


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
