"""feature-classification: one class per sequence of pre-computed features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

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


def fit(rows: Any, encoder: Encoder) -> dict[str, Any]:
    """The classes, and the width most training rows agree on."""
    widths: dict[int, int] = {}

    def seen() -> Any:
        for row in rows:
            shape = np.shape(as_steps(row["features"], encoder.settings))
            if len(shape) == 2:
                widths[shape[1]] = widths.get(shape[1], 0) + 1
            yield row

    fitted = fit_classes(seen(), encoder)
    return {**fitted, "width": max(widths, key=lambda w: widths[w]) if widths else None}


def as_steps(features: Any, settings: Mapping[str, Any]) -> Any:
    """One row as [steps, width]; a flat row is cut by features.steps or features.width."""
    if features is None:
        return None
    array = np.asarray(features) if not isinstance(features, list) else _stack(features)
    steps, width = settings.get("features.steps"), settings.get("features.width")
    if array.ndim == 1 and (steps or width):
        cut = (steps or -1, width or -1)
        try:
            return array.reshape(cut)
        except ValueError:
            raise RowFaultError(
                "SF208", f"{array.size} values cannot be cut into {cut}", "features"
            ) from None
    return array


def _stack(rows: list[Any]) -> Any:
    try:
        return np.asarray(rows)
    except ValueError:
        widths = sorted({0 if row is None else len(row) for row in rows})
        raise RowFaultError(
            "SF208", f"steps have different widths within the row: {widths}", "features"
        ) from None


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoded | Skip:
    """The steps as float32, the mask if there is one, and the class."""
    name = encoder.roles["features"]
    steps = as_steps(row["features"], encoder.settings)
    if steps is None or steps.size == 0:
        return Skip("empty")
    if steps.ndim != 2:
        raise RowFaultError(
            "SF208", f"shape {list(steps.shape)}; expected [steps, width] in each row", name
        )
    expected = encoder.fitted.get("width")
    if steps.shape[1] != expected:
        raise RowFaultError(
            "SF208", f"width {steps.shape[1]}; the other rows have width {expected}", name
        )
    columns: dict[str, Any] = {"inputs_embeds": steps}
    if "label" in row:
        label = class_id(row, encoder)
        if isinstance(label, Skip):
            return label
        columns["labels"] = label
    mask = row.get("mask")
    columns["attention_mask"] = np.ones(len(steps), np.int64) if mask is None else mask
    truncated = encoder.max_length is not None and len(steps) > encoder.max_length
    if truncated:
        policy = encoder.settings["overlong"]
        if policy == "drop":
            return Skip("overlong")
        if policy == "error":
            raise RowFaultError(
                "SF212", f"{len(steps)} steps, but max_seq_length is {encoder.max_length}", name
            )
        for column in ("inputs_embeds", "attention_mask"):
            columns[column] = columns[column][: encoder.max_length]
    return Encoded(columns, truncated=truncated)


SPEC = TaskSpec(
    name="feature-classification",
    summary="one class per sequence of features [steps, width]",
    needs=(("features", "label"),),
    optional=("mask",),
    fields={
        "inputs_embeds": Field(("time", "width"), "float32", 0.0),
        "attention_mask": Field(("time",), "int64", 0, "inputs_embeds"),
        "labels": Field((), "int64"),
    },
    encode=encode,
    fit=fit,
    loss=class_loss,
    metrics={"accuracy": accuracy, "macro_f1": MACRO_F1, "confusion": CONFUSION},
    best="accuracy",
    decode=decode_classes,
    head=Head(size=lambda encoder: len(encoder.classes)),
)
