"""image-classification: one class, or several, per image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from surefit.batches.field import Field
from surefit.data.cell_files import is_empty, names_files
from surefit.data.column_types import is_text
from surefit.data.file_kinds import IMAGES
from surefit.data.table import Table
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Encoding, RowFaultError, SkipRowError, encoded
from surefit.encode.encoder import Encoder
from surefit.encode.images.image_columns import fit_columns
from surefit.encode.images.image_files import (
    CHANNELS,
    IMAGE_TOO_LARGE,
    UNREADABLE_IMAGE,
)
from surefit.encode.images.pixel_format import read_format
from surefit.encode.images.pixel_sample import PixelSample
from surefit.tasks.baselines import class_baselines
from surefit.tasks.classes import (
    CONFUSION,
    MACRO_F1,
    accuracy,
    class_id,
    class_loss,
    class_scores,
    class_settings,
    decode_classes,
    fit_classes,
    label_field,
    probabilities,
)
from surefit.tasks.metrics.class_metrics import top_metric
from surefit.tasks.task_spec import Head, TaskSpec

FitLabels = Callable[[Iterable[Mapping[str, Any]]], dict[str, Any]]
PIXELS = Field(("channel", "height", "width"), "float32")


def fields_of(encoder: Encoder) -> dict[str, Field]:
    """The pixel values, and the class or classes."""
    return {"pixel_values": PIXELS, "labels": label_field(encoder)}


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether the image column holds images or, if it is text, names of files."""
    column = roles["image"]
    return not is_text(table.column_type(column)) or names_files(table, column, IMAGES)


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> dict[str, Any]:
    """The classes, and how images are read."""
    return fit_images(rows, encoder, lambda watched: fit_classes(watched, encoder))


def fit_images(
    rows: Iterable[Mapping[str, Any]], encoder: Encoder, fit_labels: FitLabels
) -> dict[str, Any]:
    """What the labels are, and size, mean and standard deviation of the images if the model sets
    none."""
    settings = encoder.settings
    model, asked = settings.get("image.model") or {}, settings.get("image.format") or {}
    further = {c: role for role, c in encoder.roles.items() if c in encoder.further}
    fixed = asked.get("channels") or model.get("channels", 3)
    channels = (fixed,) if fixed in CHANNELS and not further else CHANNELS
    samples = [PixelSample(channels, role) for role in ("image", *further.values())]
    for sample in samples:
        rows = sample.watch(rows)
    labels = fit_labels(rows)
    images = fit_columns(samples, [encoder.roles["image"], *further], model, settings)
    return {**labels, **images, "findings": [*labels.get("findings", ()), *images["findings"]]}


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The pixel values and the class."""
    if is_empty(row["image"]):  # before a label that is missing as well
        raise SkipRowError(DropReason.EMPTY)
    columns: dict[str, Any] = {}
    if "label" in row:
        columns["labels"] = class_id(row, encoder)
    return encoded({"pixel_values": read_pixels(row, encoder), **columns})


def read_pixels(row: Mapping[str, Any], encoder: Encoder) -> Any:
    """The pixel values of a row's image; a bad file is skipped where `on_bad_file` says so."""
    if is_empty(row["image"]):
        raise SkipRowError(DropReason.EMPTY)
    try:
        return read_format(encoder.fitted["pixels"]).pixel_values(row["image"])
    except RowFaultError as fault:
        if (
            fault.rule in (UNREADABLE_IMAGE, IMAGE_TOO_LARGE)
            and encoder.settings.get("on_bad_file") == "skip"
        ):
            raise SkipRowError(DropReason.BAD_FILE) from None
        raise


SPEC = TaskSpec(
    name="image-classification",
    summary="one class, or several, per image",
    needs=(("image", "label"),),
    takes=takes,
    arrays=lambda roles: "image",
    fields={"pixel_values": PIXELS, "labels": Field((), "int64")},
    fields_of=fields_of,
    encode=encode,
    fit=fit,
    baselines=class_baselines,
    loss=class_loss,
    class_scores=class_scores,
    predicted_values=probabilities,
    metrics={
        "accuracy": accuracy,
        "macro_f1": MACRO_F1,
        "confusion": CONFUSION,
        **{f"top{count}": top_metric(count, class_scores) for count in (1, 5)},
    },
    best="accuracy",
    decode=decode_classes,
    head=Head(
        auto_class="AutoModelForImageClassification",
        size=lambda encoder: len(encoder.classes),
        config=class_settings,
    ),
)
