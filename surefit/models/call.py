"""Calls a model: passes columns to the arguments of `forward` and unifies what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import nn

from surefit.batches.field import SEQUENCES
from surefit.findings import Finding, note, rule
from surefit.models.auxiliary_loss import AuxiliaryLoss
from surefit.models.embedding_noise import noisy_embeddings
from surefit.models.lists_of_images import TARGETS, call_lists, match_lists
from surefit.models.module_outputs import OutputReader
from surefit.models.transformers_models import UNSUITABLE_MODEL
from surefit.speed.sparse_head import SparseHead
from surefit.speed.varlen_attention import Varlen
from surefit.targets.own_loss import OwnLoss, SumCount, mean_as_sum
from surefit.targets.task_spec import Batch, Loss

FORWARD_NEEDS_LABELS = rule(
    "SF317",
    "warning",
    "forward requires labels",
    why=(
        "Rows to predict on have no labels, so `predict` cannot call the model. Metrics are "
        "computed from calls with 0 in the place of every label."
    ),
    fix="Give the argument `labels` the default None, and return the logits without it.",
)


CLOCK = ("epoch", "step")
"""Arguments of `forward` that no column has: how far training is."""


@dataclass(frozen=True)
class TargetUse:
    """The columns that only rows with targets have, and what forward does with them.

    Prediction calls the model without them, and metrics use the outputs of the same call.
    """

    columns: tuple[str, ...] = ("labels",)
    required: bool = False
    """Whether forward fails without them; for metrics it then gets zeros in their place."""
    own_loss: bool = False
    """Whether forward returns its own loss with them, which evaluation gets by a call apart."""
    scored: bool = True
    """Whether metrics can be computed from what forward returns without them."""


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
    clock: Clock = field(default_factory=lambda: Clock())
    """What the training loop sets before each step."""
    reads: OutputReader = field(default_factory=OutputReader)
    """How what forward returns is read."""
    targets: TargetUse = TargetUse()
    hides_targets: bool = False
    """Whether forward gets zeros in the place of targets."""
    by_lists: bool = False
    """Whether forward takes lists of images and of targets."""

    @property
    def predicting(self) -> Call:
        """The call without targets: that of prediction, and of metrics."""
        hidden = self.targets.columns
        if self.targets.required:
            return replace(self, hides_targets=True)
        return replace(self, arguments={a: c for a, c in self.arguments.items() if c not in hidden})

    def __call__(self, model: Any, batch: Batch) -> Any:
        """Run the model on a batch; returns `.logits` and `.loss`, or a LabelledLoss."""
        if self.on_batch is not None:
            self.on_batch(batch)
        if self.by_lists:
            with_targets = TARGETS[0] in self.arguments.values() and TARGETS[0] in batch
            return call_lists(model, batch, with_targets)
        given = {arg: batch[name] for arg, name in self.arguments.items() if name in batch}
        for argument in given if self.hides_targets else ():
            if self.arguments[argument] in self.targets.columns:
                given[argument] = given[argument].new_zeros(given[argument].shape)
        if "position_ids" in batch and "row_lengths" in batch:
            given |= self.varlen.arguments(batch)
        given |= self.clock.values()
        if self.reads.step_scores is not None:
            given = self.reads.step_scores.inputs(given, self.arguments)

        def run() -> Any:
            with self.varlen.packing(batch), noisy_embeddings(model, batch):
                return self._outputs(model, given, batch)

        if self.head is None or "labelled_positions" not in batch:
            return run()
        return self.head(run, batch)

    def _outputs(self, model: Any, given: Mapping[str, Any], batch: Batch) -> Any:
        if self.auxiliary is not None:
            outputs = self.reads(self.auxiliary(model, {**given, **self.fixed}, batch), batch)
            outputs.auxiliary_loss, outputs.loss = outputs.loss, None
            return outputs
        raw = model(**given, **self.fixed)
        outputs = self.reads(self._with_row(raw, given), batch)
        if outputs is not raw:
            outputs.raw = raw
        return outputs

    def _with_row(self, raw: Any, given: Mapping[str, Any]) -> Any:
        """Give the output of a single row its axis, which `.squeeze()` in forward takes away."""
        sizes = [len(value) for value in given.values() if getattr(value, "ndim", 0)]
        if sizes[:1] != [1] or not hasattr(raw, "ndim") or raw.ndim > 1:
            return raw
        takes_targets = any(name in self.targets.columns for name in self.arguments.values())
        is_row = len(raw) == self.reads.num_outputs != 1 if raw.ndim else not takes_targets
        return raw[None] if is_row else raw


@dataclass
class Clock:
    """The epoch, from 0, and the step, from 1, that the model is called in.

    `arguments` are those of forward that get one of them.
    """

    arguments: tuple[str, ...] = ()
    epoch: int = 0
    step: int = 0

    def values(self) -> dict[str, int]:
        """Return what each of the arguments gets."""
        return {name: getattr(self, name) for name in self.arguments}


@dataclass(frozen=True)
class Names:
    """What else is known about the columns of a batch.

    `other` has further names of a column: the user's own, and its role. `inputs` are the columns
    that forward may read, in the order of the data. `reads` is how the task reads what a module of
    one's own returns.
    """

    other: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    reads: OutputReader = field(default_factory=OutputReader)
    by_lists: bool = False
    """Whether forward takes lists of images and of targets."""


def match_arguments(
    module: nn.Module, columns: Sequence[str], known: Names | None = None
) -> tuple[Call, list[Finding]]:
    """Match the columns of a batch with the arguments of `forward`.

    transformers models receive no labels: surefit computes the loss, as a sum and a count.
    """
    known = known or Names()
    if known.by_lists:
        return Call(match_lists(module, columns), reads=known.reads, by_lists=True), []
    parameters = inspect.signature(module.forward).parameters
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if is_transformers(module):
        call = _match_transformers(module, columns, names)
        asked = known.reads.usual if known.reads.asked is None else known.reads.asked
        return replace(call, reads=OutputReader(asked)), []
    given = {c: c for c in columns if c in names}
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
            found.append(note(message))
        required = []
    if takes_all:
        given |= {column: column for column in columns if column not in given.values()}
    needs_labels = "labels" in names and parameters["labels"].default is inspect.Parameter.empty
    if needs_labels:
        message = f"{type(module).__name__}.forward has an argument labels without a default."
        found.append(FORWARD_NEEDS_LABELS.finding(message))
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
    targets = TargetUse(required=needs_labels)
    call = Call(given, clock=Clock(tuple(clock)), reads=known.reads, targets=targets)
    return call, found


def refuse_without_targets(call: Call, module: nn.Module) -> None:
    """Raise if forward cannot be called for rows without targets."""
    if call.targets.required:
        columns = ", ".join(call.targets.columns)
        message = f"{type(module).__name__}.forward requires {columns}, and these rows have none."
        raise FORWARD_NEEDS_LABELS.error(message)


def is_transformers(module: Any) -> bool:
    """Return whether a module is a model of transformers, whose arguments have fixed names."""
    return hasattr(module, "config") and hasattr(module, "save_pretrained")


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


class Computed(NamedTuple):
    """The losses of a batch."""

    total: Any
    """Summed over targets."""
    count: Any
    added: Any
    """The module's auxiliary loss, a mean over tokens; None where it has none."""
    parts: Mapping[str, SumCount]
    """Sums and counts of the parts that a `loss_fn` names."""


def compute_losses(
    call: Callable[[Any, Batch], Any], loss: Loss, model: Any, batch: Batch
) -> Computed:
    """Return the losses of a batch; the outputs are freed on return, before the backward pass."""
    outputs = call(model, batch)
    added = getattr(outputs, "auxiliary_loss", None)
    if isinstance(loss, OwnLoss):
        terms = loss.terms(outputs, batch)
        return Computed(terms.total, terms.count, added, terms.parts)
    parts = getattr(outputs, "parts", {}) if has_module_loss(outputs) else {}
    named = {name: mean_as_sum(part, batch) for name, part in parts.items()}
    return Computed(*loss(outputs, batch), added, named)


def has_module_loss(outputs: Any) -> bool:
    """Return whether a module returned a loss and no logits to compute one from."""
    return getattr(outputs, "logits", None) is None and getattr(outputs, "loss", None) is not None


def with_module_loss(task_loss: Loss) -> Loss:
    """Return the task's loss, or the module's where it returns a loss and no logits."""

    def loss(outputs: Any, batch: Batch) -> tuple[Any, Any]:
        if has_module_loss(outputs):
            return mean_as_sum(outputs.loss, batch)
        return task_loss(outputs, batch)

    return loss
