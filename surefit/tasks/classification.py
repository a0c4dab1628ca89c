"""Classification of texts, images, recordings and rows of tables: one class per row, or several."""

from __future__ import annotations

from surefit.inputs.audio.audio_input import AUDIO_INPUT
from surefit.inputs.encoder_state import FittedTarget
from surefit.inputs.image.image_reading import IMAGE
from surefit.inputs.table.table_input import TABLE, columns_read
from surefit.inputs.text.text_reading import IDS, TEXT, misread
from surefit.targets.baselines import class_baselines, judge_classes
from surefit.targets.class_loss import class_loss, class_probabilities
from surefit.targets.classes import (
    class_id,
    class_scores,
    class_settings,
    decode_classes,
    fit_classes,
    label_field,
)
from surefit.targets.metrics.class_metrics import top_metric, usual_metrics
from surefit.targets.task_spec import Figures, Reads
from surefit.tasks.row_task import READS_TEXT, RowTarget, row_task

CLASSES = RowTarget(
    lambda rows, encoder: (FittedTarget(classes=fit_classes(rows, encoder)), []),
    class_id,
    label_field,
    lambda encoder: len(encoder.classes),
    class_settings,
    class_loss(class_scores),
    usual_metrics(class_scores),
    decode_classes,
    Figures(
        class_scores,
        predicted_values=class_probabilities(class_scores),
        best="accuracy",
        baselines=class_baselines,
        judge=judge_classes,
    ),
)
"""The class of a row, or its classes."""

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
