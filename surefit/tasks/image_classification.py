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
from surefit.tasks.class_task import CLASS_METRICS, class_head, class_targets, class_task
from surefit.tasks.classes import class_scores, fit_classes, label_field
from surefit.tasks.image_reading import PIXELS, encode_image, fit_images, holds_images
from surefit.tasks.metrics.class_metrics import top_metric


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
    return encode_image(row, encoder, class_targets(row, encoder))


SPEC = class_task(
    name="image-classification",
    summary="one class, or several, per image",
    needs=(("image", "label"),),
    takes=takes,
    arrays=lambda roles: "image",
    fields={"pixel_values": PIXELS, "labels": Field((), "int64")},
    fields_of=fields_of,
    encode=encode,
    fit=fit,
    metrics={**CLASS_METRICS, **{f"top{n}": top_metric(n, class_scores) for n in (1, 5)}},
    head=class_head(auto_class="AutoModelForImageClassification"),
)
