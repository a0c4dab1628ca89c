"""The registry of tasks: one line per task.

An inferred task is the first one in this order that the data and the model suit.
"""

from __future__ import annotations

import difflib

from surefit.errors import UsageError
from surefit.inputs.row_input import RowInput
from surefit.targets.task_spec import TaskSpec
from surefit.tasks import (
    classification,
    custom,
    embedding,
    feature_pretraining,
    forecasting,
    language_models,
    preferences,
    regression,
)

TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        language_models.SFT,
        classification.DETECTION,
        classification.PIXEL_CLASSES,
        classification.IMAGES,
        classification.RECORDINGS,
        language_models.SEQ2SEQ,
        classification.WORDS,
        classification.TEXTS,
        classification.SEQUENCES,
        regression.SPEC,
        classification.ORDINAL,
        forecasting.SPEC,
        feature_pretraining.SPEC,
        classification.TABLES,
        language_models.CAUSAL_LM,
        language_models.MASKED_LM,
        preferences.PREFERENCE,
        preferences.REWARD,
        embedding.SPEC,
        custom.SPEC,
    )
}

OWN_TASK = custom.SPEC
"""The task of a module that reads all columns and has its own loss."""

ORDERED_TASK = classification.ORDINAL
"""The task of classes whose order the user names."""

INPUTS: dict[str, RowInput] = {
    each.role: each
    for spec in reversed(TASKS.values())
    for each in spec.reads.inputs
    if each.role is not None
}
"""Each input of a column by its role, as the first task that reads it does."""

KEPT_TASKS = ("question-answering",)
"""Tasks that are kept for later."""

OTHER_NAMES: dict[str, str] = {
    **dict.fromkeys(
        ("text-generation", "clm", "language-modeling", "pretraining", "pt"), "causal-lm"
    ),
    **dict.fromkeys(("instruction", "instruction-tuning", "chat", "finetune"), "sft"),
    **dict.fromkeys(("mlm", "fill-mask"), "masked-lm"),
    **dict.fromkeys(("translation", "summarization", "seq-2-seq-lm", "seq2seq-lm"), "seq2seq"),
    **dict.fromkeys(("sequence-classification", "seq-cls", "sentiment"), "text-classification"),
    **dict.fromkeys(("ordinal-classification", "ordinal-regression", "coral", "corn"), "ordinal"),
    **dict.fromkeys(("forecast", "time-series", "time-series-forecasting"), "forecasting"),
    **dict.fromkeys(("ner", "pos", "token-cls"), "token-classification"),
    **dict.fromkeys(("vision", "image-cls"), "image-classification"),
    **dict.fromkeys(("segmentation", "semantic-segmentation"), "image-segmentation"),
    **dict.fromkeys(("object-detection", "bbox", "boxes"), "detection"),
    **dict.fromkeys(("audio", "audio-cls", "speech"), "audio-classification"),
    **dict.fromkeys(("dpo", "ipo", "simpo", "kto", "orpo", "cpo", "rlhf"), "preference"),
    **dict.fromkeys(("rm", "reward-model", "reward-modeling"), "reward"),
    **dict.fromkeys(
        ("sentence-similarity", "feature-extraction", "embeddings", "retrieval"), "embedding"
    ),
    **dict.fromkeys(("qa", "question-ans"), "question-answering"),
}
"""What other tools call these tasks."""


def get_task(name: str) -> TaskSpec | tuple[TaskSpec, ...]:
    """Return task of that name (underscores do for dashes); `classification` stands for several."""
    name = name.replace("_", "-")
    if name == "classification":
        return tuple(spec for key, spec in TASKS.items() if key.endswith("-classification"))
    spec = TASKS.get(name)
    if spec is None:
        meant = OTHER_NAMES.get(name.lower(), name.lower())
        if meant in KEPT_TASKS and meant not in TASKS:
            raise UsageError(
                f"The task {meant!r} is not available yet.", f"Choose one of: {', '.join(TASKS)}."
            )
        close = (
            [meant] if meant in TASKS else difflib.get_close_matches(name, TASKS, n=1, cutoff=0.4)
        )
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UsageError(
            f"Unknown task {name!r}.{hint}",
            f"Choose one of: {', '.join(TASKS)}; or name your own TaskSpec as module:SPEC.",
        )
    return spec
