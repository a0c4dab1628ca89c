"""What every task with one class per row shares: classes from the rows, loss and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from surefit.data.encode import RowFaultError, Skip
from surefit.data.encoder import Encoder
from surefit.findings import fail
from surefit.tasks.spec import Batch, Metric, full_precision

if TYPE_CHECKING:
    import torch

MAX_SHARE_OF_CLASSES = 0.5
"""More classes than this share of the rows means that the column is no class label."""


def class_name(value: Any) -> Any:
    """A label as a class name: whole numbers and text stay, 2.0 is 2, the rest is refused."""
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    if isinstance(value, int | str):
        return value.strip() if isinstance(value, str) else value
    raise RowFaultError(
        "SF205",
        f"the label {repr(value)[:40]} is a {type(value).__name__}; expected a class name or "
        "number",
        "label",
        fix="For continuous targets use the task regression; else give class names.",
    )


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def fit_classes(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> dict[str, Any]:
    """The class names of the training rows, sorted, with how often each occurs."""
    counts: Counter[Any] = Counter()
    for row in rows:
        if not _is_missing(row.get("label")):
            counts[class_name(row["label"])] += 1
    total, column = counts.total(), encoder.roles["label"]
    if len(counts) < 2:
        raise fail(
            "SF205",
            f"column {column!r} has {len(counts)} class{'' if len(counts) == 1 else 'es'} in "
            f"{total} training rows; at least 2 are needed.",
            fix="Give more rows, hold out fewer (eval_share), or choose another column.",
            column=column,
        )
    if len(counts) > MAX_SHARE_OF_CLASSES * total and total > 10:
        raise fail(
            "SF205",
            f"column {column!r} has {len(counts)} different values in {total} training rows, too "
            "many to be classes.",
            column=column,
        )
    names = sorted(counts, key=lambda name: (isinstance(name, str), name))
    return {"classes": names, "class_counts": [counts[name] for name in names]}


def class_id(row: Mapping[str, Any], encoder: Encoder) -> int | Skip:
    """The output number of the row's label; a Skip where it has none the model can learn."""
    value = row["label"]
    if _is_missing(value):
        return Skip("no_label")
    place = encoder.class_ids.get(class_name(value))
    return Skip("unknown_label") if place is None else place


def class_loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
    """Cross-entropy summed over the rows, and the number of rows."""
    from torch.nn.functional import cross_entropy

    labels = batch["labels"]
    return cross_entropy(full_precision(outputs.logits), labels, reduction="sum"), len(labels)


def accuracy(outputs: Any, batch: Batch) -> tuple[Any, int]:
    """Rows whose most likely class is the right one, and all rows."""
    return (outputs.logits.argmax(-1) == batch["labels"]).sum(), len(batch["labels"])


def _confusion_sums(outputs: Any, batch: Batch) -> dict[str, Any]:
    num_classes = outputs.logits.shape[-1]
    cells = batch["labels"] * num_classes + outputs.logits.argmax(-1)
    counts = cells.bincount(minlength=num_classes**2)
    return {"confusion": counts.reshape(num_classes, num_classes)}


def macro_f1_of(confusion: torch.Tensor) -> float:
    """Mean F1 over the classes that occur or are predicted; rows are true classes.

    >>> import torch
    >>> macro_f1_of(torch.tensor([[8, 2], [0, 10]]))
    0.898989...
    """
    confusion = confusion.double()
    hits = confusion.diagonal()
    either = confusion.sum(0) + confusion.sum(1)
    scores = 2 * hits[either > 0] / either[either > 0]
    return float(scores.mean())


MACRO_F1 = Metric(_confusion_sums, lambda sums: macro_f1_of(sums["confusion"]))
CONFUSION = Metric(_confusion_sums, lambda sums: sums["confusion"].tolist(), is_number=False)


def decode_classes(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """The most likely class of each row and its probability."""
    chances = outputs.logits[:, : len(encoder.classes)].float().softmax(-1)
    best = chances.max(-1)
    return [
        {"prediction": encoder.classes[place], "probability": chance}
        for place, chance in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
