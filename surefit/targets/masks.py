"""One class per pixel: masks of class numbers (files, bytes or arrays), scores at the size of the
labels, IoU and Dice.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import IGNORE_INDEX, Field
from surefit.data.cell_files import IMAGES, is_empty, names_files
from surefit.data.column_types import array_rank, is_text, may_hold_images
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.findings import Finding, note, rule
from surefit.inputs.encoded_row import DropReason, Encoding, RowFaultError, drop_row, encoded
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import PLAIN, ClassLabels, FittedTarget, MaskClasses, as_fitted
from surefit.inputs.file_names import holds_files
from surefit.inputs.image.image_files import RGB, ChannelAxis, read_image
from surefit.inputs.image.image_reading import (
    ImageReader,
)
from surefit.inputs.store import Store
from surefit.targets.class_loss import loss_of_shares
from surefit.targets.classes import UNSUITABLE_LABEL, by_name
from surefit.targets.task_spec import Batch, Metric, full_precision

if TYPE_CHECKING:
    import torch
    from PIL import Image

MASK_SIZE_DIFFERS = rule(
    "SF257",
    "error",
    "mask of another size than its image",
    why="Each pixel of a mask is the class of the pixel of the image in the same place.",
    fix="Save the mask at the size of its image; or check that the two belong together.",
)

NOT_A_MASK = rule(
    "SF258",
    "error",
    "image that is not a mask",
    why="A mask has one whole number per pixel, its class: a gray or palette PNG, or an array.",
    fix="Save the class numbers as an 8-bit PNG: Image.fromarray(classes.astype('uint8')).save(…).",
)

Mask = npt.NDArray[np.int32]

IGNORED = 255
"""The number of pixels that have no class, as in most data sets."""
LARGEST_CLASS = 65_535


def read_mask(value: Any) -> Mask:
    """Return the class numbers (H, W) of a file, bytes, `{bytes, path}` or an array."""
    try:
        return read_image(value, _class_numbers, _from_array, "the mask")
    except RowFaultError as fault:  # of the column of masks
        raise RowFaultError(fault.rule, fault.message, "label", fault.fix) from None


def image_size(value: Any, place: ChannelAxis = RGB) -> tuple[int, int]:
    """Height and width of an image, as `decode` reads it."""

    def of_array(array: Any) -> tuple[int, int]:
        shape = np.shape(array)
        first = len(shape) == 3 and place.is_first(shape)
        return (shape[1], shape[2]) if first else (shape[0], shape[1])

    return read_image(value, lambda image: (image.height, image.width), of_array, "the image")


def check_sizes(mask: Mask, image: Any, place: ChannelAxis = RGB) -> None:
    """Refuse a mask that has not the size of its image."""
    size = image_size(image, place)
    if mask.shape != size:
        found = " × ".join(map(str, mask.shape))
        message = f"the mask is {found} pixels, its image {size[0]} × {size[1]}"
        raise RowFaultError(MASK_SIZE_DIFFERS, message, "label")


def mask_as_png(mask: Any) -> bytes:
    """Class numbers (H, W) as a gray PNG, of 8 bits or 16."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(mask).save(file, "PNG")
    return file.getvalue()


def _class_numbers(image: Image.Image) -> Mask:
    """Return the numbers of a gray or palette image; gray ones saved as RGB count, too."""
    if "jfif" in image.info or "adobe" in image.info:
        raise _no_mask("a JPEG, whose compression changes the class numbers")
    pixels = np.asarray(image)
    if image.mode in ("RGB", "RGBA"):
        colours = pixels[..., :3]
        if (colours != colours[..., :1]).any():
            raise _no_mask("in colour; expected a class number per pixel, gray or as a palette")
        return colours[..., 0].astype(np.int32)
    if image.mode not in ("1", "L", "P", "I", "I;16", "I;16B", "I;16L"):
        raise _no_mask(f"an image of the mode {image.mode}")
    return _from_array(pixels)


def _from_array(value: Any) -> Mask:
    try:
        array = np.asarray(value)
    except ValueError:
        raise _no_mask("rows of different lengths") from None
    if array.ndim == 3 and 1 in (array.shape[0], array.shape[2]):
        array = array[0] if array.shape[0] == 1 else array[..., 0]
    if array.ndim != 2 or array.dtype.kind not in "biuf" or array.size == 0:
        raise _no_mask(f"of shape {list(array.shape)} and {array.dtype}; expected [height, width]")
    if array.dtype.kind == "f" and (not np.isfinite(array).all() or (array % 1).any()):
        raise _no_mask("of fractions; expected whole numbers")
    if array.min() < 0 or array.max() > LARGEST_CLASS:
        raise _no_mask(
            f"of numbers from {array.min():g} to {array.max():g}; expected 0 to {LARGEST_CLASS}"
        )
    return array.astype(np.int32)


def _no_mask(what: str) -> RowFaultError:
    return RowFaultError(NOT_A_MASK, f"the mask is {what}", "label")


MOST_CLASSES = 256
MANY_CLASSES, RARE_SHARE = 32, 1e-3
"""From so many classes on, most of them rarer than this share, numbers are taken for shades."""


class MaskSample:
    """Counts the class numbers of training masks on their way."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.counts: Counter[int] = Counter()
        self.masks = 0
        self.single: Counter[int] = Counter()

    def fit(self, rows: Iterable[Mapping[str, Any]]) -> tuple[FittedTarget, list[Finding]]:
        """What the masks of these rows have; those that cannot be read are left to the encoding."""
        for row in rows:
            if row.get("label") is not None:
                with suppress(RowFaultError):
                    self._add(read_mask(row["label"]))
        return self.fitted()

    def _add(self, mask: Any) -> None:
        numbers, counts = np.unique(mask, return_counts=True)
        self.counts.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        self.masks += 1
        named = [number for number in numbers.tolist() if number != IGNORED]
        if len(named) <= 1:
            self.single[named[0] if named and len(numbers) == 1 else -1] += 1

    def fitted(self) -> tuple[FittedTarget, list[Finding]]:
        """Return the classes, sorted, how many pixels each has, and whether 255 is ignored."""
        binary = {*self.counts} == {0, IGNORED}
        names = sorted(n for n in self.counts if n != IGNORED or binary)
        if len(names) < 2:
            found = ", ".join(map(str, sorted(self.counts))) or "nothing"
            raise UNSUITABLE_LABEL.error(
                f"column {self.column!r} has {len(names)} class in {self.masks} training masks "
                f"({found}; {IGNORED} is ignored); at least 2 are needed.",
                fix="Check that the masks hold class numbers such as 0 and 1.",
                column=self.column,
            )
        pixels = sum(self.counts.values())
        rare = sum(self.counts[name] < RARE_SHARE * pixels for name in names)
        if len(names) > MOST_CLASSES or (len(names) > MANY_CLASSES and 2 * rare > len(names)):
            raise NOT_A_MASK.error(
                f"column {self.column!r}: the masks have {len(names)} different numbers, {rare} of "
                "them in hardly any pixel: shades, as of masks that were resized with "
                "interpolation, rather than classes.",
                column=self.column,
            )
        counts = tuple(self.counts[name] for name in names)
        masks = MaskClasses(counts, None if binary else IGNORED)
        return FittedTarget(ClassLabels(tuple(names)), masks), [*self._findings(binary)]

    def _findings(self, binary: bool) -> Iterator[Finding]:
        if binary:
            message = f"column {self.column!r}: the masks have 0 and 255 only, so 255 is a class."
            fix = "If 255 is not the second class, check that the masks have all classes."
            yield note(message, fix=fix, column=self.column)
        if not binary and self.single:
            number, count = self.single.most_common(1)[0]
            what = f"the class {number} alone" if number >= 0 else "one class or none"
            message = f"{count} of {self.masks} training masks have {what}."
            yield note(message, column=self.column)


def class_places(mask: Any, encoder: Encoder) -> Any:
    """Class numbers as output numbers, -100 where ignored; None if a class is unknown."""
    names = np.asarray(encoder.classes, np.int32)
    places = np.searchsorted(names, mask).clip(max=len(names) - 1)
    known = names[places] == mask
    ignored = mask == as_fitted(encoder.target.masks).ignored
    if not (known | ignored).all():
        return None
    return np.where(known & ~ignored, places, -100).astype(np.int16)


def pixel_scores(logits: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    """Scores (B, C, h, w) at a height and width, bilinear where the model has fewer pixels."""
    from torch.nn.functional import interpolate

    if tuple(logits.shape[-2:]) == tuple(size):
        return logits
    return interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)


def pixel_class_scores(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores and the class of each labelled pixel: (N, C) and (N,)."""
    labels = batch["labels"]
    scores = pixel_scores(full_precision(outputs.logits), labels.shape[-2:]).movedim(1, -1)
    labelled = labels >= 0
    return scores[labelled], labels[labelled].long()


def pixel_loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
    """Cross-entropy summed over the labelled pixels, and their number."""
    from torch import are_deterministic_algorithms_enabled
    from torch.nn.functional import cross_entropy

    labels = batch["labels"]
    scores = pixel_scores(full_precision(outputs.logits), labels.shape[-2:])
    targets = labels.long()
    if are_deterministic_algorithms_enabled():  # that of pixels is not, on a GPU
        scores, targets = scores.movedim(1, -1).flatten(0, -2), targets.flatten()
    total = cross_entropy(scores, targets, reduction="sum", ignore_index=-100)
    return total, int((labels >= 0).sum())


def _confusion_sums(outputs: Any, batch: Batch) -> dict[str, Any]:
    labels = batch["labels"]
    made = pixel_scores(full_precision(outputs.logits), labels.shape[-2:]).argmax(1)
    count, labelled = outputs.logits.shape[1], labels >= 0
    cells = labels[labelled].long() * count + made[labelled]
    return {"confusion": cells.bincount(minlength=count**2).reshape(count, count)}


def overlaps(confusion: Any) -> tuple[Any, Any]:
    """IoU and Dice of each class, of pixels by true and predicted class; NaN for absent classes.

    >>> import torch
    >>> [each.tolist() for each in overlaps(torch.tensor([[6, 2], [0, 4]]))]
    [[0.75, 0.666...], [0.857..., 0.8]]
    """
    hits, both = confusion.diagonal().double(), (confusion.sum(0) + confusion.sum(1)).double()
    return hits / (both - hits), 2 * hits / both


def _overlap(place: int) -> Metric:
    """Return the mean IoU or Dice of the classes that occur or are predicted, and that of each."""

    def mean(sums: Mapping[str, Any]) -> float:
        return float(overlaps(sums["confusion"])[place].nanmean())

    def per_class(sums: Mapping[str, Any]) -> dict[str, Any]:
        shares = overlaps(sums["confusion"])[place].tolist()
        return {"per_class": [None if share != share else share for share in shares]}

    return Metric(_confusion_sums, mean, beside=per_class, better="higher")


IOU, DICE = _overlap(0), _overlap(1)


def pixel_accuracy(outputs: Any, batch: Batch) -> tuple[Any, Any]:
    """Pixels whose most likely class is the right one, and all labelled ones."""
    confusion = _confusion_sums(outputs, batch)["confusion"]
    return confusion.diagonal().sum(), confusion.sum()


def pixel_baselines(
    train: Store | None, validation: Store, encoder: Encoder
) -> dict[str, dict[str, Any]]:
    """Return the most frequent class everywhere."""
    import torch

    known = np.asarray(as_fitted(encoder.target.masks).pixel_counts, np.float64)
    judged = np.zeros(len(known), np.int64)
    for row in range(len(validation)):
        labels = validation.value("labels", row)
        judged += np.bincount(labels[labels >= 0].astype(np.int64), minlength=len(known))
    if not judged.sum():
        return {}
    confusion = torch.zeros(len(known), len(known), dtype=torch.long)
    confusion[:, int(known.argmax())] = torch.from_numpy(judged)
    iou, dice = (float(each.nanmean()) for each in overlaps(confusion))
    options = encoder.settings.loss
    shares = known / known.sum()
    loss = float(-(judged * np.log(np.maximum(shares, 1e-12))).sum() / judged.sum())
    if options != PLAIN:
        loss = loss_of_shares(options, known, judged)
    accuracy = float(judged[int(known.argmax())] / judged.sum())
    return {"majority class": {"loss": loss, "iou": iou, "dice": dice, "accuracy": accuracy}}


LABELS = Field(("height", "width"), "int16", IGNORE_INDEX)
SIZE = Field(("side",), "int64")
"""Height and width of an image before it was resized, for predictions."""
MASKS = replace(
    get_role("label"),
    column_names=(
        *("mask", "masks", "segmentation", "segmentation_mask", "mask_path", "seg_map"),
        *("annotation", "label", "labels", "target", "y"),
    ),
    accepts=may_hold_images,
    by_type=False,
)


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Return whether both columns hold images or, if they are text, names of files."""
    kind = table.column_type(roles["label"])
    # numbers and vectors are classes, also where the user names their column
    holds = may_hold_images(kind, True) and not is_text(kind) and array_rank(kind) != 1
    is_mask = holds or (is_text(kind) and names_files(table, roles["label"], IMAGES))
    return is_mask and holds_files(table, roles, "image")


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> tuple[Encoder, list[Finding]]:
    """Return the classes of the masks; and how images are read."""
    reader, masks = ImageReader(encoder), MaskSample(encoder.roles["label"])
    learned, found = masks.fit(reader.watch(rows))
    read, notes = reader.fitted()
    return replace(encoder, target=learned, input=read), [*found, *notes]


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Return the pixel values, the size of the image in its file, and the class of each pixel."""
    if is_empty(row["image"]):
        raise drop_row(DropReason.EMPTY)
    form = as_fitted(encoder.input.pixels)
    pixels = form.pixel_values(row["image"])
    if "label" not in row:
        size = image_size(row["image"], form.place)
        return encoded({"pixel_values": pixels, "image_size": np.array(size)})
    if is_empty(row["label"]):
        raise drop_row(DropReason.NO_LABEL)
    mask = read_mask(row["label"])
    check_sizes(mask, row["image"], form.place)
    places = class_places(form.resize_mask(mask), encoder)
    if places is None:
        raise drop_row(DropReason.UNKNOWN_LABEL)
    if not (places >= 0).any():
        raise drop_row(DropReason.NO_LABEL)
    return encoded({"pixel_values": pixels, "image_size": np.array(mask.shape), "labels": places})


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return most likely class number of each pixel, at the size of the image, and their shares."""
    from torch.nn.functional import softmax

    names = np.asarray(encoder.classes)
    names = names.astype(np.uint8 if names.max() <= 255 else np.uint16)
    scores = outputs.logits[:, : len(names)].float()
    scores = pixel_scores(scores, batch["pixel_values"].shape[-2:])
    form = as_fitted(encoder.input.pixels)
    found = []
    for row, size in zip(scores, batch["image_size"].tolist(), strict=True):
        whole = row if form.edge is not None else pixel_scores(row[None], tuple(size))[0]
        places = whole.argmax(0).cpu().numpy()
        shares = np.bincount(places.ravel(), minlength=len(names)) / places.size
        made = {"prediction": names[places], "shares": by_name(shares.tolist(), encoder.classes)}
        if encoder.settings.all_probabilities:
            chances = softmax(whole, 0).mean((1, 2)).tolist()
            made["probabilities"] = by_name(chances, encoder.classes)
        found.append(made)
    return found
