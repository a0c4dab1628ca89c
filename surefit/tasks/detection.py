"""detection: boxes and classes of the objects in an image, by a module of the user's own."""

from __future__ import annotations

from dataclasses import replace

from surefit.findings import Finding
from surefit.inputs.encoder_state import FittedInput
from surefit.inputs.image.box_changes import box_changes
from surefit.inputs.image.image_reading import IMAGE, plan_images
from surefit.inputs.row_input import Planned
from surefit.targets import detected_objects
from surefit.targets.task_spec import Figures, Head, Reads, TaskSpec


def plan_plain_images(given: Planned) -> tuple[FittedInput, list[Finding]]:
    """Read pixels from 0 to 1: modules of torchvision's convention normalise them themselves."""
    read, found = plan_images(given)
    hints = read.image_hints
    hints = replace(hints, mean=hints.mean or (0.0,), std=hints.std or (1.0,))
    return replace(read, image_hints=hints), found


PLAIN_IMAGE = replace(IMAGE, plan=plan_plain_images, changes=box_changes)

SPEC = TaskSpec(
    name="detection",
    summary="boxes and classes of the objects in an image, by a module of your own that takes "
    "(images, targets) as torchvision's do",
    needs=(("image", "boxes", "label"),),
    roles=(detected_objects.BOXES, detected_objects.LABELS),
    targets=("boxes", "label"),
    reads=Reads(detected_objects.takes, exact_targets=False, inputs=(PLAIN_IMAGE,)),
    fields=detected_objects.FIELDS,
    encode=detected_objects.encode,
    fit=detected_objects.fit,
    count_targets=lambda columns: 1,
    loss=detected_objects.loss,
    figures=Figures(best="map"),
    metrics={"map": detected_objects.MAP},
    decode=detected_objects.decode,
    head=Head(size=lambda encoder: len(encoder.classes) + 1, lists_of_images=True),
)
