"""image-classification: one class, or several, per image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from surefit.batches.field import Field
from surefit.data.cell_files import is_empty
from surefit.data.label_columns import holds_amounts
from surefit.data.table import Table
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Encoding, SkipRowError
from surefit.encode.encoder import Encoder
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
from surefit.tasks.image_reading import PIXELS, encode_image, fit_images, holds_images
from surefit.tasks.metrics.class_metrics import top_metric
from surefit.tasks.task_spec import Head, TaskSpec


def fields_of(encoder: Encoder) -> dict[str, Field]:
    """The pixel values, and the class or classes."""
    return {"pixel_values": PIXELS, "labels": label_field(encoder)}


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether there are images or names of their files, and float labels are no amounts."""
    return holds_images(table, roles) and not holds_amounts(table, roles["label"], whole=False)


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> dict[str, Any]:
    """The classes, and how images are read."""
    return fit_images(rows, encoder, lambda watched: fit_classes(watched, encoder))


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The pixel values and the class."""
    if is_empty(row["image"]):  # before a label that is missing as well
        raise SkipRowError(DropReason.EMPTY)
    targets = {"labels": class_id(row, encoder)} if "label" in row else {}
    return encode_image(row, encoder, targets)


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
