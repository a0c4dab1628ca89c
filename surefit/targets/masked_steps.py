"""Steps of features are hidden, and reconstructed from those around them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.field import Field, describe_misalignment
from surefit.data.data_rules import MISALIGNED_COLUMNS, MISSING_COLUMN
from surefit.data.row_arrays import row_shape
from surefit.findings import Finding, rule
from surefit.inputs.encoded_row import DropReason, Encoding, RowFaultError, drop_row, encoded
from surefit.inputs.encoder import Encoder
from surefit.inputs.features.feature_layout import FeatureLayout, planned_axes
from surefit.inputs.features.feature_sequences import (
    FIELDS as SEQUENCE,
)
from surefit.inputs.features.feature_sequences import (
    plan_features,
    read_steps,
)
from surefit.inputs.row_input import Planned
from surefit.targets.task_spec import Batch, Metric, full_precision

if TYPE_CHECKING:
    import torch

MASKED_SHARE = 0.15
FIELDS = {
    **SEQUENCE,
    "masked_steps": Field(("time",), "int64", 0, "inputs_embeds"),
    "labels": Field(("masked_time", "width"), "float32", 0.0),
    "distribution": Field((), "int64"),
}


MASKING_INFERRED = rule(
    "SF762",
    "warning",
    "masked pretraining inferred",
    why=(
        "The data has sequences of features and no label. The model learns to reconstruct masked "
        "time steps, which is one of several things that can be learned without labels."
    ),
    fix=(
        "Name the task: --task feature-pretraining. With labels, name their column: "
        "--set columns.label=COLUMN. A module of your own may have its own loss_fn."
    ),
    accept="The model reconstructs masked time steps.",
)


def check_inferred(given: Planned) -> list[Finding]:
    """Warn where nobody asked for masking; refuse it for rows of one time step."""
    table, column, asked = given.table, given.encoder.roles["features"], given.config.features
    shape, file = row_shape(table, column), table.sources[0].file
    sized = asked.steps is not None or asked.width is not None
    if len(shape.axes) > 1 or sized or given.hints.required is None:  # else a module reads vectors
        layout = plan_features(given)[0].layout or FeatureLayout()
        if planned_axes(shape, layout)[0].most > 1:
            message = (
                f"The task is not named, and no column is a label: time steps of column {column!r} "
                "are masked, and the model learns to reconstruct them."
            )
            return [MASKING_INFERRED.finding(message, file=file, column=column)]
    raise MISSING_COLUMN.error(
        f"Column {column!r} has one vector per row, and no column is a label, so it is not clear "
        "what is to be learned.",
        fix="Name the column of the labels: --set columns.label=COLUMN. To train a module of your "
        "own without labels, from Python: task='custom', loss_fn=f, with f(outputs, batch).",
        file=file,
        column=column,
    )


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Return the steps with the masked ones zeroed, which these are, and what they held.

    A row is masked in the same way in all epochs and by everyone who reads it with this seed.
    """
    steps, mask, truncated = read_steps(row, encoder)
    if len(mask) != len(steps):
        columns = [encoder.roles.get(role, role) for role in ("mask", "features")]
        message = describe_misalignment(columns[0], len(mask), columns[1], len(steps))
        raise RowFaultError(MISALIGNED_COLUMNS, message, "mask")
    visible = np.flatnonzero(np.asarray(mask))
    if not len(visible):
        raise drop_row(DropReason.MASKED)
    steps = np.ascontiguousarray(steps, np.float32)
    chosen = choose_steps(visible, encoder.settings.seed, steps)
    masked = np.zeros(len(steps), np.int64)
    masked[chosen] = 1
    return encoded(
        {
            "inputs_embeds": np.where(masked[:, None] == 1, np.float32(0), steps),
            "attention_mask": mask,
            "masked_steps": masked,
            "labels": steps[chosen],
            "distribution": int(encoder.input.statistics.distributions),
        },
        truncated=truncated,
    )


def choose_steps(visible: Any, seed: int, steps: Any) -> Any:
    """Return the steps to mask, in order: a share of the visible ones, at least one.

    They depend on the seed and on what the row holds, so neither its place in the data nor
    the order of reading matters.
    """
    content = hashlib.blake2b(steps.tobytes(), digest_size=8).digest()
    random = np.random.default_rng([seed, int.from_bytes(content, "little")])
    count = max(1, round(MASKED_SHARE * len(visible)))
    return np.sort(random.choice(visible, count, replace=False))


def count_targets(columns: Mapping[str, Any]) -> int:
    """Masked steps where they are distributions, else their elements."""
    labels = columns["labels"]
    return len(labels) if columns["distribution"] else int(labels.size)


def _masked(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what was reconstructed and what was there, for all masked steps: (N, W) each."""
    import torch

    masked = batch["masked_steps"].bool()
    per_row = masked.sum(1, keepdim=True)
    places = torch.arange(batch["labels"].shape[1], device=masked.device)
    return outputs.logits[masked], batch["labels"][places < per_row]


def loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
    """Squared errors summed over masked elements; cross-entropies over masked distributions."""
    from torch.nn.functional import cross_entropy

    got, wanted = _masked(outputs, batch)
    got = full_precision(got)
    if batch["distribution"][0]:
        return cross_entropy(got, wanted, reduction="sum"), len(wanted)
    return (got - wanted).square().sum(), wanted.numel()


def _hits(outputs: Any, batch: Batch) -> dict[str, Any]:
    if not batch["distribution"][0]:
        return {}
    got, wanted = _masked(outputs, batch)
    return {"hits": (got.argmax(-1) == wanted.argmax(-1)).sum(), "count": len(wanted)}


ACCURACY = Metric(_hits, lambda sums: float(sums["hits"]) / float(sums["count"]))
"""Masked steps whose most likely place is the right one; only where steps are distributions."""


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the masked steps of each row, and what the model puts in their place."""
    logits = outputs.logits.float()
    if encoder.input.statistics.distributions:
        logits = logits.softmax(-1)
    places = [row.nonzero()[:, 0] for row in batch["masked_steps"]]
    return [
        {"prediction": row[at].tolist(), "masked_steps": at.tolist()}
        for row, at in zip(logits, places, strict=True)
    ]
