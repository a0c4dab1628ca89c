"""Which position does each label train? Finds labels that are shifted twice, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from surefit.batches.field import IGNORE_INDEX
from surefit.checks.probes.probe_batch import Subject
from surefit.findings import Finding, rule
from surefit.kernels.tied_embeddings import find_input_embedding

if TYPE_CHECKING:
    from torch import nn

LABEL_VISIBLE = rule(
    "SF703",
    "error",
    "a label is seen by the position that predicts it",
    why=(
        "Labels that are not shifted, or attention that is not causal, teach copying: the loss "
        "falls to nothing and the model can predict nothing."
    ),
    fix="Compare the outputs at position t with the label at t + 1, and mask later tokens.",
    accept="The model is trained with its own loss as it is.",
)

LABELS_SHIFTED_TWICE = rule(
    "SF704",
    "error",
    "labels are shifted twice",
    why="The model learns to predict the token after the next one.",
    fix="Shift once: give labels equal to input_ids to a model that shifts them itself.",
    accept="The model is trained with its own loss as it is.",
)


def check_shift(subject: Subject) -> list[Finding]:
    """The loss of a single label must depend on the tokens before it, and on no other.

    The gradient of that loss with respect to the embedded tokens shows which tokens it depends on.
    """
    labels = subject.batch.get("labels")
    if not subject.causal or labels is None or labels.ndim != 2:
        return []
    chosen = _middle_label(labels)
    embedding = _embedding(subject.module)
    if chosen is None or embedding is None:
        return []
    row, place = chosen
    batch = subject.row(row)
    batch["labels"] = batch["labels"].new_full(batch["labels"].shape, IGNORE_INDEX)
    batch["labels"][0, place] = labels[row, place]
    furthest = _furthest_token(subject, batch, embedding)
    if furthest is None or furthest == place - 1:
        return []
    if furthest < place - 1:
        message = (
            f"The label of token {place} is predicted from the tokens up to {furthest}; expected "
            f"{place - 1}."
        )
        return [LABELS_SHIFTED_TWICE.finding(message)]
    seen = "itself" if furthest == place else f"and the tokens after it, up to {furthest}"
    message = f"The label of token {place} is predicted from a position that has seen it {seen}."
    return [LABEL_VISIBLE.finding(message)]


def _middle_label(labels: Any) -> tuple[int, int] | None:
    """Row and place of a label with tokens before and after it."""
    for row, values in enumerate(labels):
        places = (values != IGNORE_INDEX).nonzero().flatten().tolist()
        inner = [place for place in places if 2 <= place < len(values) - 1]
        if inner:
            return row, inner[len(inner) // 2]
    return None


def _embedding(module: nn.Module) -> nn.Module | None:
    from torch import nn

    if hasattr(module, "get_input_embeddings"):
        return find_input_embedding(module)  # type: ignore[no-any-return]
    return next((part for part in module.modules() if isinstance(part, nn.Embedding)), None)


def _furthest_token(subject: Subject, batch: Any, embedding: nn.Module) -> int | None:
    """The last token that the loss depends on; None where it depends on none."""
    import torch

    embedded: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        if output.ndim != 3 or embedded:
            return output
        embedded.append(output.detach().requires_grad_())
        return embedded[0]

    handle = embedding.register_forward_hook(keep)
    try:
        loss, _ = subject.loss(subject.forward(batch), batch)
    finally:
        handle.remove()
    if not embedded or not loss.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(loss, embedded, allow_unused=True)
    if gradient is None:
        return None
    size = gradient[0].abs().amax(-1)
    reached = (size > size.max() * 1e-9).nonzero().flatten()
    return int(reached[-1]) if float(size.max()) > 0 else None
