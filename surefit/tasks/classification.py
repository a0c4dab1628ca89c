"""Tasks with classes: of a text, image, recording, row of a table or of features, of each of its
time steps, words or pixels, or of the objects in it. Each is an input and a target, with a name."""

from __future__ import annotations

from dataclasses import replace

from surefit.findings import Finding
from surefit.inputs.audio.audio_input import AUDIO_INPUT
from surefit.inputs.encoder_state import FittedInput
from surefit.inputs.features.feature_sequences import FEATURES
from surefit.inputs.image.image_changes import box_changes
from surefit.inputs.image.image_reading import IMAGE, PIXELS, plan_images
from surefit.inputs.row_input import Planned
from surefit.inputs.table.table_input import TABLE, columns_read
from surefit.inputs.text.text_reading import ALONGSIDE, IDS, TEXT, misread, text_fields
from surefit.inputs.tokenizer import read_words_as_text
from surefit.targets import detected_objects, masks, steps, tags
from surefit.targets.baselines import tag_baselines
from surefit.targets.class_loss import class_loss, class_probabilities
from surefit.targets.classes import class_names, class_scores
from surefit.targets.metrics.class_metrics import top_metric, usual_metrics
from surefit.targets.ranks import RANKS
from surefit.targets.row_target import CLASSES
from surefit.targets.task_spec import Figures, Head, Reads, TaskSpec, TextUse
from surefit.tasks.regression import FILE_ROLES, INPUTS
from surefit.tasks.row_task import READS_TEXT, row_task

TEXTS = row_task(
    "text-classification",
    (TEXT, IDS),
    CLASSES,
    summary="one class per text, pair of texts or row of token ids; several where the label is a "
    "list or red|blue",
    reads=Reads(misread=misread, class_files=True),
    **READS_TEXT,
)
IMAGES = row_task(
    "image-classification",
    (IMAGE,),
    CLASSES,
    summary="one class, or several, per image",
    metrics={**CLASSES.metrics, **{f"top{n}": top_metric(n, class_scores) for n in (1, 5)}},
)
RECORDINGS = row_task(
    "audio-classification",
    (AUDIO_INPUT,),
    CLASSES,
    summary="one class, or several, per recording: wav, flac or mp3",
)
TABLES = row_task(
    "tabular-classification",
    (TABLE,),
    CLASSES,
    summary="one class, or several, per row of numbers, categories and dates",
    reads=Reads(whole_rows=True, columns_read=columns_read),
)
_BY_ROW = row_task("feature-classification", (FEATURES,), steps.CLASSES_OR_STEPS)
SEQUENCES = replace(
    _BY_ROW,
    summary="one class, or several, per vector [width] or sequence [steps, width] of features, or "
    "one class per step",
    optional=("mask",),
    roles=(steps.LABEL,),
    encode=steps.encode_or(_BY_ROW.encode),
    fields=steps.fields_of,
    head=steps.head_of,
    reads=replace(_BY_ROW.reads, step_labels=True),
)
WORDS = TaskSpec(
    name="token-classification",
    summary="one tag per word or token id, with entities where the tags are B-, I- and O",
    needs=(("tokens", "tags"), ("input_ids", "tags")),
    optional=tuple(ALONGSIDE),
    reads=Reads(tags.takes),
    text=TextUse(
        adapt_tokenizer=lambda tokenizer, roles, reload: read_words_as_text(tokenizer, reload)
    ),
    targets=("tags",),
    fields=lambda encoder: {**tags.FIELDS, **text_fields(encoder)},
    encode=tags.encode,
    fit=tags.fit,
    loss=class_loss(tags.tag_scores),
    figures=Figures(
        tags.tag_scores,
        predicted_values=class_probabilities(tags.tag_scores),
        best="entity_f1",
        baselines=tag_baselines,
    ),
    metrics={
        "token_accuracy": usual_metrics(tags.tag_scores)["accuracy"],
        "accuracy": tags.accuracy,
        "entity_f1": tags.ENTITY_F1,
    },
    decode=tags.decode,
    head=Head(
        auto_class="AutoModelForTokenClassification",
        size=lambda encoder: len(encoder.classes),
        config=class_names,
    ),
)
PIXEL_CLASSES = TaskSpec(
    name="image-segmentation",
    summary="one class per pixel: images and masks of class numbers",
    needs=(("image", "label"),),
    roles=(masks.MASKS,),
    reads=Reads(masks.takes, file_roles=("image", "label"), exact_targets=False, inputs=(IMAGE,)),
    fields={"pixel_values": PIXELS, "labels": masks.LABELS, "image_size": masks.SIZE},
    encode=masks.encode,
    fit=masks.fit,
    loss=masks.pixel_loss,
    figures=Figures(masks.pixel_class_scores, best="iou", baselines=masks.pixel_baselines),
    metrics={"iou": masks.IOU, "dice": masks.DICE, "accuracy": masks.pixel_accuracy},
    decode=masks.decode,
    head=Head(
        auto_class="AutoModelForSemanticSegmentation",
        size=lambda encoder: len(encoder.classes),
        per_pixel=True,
        config=lambda encoder: {**class_names(encoder), "semantic_loss_ignore_index": 255},
    ),
)


ORDINAL = row_task(
    "ordinal",
    INPUTS,
    RANKS,
    summary="one of three or more ordered classes (label_order) per image, recording, text, row of "
    "features, or row of numbers, categories and dates",
    roles=FILE_ROLES,
    reads=Reads(None, misread, by_name=True, whole_rows=True, columns_read=columns_read),
    **READS_TEXT,
)


def plan_plain_images(given: Planned) -> tuple[FittedInput, list[Finding]]:
    """Read pixels from 0 to 1: modules of torchvision's convention normalise them themselves."""
    read, found = plan_images(given)
    hints = read.image_hints
    hints = replace(hints, mean=hints.mean or (0.0,), std=hints.std or (1.0,))
    return replace(read, image_hints=hints), found


PLAIN_IMAGE = replace(
    IMAGE, plan=plan_plain_images, changes=box_changes, is_small=lambda encoder: False
)

DETECTION = TaskSpec(
    name="detection",
    summary="boxes, classes and masks of the objects in an image, by a module of your own that "
    "takes (images, targets) as torchvision's do",
    needs=(("image", "boxes", "label"),),
    optional=("masks",),
    roles=(detected_objects.BOXES, detected_objects.LABELS, detected_objects.MASKS),
    targets=("boxes", "label", "masks"),
    reads=Reads(detected_objects.takes, exact_targets=False, inputs=(PLAIN_IMAGE,)),
    fields=detected_objects.fields,
    encode=detected_objects.encode,
    fit=detected_objects.fit,
    count_targets=lambda columns: 1,
    loss=detected_objects.loss,
    figures=Figures(best="map"),
    metrics={"map": detected_objects.MAP},
    decode=detected_objects.decode,
    head=Head(size=lambda encoder: len(encoder.classes) + 1, lists_of_images=True),
)
