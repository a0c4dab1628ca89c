"""Proves on a few real rows that padding-free batches give the loss and gradients of padded ones.

Gradients are compared rather than logits: the logits of untrained weights hardly depend on their
rows, but the gradients of each weight show which tokens attended to which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefit.batches.collate import Layout
from surefit.speed.numerics import largest_difference, preserved_state, tolerance_of

if TYPE_CHECKING:
    import torch

    from surefit.pipeline.pipeline import Pipeline

SMALL_GRADIENT = 1e-2
"""Gradients below this share of the largest one are compared with that share: the gradient of a
key's bias is zero but for rounding."""


def why_layout_differs(
    pipeline: Pipeline, rows: Sequence[Mapping[str, Any]], layout: Layout
) -> str | None:
    """Why the padding-free layout does not compute what the padded one does; None if it does.

    The pipeline's Call already has the head and the varlen attention that training would use.
    """
    padded = pipeline.collate(rows, Layout(predicts=layout.predicts))
    varlen = pipeline.collate(rows, layout)
    try:
        with preserved_state(pipeline.module):
            if not _same_gradients(pipeline, padded, varlen):
                return "its gradients differ in padding-free batches"
    except Exception as error:  # the model's own code may fail in any way
        return f"the model fails on padding-free batches ({type(error).__name__})"
    return None


def _same_gradients(
    pipeline: Pipeline, padded: Mapping[str, Any], varlen: Mapping[str, Any]
) -> bool:
    """Whether loss and gradients are the same; holds one gradient of each weight at a time."""
    import torch

    trained = [weight for weight in pipeline.module.parameters() if weight.requires_grad]
    loss = _loss(pipeline, padded)
    gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    expected: dict[torch.Tensor, torch.Tensor] = {
        weight: gradient
        for weight, gradient in zip(trained, gradients, strict=True)
        if gradient is not None
    }
    del gradients
    sizes = (float(each.abs().max()) for each in expected.values() if each.numel())
    largest = max(sizes, default=0.0)
    same = []

    def compare(weight: torch.Tensor) -> None:
        found, weight.grad = weight.grad, None
        wanted = expected.pop(weight, None)
        assert found is not None
        wanted = torch.zeros_like(found) if wanted is None else wanted
        close = tolerance_of(found, wanted).gradients
        same.append(_close(found, wanted, close, SMALL_GRADIENT * largest))

    before = [weight.grad for weight in trained]
    hooks = []
    try:
        for weight in trained:
            weight.grad = None
            hooks.append(weight.register_post_accumulate_grad_hook(compare))  # type: ignore[no-untyped-call]
        other = _loss(pipeline, varlen)
        torch.autograd.backward(other)
    finally:
        for hook in hooks:
            hook.remove()
        for weight, gradient in zip(trained, before, strict=True):
            weight.grad = gradient
    none_left = all(not bool(gradient.any()) for gradient in expected.values())
    close = tolerance_of(*(weight.dtype for weight in trained)).loss
    return none_left and all(same) and _close(other, loss, close, 1e-12)


def _loss(pipeline: Pipeline, batch: Mapping[str, Any]) -> torch.Tensor:
    return pipeline.loss(pipeline.outputs(batch), batch)[0]


def _close(found: torch.Tensor, expected: torch.Tensor, relative: float, least: float) -> bool:
    """Whether they differ by at most a share of the expected size, which is at least `least`."""
    if found.numel() == 0:
        return True
    difference, _, size = largest_difference(found, expected)
    return difference <= relative * max(size, least)
