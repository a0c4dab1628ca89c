"""image-segmentation: one class per pixel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.field import IGNORE_INDEX, Field
from surefit.data.cell_files import is_empty, names_files
from surefit.data.column_types import array_rank, is_text, may_hold_images
from surefit.data.file_kinds import IMAGES
from surefit.data.roles import Role
from surefit.data.table import Table
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encoded_row import Encoding, SkipRowError, encoded
from surefit.encode.encoder import Encoder
from surefit.encode.images.mask_files import check_sizes, image_size, read_mask
from surefit.encode.images.pixel_format import read_format
from surefit.tasks.classes import ALL_PROBABILITIES, by_name
from surefit.tasks.image_reading import PIXELS, fit_images, holds_images, read_pixels
from surefit.tasks.pixel_classes import (
    DICE,
    IOU,
    MaskSample,
    class_places,
    pixel_accuracy,
    pixel_baselines,
    pixel_class_scores,
    pixel_loss,
    pixel_scores,
)
from surefit.tasks.task_spec import Batch, Head, TaskSpec

if TYPE_CHECKING:
    pass

LABELS = Field(("height", "width"), "int16", IGNORE_INDEX)
SIZE = Field(("side",), "int64")
"""Height and width of an image before it was resized, for predictions."""
MASKS = Role(
    "label",
    (
        *("mask", "masks", "segmentation", "segmentation_mask", "mask_path", "seg_map"),
        *("annotation", "label", "labels", "target", "y"),
    ),
    may_hold_images,
    batch_column="labels",
)


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether both columns hold images or, if they are text, names of files."""
    kind = table.column_type(roles["label"])
    # numbers and vectors are classes, also where the user names their column
    holds = may_hold_images(kind, True) and not is_text(kind) and array_rank(kind) != 1
    is_mask = holds or (is_text(kind) and names_files(table, roles["label"], IMAGES))
    return is_mask and holds_images(table, roles)


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> dict[str, Any]:
    """The classes of the masks; and how images are read."""
    return fit_images(rows, encoder, MaskSample(encoder.roles["label"]).fit)


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The pixel values, the size of the image in its file, and the class of each pixel."""
    pixels, form = read_pixels(row, encoder), read_format(encoder.fitted["pixels"])
    if "label" not in row:
        size = image_size(row["image"], form.place)
        return encoded({"pixel_values": pixels, "image_size": np.array(size)})
    if is_empty(row["label"]):
        raise SkipRowError(DropReason.NO_LABEL)
    mask = read_mask(row["label"])
    check_sizes(mask, row["image"], form.place)
    places = class_places(form.resize_mask(mask), encoder)
    if places is None:
        raise SkipRowError(DropReason.UNKNOWN_LABEL)
    if not (places >= 0).any():
        raise SkipRowError(DropReason.NO_LABEL)
    return encoded({"pixel_values": pixels, "image_size": np.array(mask.shape), "labels": places})


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """The most likely class number of each pixel, at the size of the image, and their shares."""
    from torch.nn.functional import softmax

    names = np.asarray(encoder.classes)
    names = names.astype(np.uint8 if names.max() <= 255 else np.uint16)
    scores = outputs.logits[:, : len(names)].float()
    scores = pixel_scores(scores, batch["pixel_values"].shape[-2:])
    form = read_format(encoder.fitted["pixels"])
    found = []
    for row, size in zip(scores, batch["image_size"].tolist(), strict=True):
        whole = row if form.edge is not None else pixel_scores(row[None], tuple(size))[0]
        places = whole.argmax(0).cpu().numpy()
        shares = np.bincount(places.ravel(), minlength=len(names)) / places.size
        made = {"prediction": names[places], "shares": by_name(shares.tolist(), encoder.classes)}
        if encoder.settings.get(ALL_PROBABILITIES) is not None:
            chances = softmax(whole, 0).mean((1, 2)).tolist()
            made["probabilities"] = by_name(chances, encoder.classes)
        found.append(made)
    return found


SPEC = TaskSpec(
    name="image-segmentation",
    summary="one class per pixel: images and masks of class numbers",
    needs=(("image", "label"),),
    roles=(MASKS,),
    file_roles=("image", "label"),
    takes=takes,
    arrays=lambda roles: "image",
    exact_targets=False,
    fields={"pixel_values": PIXELS, "labels": LABELS, "image_size": SIZE},
    encode=encode,
    fit=fit,
    baselines=pixel_baselines,
    loss=pixel_loss,
    class_scores=pixel_class_scores,
    metrics={"iou": IOU, "dice": DICE, "accuracy": pixel_accuracy},
    best="iou",
    decode=decode,
    head=Head(
        auto_class="AutoModelForSemanticSegmentation",
        size=lambda encoder: len(encoder.classes),
        per_pixel=True,
        config=lambda encoder: {
            "id2label": dict(enumerate(str(name) for name in encoder.classes)),
            "label2id": {str(name): place for place, name in enumerate(encoder.classes)},
            "semantic_loss_ignore_index": 255,
        },
    ),
)
