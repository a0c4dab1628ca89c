"""text-classification: one class per text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surefit.batches.field import Field
from surefit.data.encode import Encoded, RowFaultError, Skip
from surefit.data.encoder import Encoder
from surefit.tasks.classes import (
    CONFUSION,
    MACRO_F1,
    accuracy,
    class_id,
    class_loss,
    decode_classes,
    fit_classes,
)
from surefit.tasks.spec import Head, TaskSpec


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoded | Skip:
    """Tokens of the text with the tokenizer's own special tokens, and the class."""
    text = row["text"]
    if text is None:
        return Skip("empty")
    if not isinstance(text, str):
        raise RowFaultError("SF213", f"{text!r} is not text", encoder.roles["text"])
    if not text.strip():
        return Skip("empty")
    columns: dict[str, Any] = {}
    if "label" in row:
        label = class_id(row, encoder)
        if isinstance(label, Skip):
            return label
        columns["labels"] = label
    ids = encoder.tokenizer(text)["input_ids"]
    overlong = encoder.max_length is not None and len(ids) > encoder.max_length
    if overlong:
        policy = encoder.settings["overlong"]
        if policy == "drop":
            return Skip("overlong")
        if policy == "error":
            raise RowFaultError(
                "SF212", f"{len(ids)} tokens, but max_seq_length is {encoder.max_length}"
            )
        ids = encoder.tokenizer(text, truncation=True, max_length=encoder.max_length)["input_ids"]
    return Encoded({"input_ids": ids, **columns}, truncated=overlong)


SPEC = TaskSpec(
    name="text-classification",
    summary="one class per text",
    needs=(("text", "label"),),
    fields={
        "input_ids": Field(("time",), "int64", 0),
        "labels": Field((), "int64"),
    },
    encode=encode,
    fit=fit_classes,
    loss=class_loss,
    metrics={"accuracy": accuracy, "macro_f1": MACRO_F1, "confusion": CONFUSION},
    best="accuracy",
    decode=decode_classes,
    head=Head(
        auto_class="AutoModelForSequenceClassification",
        size=lambda encoder: len(encoder.classes),
        config=lambda encoder: {
            "id2label": dict(enumerate(str(name) for name in encoder.classes)),
            "label2id": {str(name): place for place, name in enumerate(encoder.classes)},
            "problem_type": "single_label_classification",
        },
    ),
)
