"""The auxiliary loss: terms that a model adds to its token loss, such as load balancing of experts.

surefit computes the token loss itself. To get the other terms as the model defines them, the model
is called with labels while its own cross-entropy is replaced by 0. What remains of its loss are the
other terms, with their coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

from surefit.speed.choose_head import find_output_embedding
from surefit.targets.task_spec import Batch


@dataclass(frozen=True)
class AuxiliaryLoss:
    """Calls a model so that its `loss` holds the auxiliary terms alone.

    `model` is the transformers model, without the peft wrapper; `embedding` its output embedding,
    after which it computes its losses.
    """

    model: Any = field(repr=False)
    embedding: nn.Module = field(repr=False)

    def __call__(self, model: Any, arguments: Mapping[str, Any], batch: Batch) -> Any:
        """Return what the model returns; without gradients, no auxiliary term is computed."""
        given = dict(arguments)
        if torch.is_grad_enabled():
            given["labels"] = batch["labels"]
        with self._mask_of_ones(given, batch), self._without_token_loss():
            return model(**given)

    @contextmanager
    def _mask_of_ones(self, given: dict[str, Any], batch: Batch) -> Iterator[None]:
        """In padding-free batches, the body gets the row lengths and the losses a mask of ones.

        Load balancing weighs tokens by the attention mask, and every token of the batch is real.
        """
        if "row_lengths" not in batch:
            yield
            return
        lengths = given["attention_mask"]
        given["attention_mask"] = torch.ones_like(batch["input_ids"])

        def enter(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**kwargs, "attention_mask": lengths}

        with self.model.base_model.register_forward_pre_hook(enter, with_kwargs=True):
            yield

    @contextmanager
    def _without_token_loss(self) -> Iterator[None]:
        """From the output embedding on, cross-entropy is 0."""
        with ExitStack() as stack:

            def leave(*_: Any) -> None:
                stack.enter_context(CrossEntropies(zero=True))

            with self.embedding.register_forward_hook(leave):
                yield


def find_auxiliary_loss(module: Any) -> AuxiliaryLoss | None:
    """Return how to get the auxiliary loss of a transformers model with an output embedding."""
    model = getattr(module, "get_base_model", lambda: module)()  # without the peft wrapper
    embedding = find_output_embedding(module)
    if embedding is None or not hasattr(model, "base_model"):
        return None
    return AuxiliaryLoss(model, embedding)


@contextmanager
def without_router_logits(module: Any) -> Iterator[None]:
    """Generation needs no router logits, and models fail to weigh them by a mask of the cache."""
    config: Any = getattr(module, "config", None)
    if not getattr(config, "output_router_logits", False):
        yield
        return
    config.output_router_logits = False
    try:
        yield
    finally:
        config.output_router_logits = True


class CrossEntropies(TorchFunctionMode):
    """Records the arguments of each cross-entropy in the block; with `zero`, all of them are 0."""

    def __init__(self, zero: bool = False) -> None:
        super().__init__()
        self.zero = zero
        self.seen: list[dict[str, Any]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not cross_entropy:
            return func(*args, **(kwargs or {}))
        given = {**dict(zip(("input", "target", "weight"), args, strict=False)), **(kwargs or {})}
        self.seen.append(given)
        if not self.zero:
            return func(*args, **(kwargs or {}))
        wide = torch.promote_types(given["input"].dtype, torch.float32)
        return torch.zeros((), dtype=wide, device=given["input"].device)
