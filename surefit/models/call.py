"""Calls a model: passes columns to the arguments of `forward` and unifies what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from surefit.batches.field import IGNORE_INDEX, SEQUENCES
from surefit.findings import Finding, rule
from surefit.kernels.packed_body import Varlen
from surefit.kernels.sparse_head import SparseHead
from surefit.models.auxiliary_loss import AuxiliaryLoss
from surefit.models.model_rules import UNSUITABLE_MODEL
from surefit.models.one_score import OneScore
from surefit.models.step_scores import StepScores
from surefit.tasks.task_spec import Batch, Loss

if TYPE_CHECKING:
    import torch
    from torch import nn

ARGUMENT_BY_POSITION = rule(
    "SF309",
    "info",
    "argument matched by position",
    why="An argument of the module's forward has the name of no column.",
    fix="Give the argument the name of the column it should receive, if this one is wrong.",
)

FORWARD_NEEDS_LABELS = rule(
    "SF317",
    "warning",
    "forward requires labels",
    why="Rows to predict on have no labels, so `predict` cannot call the model.",
    fix="Give the argument `labels` the default None.",
)


CLOCK = ("epoch", "step")
"""Arguments of `forward` that no column has: how far training is."""
SCORES = ("logits", "scores", "score", "output", "outputs", "prediction", "predictions", "preds")
"""What a module may call the output that the loss is computed from."""


@dataclass(frozen=True)
class Call:
    """The arguments of `forward`, each with the column it receives.

    `fixed` are arguments with the same value for every batch. With a `head`, logits are computed
    only at the labelled tokens that the batch lists.
    """

    arguments: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    head: SparseHead | None = None
    on_batch: Callable[[Batch], None] | None = None
    """Called with each batch before the model."""
    auxiliary: AuxiliaryLoss | None = None
    """Adds `auxiliary_loss` to the outputs, where the model has one."""
    varlen: Varlen = field(default_factory=Varlen)
    """How the model runs padding-free batches."""
    clock: Clock | None = None
    """What the training loop sets before each step, where forward has such arguments."""
    clock_arguments: tuple[str, ...] = ()
    num_outputs: int | None = None
    """Scores per row that the task needs: which of several unnamed outputs they are."""
    one_score: OneScore | None = None
    """How one score for two classes becomes two; None where the task needs each score."""
    step_scores: StepScores | None = None
    """Where the module has the time axis, if not second, in scores per time step (B, T, C)."""

    def __call__(self, model: Any, batch: Batch) -> Any:
        """Run the model on a batch; returns `.logits` and `.loss`, or a LabelledLoss."""
        if self.on_batch is not None:
            self.on_batch(batch)
        given = {arg: batch[name] for arg, name in self.arguments.items() if name in batch}
        if "position_ids" in batch and "row_lengths" in batch:
            given |= self.varlen.arguments(batch)
        given |= {name: getattr(self.clock, name) for name in self.clock_arguments}
        if self.step_scores is not None:
            given = self.step_scores.inputs(given, self.arguments)

        def run() -> Any:
            with self.varlen.packing(batch):
                return self._outputs(model, given, batch)

        if self.head is None or "labelled_positions" not in batch:
            return run()
        return self.head(run, batch)

    def _outputs(self, model: Any, given: Mapping[str, Any], batch: Batch) -> Any:
        if self.auxiliary is None:
            sizes = (self.num_outputs, None if self.one_score is None else 1)
            return self._unified(as_outputs(model(**given, **self.fixed), *sizes), batch)
        outputs = as_outputs(self.auxiliary(model, {**given, **self.fixed}, batch))
        outputs.auxiliary_loss, outputs.loss = outputs.loss, None
        return outputs

    def _unified(self, outputs: Any, batch: Batch) -> Any:
        """The outputs with scores for each time step, and for each of two classes."""
        found = logits = outputs.logits
        if logits is None:
            return outputs
        if self.one_score is not None:
            logits = self.one_score.with_axis(logits)
        if self.step_scores is not None:
            logits = self.step_scores(logits, batch["inputs_embeds"].shape[1])
        if self.one_score is not None:
            logits = self.one_score.of_both(logits)
        if logits is found:
            return outputs
        raw, loss = getattr(outputs, "raw", outputs), getattr(outputs, "loss", None)
        one_score = self.one_score is not None and self.one_score.is_alone(found)
        return SimpleNamespace(logits=logits, loss=loss, raw=raw, one_score=one_score)


@dataclass
class Clock:
    """The epoch, from 0, and the step, from 1, that the model is called in."""

    epoch: int = 0
    step: int = 0


@dataclass(frozen=True)
class Names:
    """What else is known about the columns of a batch.

    `other` has further names of a column: the user's own, and its role. `inputs` are the columns
    that forward may read, in the order of the data. `num_outputs` is what the task needs;
    with `one_score`, one will do for two classes.
    """

    other: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    num_outputs: int | None = None
    one_score: OneScore | None = None


def match_arguments(
    module: nn.Module, columns: Sequence[str], known: Names | None = None
) -> tuple[Call, list[Finding]]:
    """Match the columns of a batch with the arguments of `forward`.

    transformers models receive no labels: surefit computes the loss, as a sum and a count.
    """
    known = known or Names()
    parameters = inspect.signature(module.forward).parameters
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if hasattr(module, "config") and hasattr(module, "save_pretrained"):
        return _match_transformers(module, columns, names), []
    given = {c: c for c in columns if c in names or takes_all}
    for name, column in known.other.items():
        is_free = name not in given and column not in given.values()
        if name in names and column in columns and is_free:
            given[name] = column
    clock = [n for n in CLOCK if n in names and n not in given]
    required = [
        n
        for n in names
        if parameters[n].default is inspect.Parameter.empty and n not in given and n not in clock
    ]
    lead = next((c for c in SEQUENCES if c in columns), columns[0])
    free = [column for column in known.inputs or [lead] if column not in given.values()]
    found = []
    if len(required) == 1 and lead not in given.values():
        free = [lead]
    if required and len(required) == len(free):
        for name, column in zip(required, free, strict=True):
            given[name] = column
            message = f"forward's argument {name!r} receives the column {column!r}."
            found.append(ARGUMENT_BY_POSITION.finding(message))
        required = []
    if "labels" in names and parameters["labels"].default is inspect.Parameter.empty:
        message = f"{type(module).__name__}.forward has an argument labels without a default."
        found.append(FORWARD_NEEDS_LABELS.finding(message))
    if required == ["labels"]:
        raise FORWARD_NEEDS_LABELS.error(
            f"{type(module).__name__}.forward requires labels, and these rows have none."
        )
    if required or not given:
        shape = f"forward({', '.join(names)})"
        missing = f" and requires {', '.join(required)}" if required else ""
        own = {made: name for name, made in [*known.other.items()][::-1]}
        inputs = [own.get(c, c) for c in columns if c not in ("labels", "attention_mask")]
        raise UNSUITABLE_MODEL.error(
            f"{type(module).__name__}.{shape} accepts none of the columns{missing}; there are: "
            f"{', '.join(columns)}.",
            fix=f"Name an argument {lead}."
            if len(required) < 2
            else f"Name its arguments after the columns: {', '.join(inputs)}.",
        )
    call = Call(given, clock=Clock() if clock else None, clock_arguments=tuple(clock))
    return replace(call, num_outputs=known.num_outputs, one_score=known.one_score), found


def _match_transformers(module: Any, columns: Sequence[str], names: Sequence[str]) -> Call:
    wanted = [c for c in columns if c in names and c != "labels"]
    if not wanted:
        raise UNSUITABLE_MODEL.error(
            f"{type(module).__name__} reads none of the columns {', '.join(columns)}.",
            fix="For tabular rows, choose tiny:mlp or a custom module.",
        )
    # A key-value cache is for generation; in training it would only be copied.
    inner = getattr(module, "get_base_model", lambda: module)()  # without the peft wrapper
    parameters = inspect.signature(inner.forward).parameters
    fixed = {"use_cache": False} if "use_cache" in parameters else {}
    # Switch Transformers reads the argument, and not the setting of the same name.
    if getattr(inner.config, "output_router_logits", False) is True:
        fixed |= {name: True for name in ("output_router_logits",) if name in parameters}
    return Call({column: column for column in wanted}, fixed)


def as_outputs(raw: Any, *sizes: int | None) -> Any:
    """The outputs of a model with attributes `logits` and `loss`, either of which may be None.

    Of several outputs without a name, the logits are the first that has so many scores; of several
    sizes, the first that an output has.

    >>> import torch
    >>> hidden, scores = torch.zeros(4, 8), torch.zeros(4, 3)
    >>> as_outputs((hidden, scores), 3).logits.shape
    torch.Size([4, 3])
    """
    import torch

    if isinstance(raw, torch.Tensor):
        is_loss = raw.ndim == 0
        return SimpleNamespace(
            logits=None if is_loss else raw, loss=raw if is_loss else None, raw=raw
        )
    if hasattr(raw, "logits"):
        return raw
    if is_dataclass(raw) and not isinstance(raw, type):
        return _named_outputs(
            {each.name: getattr(raw, each.name) for each in fields(raw)}, raw, sizes
        )
    if isinstance(raw, Mapping):
        return _named_outputs(raw, raw, sizes)
    if isinstance(raw, tuple | list):
        tensors = [part for part in raw if isinstance(part, torch.Tensor)]
        return SimpleNamespace(
            logits=_scores([part for part in tensors if part.ndim > 0], sizes),
            loss=next((part for part in tensors if part.ndim == 0), None),
            raw=raw,
        )
    raise UNSUITABLE_MODEL.error(
        f"The model returned a {type(raw).__name__}; expected a tensor, tuple, dict, "
        "dataclass or ModelOutput.",
        fix="Return the logits.",
    )


def _scores(outputs: Sequence[torch.Tensor], sizes: Sequence[int | None]) -> torch.Tensor | None:
    """The first output with so many scores on its last axis, or on the second; else the first."""

    def found(output: torch.Tensor) -> tuple[int, ...]:
        return (output.shape[-1], output.shape[1]) if output.ndim > 1 else (1,)

    fitting = (output for size in sizes for output in outputs if size in found(output))
    return next(fitting, next(iter(outputs), None))


def _named_outputs(named: Mapping[str, Any], raw: Any, sizes: Sequence[int | None]) -> Any:
    """Outputs with names: the scores go by their name; else, without a loss, by their size."""
    import torch

    tensors = {name: part for name, part in named.items() if isinstance(part, torch.Tensor)}
    loss = tensors.get("loss")
    by_name = [tensors[name] for name in SCORES if name in tensors and tensors[name].ndim > 0]
    others = [part for part in tensors.values() if part.ndim > 0 and loss is None]
    logits = by_name[0] if by_name else _scores(others, sizes)
    texts = {str(name): part for name, part in named.items()}
    return SimpleNamespace(**{**texts, "logits": logits, "loss": loss, "raw": raw})


def compute_losses(call: Call, loss: Loss, model: Any, batch: Batch) -> tuple[Any, Any, Any]:
    """The loss summed over targets, their count, and the auxiliary loss or None.

    The outputs are freed on return, before the backward pass.
    """
    outputs = call(model, batch)
    total, count = loss(outputs, batch)
    return total, count, getattr(outputs, "auxiliary_loss", None)


def has_module_loss(outputs: Any) -> bool:
    """Whether a module returned a loss and no logits to compute one from."""
    return getattr(outputs, "logits", None) is None and getattr(outputs, "loss", None) is not None


def module_loss_as_sum(loss: Any, batch: Batch) -> tuple[Any, int]:
    """A module's scalar loss as a sum and a count: it is taken as a mean over targets or rows."""
    if "num_targets" in batch:
        return loss * batch["num_targets"], batch["num_targets"]
    labels = batch.get("labels")
    if labels is not None and labels.ndim > 1 and not labels.is_floating_point():
        count = int((labels != IGNORE_INDEX).sum())
    else:
        count = len(next(iter(batch.values())))
    return loss * count, count


def with_module_loss(task_loss: Loss) -> Loss:
    """The task's loss, or the module's where it returns a loss and no logits."""

    def loss(outputs: Any, batch: Batch) -> tuple[Any, Any]:
        if has_module_loss(outputs):
            return module_loss_as_sum(outputs.loss, batch)
        return task_loss(outputs, batch)

    return loss


def from_loss_fn(loss_fn: Callable[..., Any]) -> Loss:
    """A custom `loss_fn(outputs, batch)` that returns a sum and a count, or a mean over targets.

    `outputs` is exactly what the model returned.
    """

    def loss(outputs: Any, batch: Batch) -> tuple[Any, Any]:
        value = loss_fn(getattr(outputs, "raw", outputs), batch)
        return value if isinstance(value, tuple) else module_loss_as_sum(value, batch)

    return loss
