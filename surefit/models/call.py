"""Calling a model: which column goes to which argument, and what comes back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from surefit.batches.field import IGNORED, SEQUENCES
from surefit.findings import Finding, rule
from surefit.kernels.sparse_head import SparseHead
from surefit.kernels.varlen_attention import end_to_end_arguments
from surefit.models.model_rules import UNSUITABLE_MODEL
from surefit.tasks.task_spec import Batch, Loss

if TYPE_CHECKING:
    from torch import nn

ARGUMENT_BY_POSITION = rule(
    "SF309",
    "info",
    "argument matched by position",
    why="The module's forward names an argument that no column has.",
    fix="Rename the argument after the column if that is not what was meant.",
)

FORWARD_NEEDS_LABELS = rule(
    "SF317",
    "warning",
    "forward cannot do without labels",
    why="Rows to predict on have no labels, so `predict` cannot call the model.",
    fix="Give the argument labels a default of None.",
)


@dataclass(frozen=True)
class Call:
    """Arguments of `forward` and the columns they are given.

    `fixed` are arguments that are the same for every batch. With a `head`, the logits are made
    where the batch lists learned positions, and nowhere else.
    """

    arguments: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    head: SparseHead | None = None
    on_batch: Callable[[Batch], None] | None = None
    """Told of each batch before the model is."""

    def __call__(self, model: Any, batch: Batch) -> Any:
        """Run the model on a batch; the result has `.logits`, `.loss` or both, or is Learned."""
        if self.on_batch is not None:
            self.on_batch(batch)
        given = {arg: batch[name] for arg, name in self.arguments.items() if name in batch}
        if "row_lengths" in batch:
            given |= end_to_end_arguments(batch)
        if self.head is None or "learned_at" not in batch:
            return as_outputs(model(**given, **self.fixed))
        return self.head(lambda: as_outputs(model(**given, **self.fixed)), batch)


def match_arguments(module: nn.Module, columns: Sequence[str]) -> tuple[Call, list[Finding]]:
    """Match the columns of a batch with what `forward` names.

    Models of transformers get no labels: the loss is ours, as a sum and a count.
    """
    parameters = inspect.signature(module.forward).parameters
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if hasattr(module, "config") and hasattr(module, "save_pretrained"):
        wanted = [c for c in columns if c in names and c != "labels"]
        if not wanted:
            raise UNSUITABLE_MODEL.error(
                f"{type(module).__name__} reads none of the columns {', '.join(columns)}.",
                fix="For rows of numbers and categories choose tiny:mlp or a module of your own.",
            )
        # A cache of keys and values is for generating; in training it would only be copied.
        inner = getattr(module, "get_base_model", lambda: module)()  # without its adapter
        caches = "use_cache" in inspect.signature(inner.forward).parameters
        fixed = {"use_cache": False} if caches else {}
        return Call({column: column for column in wanted}, fixed), []
    given = {c: c for c in columns if c in names or takes_all}
    required = [
        n for n in names if parameters[n].default is inspect.Parameter.empty and n not in given
    ]
    lead = next((c for c in SEQUENCES if c in columns), columns[0])
    found = []
    if len(required) == 1 and lead not in given:
        given[required[0]] = lead
        message = f"forward's argument {required[0]!r} is given the column {lead!r}."
        found.append(ARGUMENT_BY_POSITION.finding(message))
        required = []
    if "labels" in names and parameters["labels"].default is inspect.Parameter.empty:
        message = f"{type(module).__name__}.forward takes labels and gives them no default."
        found.append(FORWARD_NEEDS_LABELS.finding(message))
    if required == ["labels"]:
        raise FORWARD_NEEDS_LABELS.error(
            f"{type(module).__name__}.forward needs labels, which these rows lack."
        )
    if required or not given:
        shape = f"forward({', '.join(names)})"
        missing = f" and needs {', '.join(required)}" if required else ""
        raise UNSUITABLE_MODEL.error(
            f"{type(module).__name__}.{shape} takes none of the columns{missing}; there are: "
            f"{', '.join(columns)}.",
            fix=f"Name an argument {lead}.",
        )
    return Call(given), found


def as_outputs(raw: Any) -> Any:
    """What a model returned, with attributes `logits` and `loss` (None where there is none)."""
    import torch

    if isinstance(raw, torch.Tensor):
        own_loss = raw.ndim == 0
        return SimpleNamespace(
            logits=None if own_loss else raw, loss=raw if own_loss else None, raw=raw
        )
    if hasattr(raw, "logits"):
        return raw
    if isinstance(raw, Mapping):
        return SimpleNamespace(**{"logits": None, "loss": None, **raw, "raw": raw})
    if isinstance(raw, tuple | list):
        tensors = [part for part in raw if isinstance(part, torch.Tensor)]
        return SimpleNamespace(
            logits=next((part for part in tensors if part.ndim > 0), None),
            loss=next((part for part in tensors if part.ndim == 0), None),
            raw=raw,
        )
    raise UNSUITABLE_MODEL.error(
        f"The model returned a {type(raw).__name__}; expected a tensor, tuple, dict "
        "or ModelOutput.",
        fix="Return the logits.",
    )


def has_own_loss(outputs: Any) -> bool:
    """Whether a module gave a loss and no logits to compute one from."""
    return getattr(outputs, "logits", None) is None and getattr(outputs, "loss", None) is not None


def own_loss_as_sum(loss: Any, batch: Batch) -> tuple[Any, int]:
    """A module's own scalar loss: a mean over its targets, else over its labels or rows."""
    if "num_targets" in batch:
        return loss * batch["num_targets"], batch["num_targets"]
    labels = batch.get("labels")
    if labels is not None and labels.ndim > 1 and not labels.is_floating_point():
        count = int((labels != IGNORED).sum())
    else:
        count = len(next(iter(batch.values())))
    return loss * count, count


def with_own_loss(task_loss: Loss) -> Loss:
    """The task's loss, or the module's own where the module gives a loss and no logits."""

    def loss(outputs: Any, batch: Batch) -> tuple[Any, Any]:
        if has_own_loss(outputs):
            return own_loss_as_sum(outputs.loss, batch)
        return task_loss(outputs, batch)

    return loss


def from_loss_fn(loss_fn: Callable[..., Any]) -> Loss:
    """A user's `loss_fn(outputs, batch)`: a sum and a count, or a mean over targets.

    It gets what the model returned, as it was returned.
    """

    def loss(outputs: Any, batch: Batch) -> tuple[Any, Any]:
        value = loss_fn(getattr(outputs, "raw", outputs), batch)
        return value if isinstance(value, tuple) else own_loss_as_sum(value, batch)

    return loss
