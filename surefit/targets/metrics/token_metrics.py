"""The loss and the metrics of tasks that predict tokens: sums over the labelled tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from surefit.batches.field import IGNORE_INDEX
from surefit.core.float64 import to_float64
from surefit.targets.baselines import token_baselines
from surefit.targets.task_spec import Batch, Figures, Loss, Metric, SumAndCount, full_precision

if TYPE_CHECKING:
    import torch


Select = Callable[[Any, Batch], "tuple[torch.Tensor, torch.Tensor]"]
"""Logits (N, V) and labels (N,) of the labelled tokens."""


@dataclass(frozen=True)
class LabelledLoss:
    """What a model gave at the labelled tokens alone, already compared with their labels.

    `total` is the summed cross-entropy, `hits` how often the label was the most likely token
    (None in training), `count` the number of positions, `auxiliary_loss` the terms that the model
    adds to its token loss. With label smoothing, `plain` is the total without it (None in
    training). `log_probs` (N,) are those of the labels, where the loss needs each of them.
    """

    total: torch.Tensor
    hits: torch.Tensor | None
    count: int
    auxiliary_loss: torch.Tensor | None = None
    plain: torch.Tensor | None = None
    log_probs: torch.Tensor | None = None


def same_token(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each label is predicted at its own position."""
    labelled = batch["labels"] != IGNORE_INDEX
    return outputs.logits[labelled], batch["labels"][labelled]


def next_token(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each label is predicted at the position before it, as causal models do."""
    labels = batch["labels"][:, 1:]
    labelled = labels != IGNORE_INDEX
    return outputs.logits[:, :-1][labelled], labels[labelled]


def token_loss(select: Select, smoothing: float = 0.0) -> Loss:
    """Cross-entropy summed over the labelled tokens, and their number."""

    def loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
        from torch.nn.functional import cross_entropy

        if isinstance(outputs, LabelledLoss):
            if outputs.plain is not None and not smoothing:
                return outputs.plain, outputs.count
            return outputs.total, outputs.count
        logits, labels = select(outputs, batch)
        total = cross_entropy(
            full_precision(logits), labels, reduction="sum", label_smoothing=smoothing
        )
        return total, labels.numel()

    return loss


def smoothed_sums(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return summed loss; and without label smoothing, where it is smoothed and not trained on."""
    import torch
    from torch.nn.functional import cross_entropy

    total = cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    if not smoothing or torch.is_grad_enabled():
        return total, None
    return total, cross_entropy(logits, labels, reduction="sum")


def token_metrics(select: Select) -> dict[str, SumAndCount | Metric]:
    """Perplexity, without label smoothing, and the share of labelled tokens that are the most
    likely ones."""
    loss = token_loss(select)

    def loss_sums(outputs: Any, batch: Batch) -> dict[str, Any]:
        total, count = loss(outputs, batch)
        return {"loss": to_float64(total), "count": count}

    def token_accuracy(outputs: Any, batch: Batch) -> tuple[Any, int]:
        if isinstance(outputs, LabelledLoss):
            return outputs.hits, outputs.count
        logits, labels = select(outputs, batch)
        return (logits.argmax(-1) == labels).sum(), labels.numel()

    perplexity = Metric(loss_sums, lambda sums: float((sums["loss"] / sums["count"]).exp()))
    return {"perplexity": perplexity, "token_accuracy": token_accuracy}


def learned_tokens(select: Select) -> dict[str, Any]:
    """What the TaskSpec of a task that predicts tokens has: its loss, metrics and baselines."""
    return {
        "loss": token_loss(select),
        "metrics": token_metrics(select),
        "figures": Figures(smoothed_loss=partial(token_loss, select), baselines=token_baselines),
    }


OUTSIDE = ("O", 0, None)
"""Tags of words that belong to no entity; 0 where tags are numbers."""

MARKS = "BISUEL"
"""How a tag begins: the first word of an entity, a further one, a single one (S, U), or the last
(E, L)."""
_MARKED = re.compile(rf"([{MARKS}])(?:[-_:](.+))?")
ONLY_TYPE = "entity"
"""The type of all entities where tags are bare marks: B, I and O."""

Entity = tuple[str, int, int]
"""Its type, its first word, and the word after its last."""


def entity_tags(classes: Sequence[Any]) -> list[Any]:
    """Return the tag of each class to find entities by, with "-" between mark and type.

    Bare marks (B, I, O) and other separators (B_LOC) are read as seqeval does. They are marks only
    if all classes begin so, with O and a B among them: a letter may be a class as well.

    >>> entity_tags(["O", "B", "I"]), entity_tags(["O", "B_LOC"]), entity_tags(["O", "B", "H"])
    (['O', 'B-entity', 'I-entity'], ['O', 'B-LOC'], ['O', 'B', 'H'])
    """
    read = {name: _MARKED.fullmatch(str(name)) for name in classes if name != "O"}
    marks = {found[1] if found is not None else None for found in read.values()}
    if "O" not in classes or "B" not in marks or None in marks:
        return list(classes)
    tags = {name: f"{found[1]}-{found[2] or ONLY_TYPE}" for name, found in read.items() if found}
    return [tags.get(name, name) for name in classes]


def find_entities(tags: Sequence[Any]) -> list[Entity]:
    """Return the entities of a row, read as conlleval does: I- without its B- begins one, too.

    B-, I- and O, also with S- or U- for single words and E- or L- for last ones; tags without
    such a beginning join into one entity while they are equal.

    >>> find_entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    entities: list[Entity] = []
    start, kind = 0, None
    for place, tag in enumerate([*tags, "O"]):
        mark, this = _parts(tag)
        begins = this is not None and (mark in "BSU" or this != kind)
        if kind is not None and (begins or this is None):
            entities.append((kind, start, place))
            kind = None
        if begins:
            start, kind = place, this
        if mark in ("S", "U", "E", "L") and kind is not None:
            entities.append((kind, start, place + 1))
            kind = None
    return entities


def _parts(tag: Any) -> tuple[str, str | None]:
    if tag in OUTSIDE:
        return "O", None
    text = str(tag)
    mark, dash, kind = text.partition("-")
    if dash and mark in (*MARKS,):
        return mark, kind
    return "I", text


def match_entities(true: Sequence[Any], made: Sequence[Any]) -> dict[str, int]:
    """Entities found with the right type and words, found wrongly, and missed."""
    wanted, got = set(find_entities(true)), set(find_entities(made))
    return {
        "found": len(wanted & got),
        "false": len(got - wanted),
        "missed": len(wanted - got),
    }


def entity_f1_of(sums: Mapping[str, Any]) -> float:
    """Micro F1 over all entities; 0 where there are none.

    >>> entity_f1_of({"found": 2, "false": 1, "missed": 1})
    0.666...
    """
    found, wrong = float(sums["found"]), float(sums["false"]) + float(sums["missed"])
    return 2 * found / (2 * found + wrong) if found + wrong else 0.0
