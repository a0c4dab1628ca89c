"""How targets reach the outputs and the loss: leaks, shifted labels, the own loss of a model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from surefit.batches.field import IGNORE_INDEX
from surefit.checks.probes.model_profile import (
    NO_CHANGE,
    Batch,
    ModelProfile,
    differ,
    exchanged,
    tolerance,
)
from surefit.findings import Finding, note, rule
from surefit.models.auxiliary_loss import CrossEntropies, find_auxiliary_loss
from surefit.models.call import Call, has_module_loss
from surefit.models.module_outputs import OutputReader
from surefit.models.transformers_models import quiet_transformers
from surefit.targets.task_spec import Loss

if TYPE_CHECKING:
    import torch
    from torch import nn


TARGET_REACHES_OUTPUTS = rule(
    "SF751",
    "error",
    "the outputs depend on the target",
    why=(
        "The model would learn to copy the target instead of predicting it, and rows to predict on "
        "have none."
    ),
    fix="Compute the logits from the inputs alone; use the targets only for a loss that forward "
    "returns.",
    accept="The model is trained with the target as an input. Metrics and predictions come from "
    "calls without it.",
)


@dataclass
class TargetPasses:
    """The logits of a real batch with its targets, with others, and without any.

    Each pass is run once, and equal seeds give equal dropout. `arguments` are those of forward that
    receive a target, each with its column.
    """

    module: nn.Module
    call: Call
    batch: Batch
    other: Batch
    """The same rows with other targets."""
    arguments: Mapping[str, str]
    steps: int | None = None
    """Where targets are the decoder's inputs, the steps before the first changed one: the outputs
    that predict these steps and the next one must stay."""
    _kept: dict[tuple[str, bool], torch.Tensor | None] = field(default_factory=dict)

    def usual(self, training: bool) -> torch.Tensor | None:
        """Return the logits in training or evaluation mode; None where no logits are used."""
        return self._run("", training, self.call, self.batch)

    def changed(self, argument: str, training: bool) -> torch.Tensor | None:
        """Return the logits with other targets in one argument."""
        column = self.arguments[argument]
        batch = {**self.batch, column: self.other[column]}
        return self._run(argument, training, self.call, batch)

    def without(self) -> torch.Tensor | None:
        """Return the logits of the call without targets, as prediction makes it."""
        return self._run("without", False, self.call.predicting, self.batch)

    @property
    def may_leave_out(self) -> bool:
        """Whether forward can be called without targets that are no inputs of a decoder."""
        return self.steps is None and not self.call.targets.required

    def again(self, training: bool) -> torch.Tensor | None:
        """Return the logits of a second, equal call."""
        return self._run("again", training, self.call, self.batch)

    def _run(self, name: str, training: bool, call: Call, batch: Batch) -> torch.Tensor | None:
        import torch

        if (name, training) not in self._kept:
            self.module.train(training)
            torch.manual_seed(0)
            made: Any = getattr(call(self.module, batch), "logits", None)
            self._kept[name, training] = None if made is None else made.detach()
        return self._kept[name, training]

    def change(self, one: torch.Tensor, other: torch.Tensor | None) -> float:
        """How far outputs moved, as a share of their size; 0 where it is no more than rounding."""
        if other is None or one.shape != other.shape:
            return 1.0
        if self.steps is not None:
            one, other = one[:, : self.steps + 1], other[:, : self.steps + 1]
        change = differ(one, other)
        return change if change > tolerance(one) else 0.0


def check_targets(passes: TargetPasses) -> list[Finding]:
    """No logit may move when a target changes in the call that training makes.

    In evaluation mode, the outputs must also be those of the call without targets.
    """
    if passes.usual(training=True) is None:  # a loss of its own, whose call has no outputs used
        return []
    for training in (True, False):
        if not training and passes.may_leave_out and _evaluates_alike(passes):
            return []
        usual = passes.usual(training)
        if usual is None:
            return []
        for argument, column in passes.arguments.items():
            change = passes.change(usual, passes.changed(argument, training))
            if change > 0:
                if passes.change(usual, passes.again(training)) > 0:
                    raise RuntimeError("forward draws numbers that torch.manual_seed does not set")
                return [_leak(argument, column, change, passes.steps is not None)]
    if not passes.may_leave_out:
        return []
    assert usual is not None
    change = passes.change(usual, passes.without())
    if change == 0:
        return []
    names = ", ".join(map(repr, passes.arguments))
    message = (
        f"Without its argument {names}, which receives the target, forward gives other outputs: "
        f"they move by {change:.2g} of their size."
    )
    return [TARGET_REACHES_OUTPUTS.finding(message, column=next(iter(passes.arguments.values())))]


def _evaluates_alike(passes: TargetPasses) -> bool:
    """Return whether other targets and none give the same outputs in evaluation mode."""
    plain = passes.without()
    others = (passes.changed(argument, training=False) for argument in passes.arguments)
    return plain is not None and all(passes.change(plain, other) == 0 for other in others)


def _leak(argument: str, column: str, change: float, is_decoder: bool) -> Finding:
    """The finding for a target that moves outputs; a decoder may see the tokens before each one."""
    receives = f"forward's argument {argument!r} receives the target {column!r} and changes"
    moved = f"they move by {change:.2g} of their size with other values there."
    message = f"{receives} the outputs: {moved}"
    fix = f"Compute the logits without {argument}; use it only for a loss that forward returns."
    if is_decoder:
        message = f"{receives} the outputs that have to predict it: {moved}"
        fix = "Let the decoder see earlier tokens only: inputs shifted by one, causal attention."
    return TARGET_REACHES_OUTPUTS.finding(message, column=column, fix=fix)


MODEL_LOSS_DIFFERS = rule(
    "SF711",
    "warning",
    "the model's own loss differs",
    why="surefit trains on the loss it computes from the logits, not on the model's own loss.",
    fix="Nothing to do if the task's loss is what you want; else pass loss_fn.",
    accept="The task's loss is used.",
)

FLOAT_TOLERANCE, HALF_TOLERANCE = 1e-3, 3e-2
SMALL_TERM = 1e-2
"""Of the tolerance: a smaller difference is no auxiliary loss."""


@dataclass(frozen=True)
class _Own:
    """The model's own loss on a batch, and the cross-entropies that it computed for it."""

    value: float
    calls: list[dict[str, Any]]


def compare_losses(profile: ModelProfile, call: Call, loss: Loss) -> tuple[bool, list[Finding]]:
    """Whether the model has an auxiliary loss that can be added, and how the losses differ."""
    import torch

    outputs = profile.together
    if has_module_loss(outputs) or "labels" not in profile.batch:
        return False, []
    with torch.no_grad():
        total, count = loss(outputs, profile.batch)
    ours = float(total) / (float(count) or 1.0)
    own = _own_loss(profile, call, outputs)
    if own is None:
        return False, []
    half = next(profile.module.parameters()).dtype.itemsize < 4
    close = (HALF_TOLERANCE if half else FLOAT_TOLERANCE) * max(abs(own.value), abs(ours), 1e-6)
    # Logits that do not come from the output embedding leave the token loss among the terms.
    if abs(own.value - ours) <= SMALL_TERM * close:
        return False, []
    added = _auxiliary_value(profile, call)
    if added and abs(own.value - ours - added) <= close:
        message = (
            f"On {profile.num_rows} rows, the model adds {added:.4g} to its token loss of "
            f"{ours:.4g}. Training adds it too."
        )
        return True, [note(message)]
    if abs(own.value - ours) <= close:
        return False, []
    message = (
        f"On {profile.num_rows} rows, the model's own loss is {own.value:.4g}, and surefit's is "
        f"{ours:.4g}: {_describe(own, float(total), profile)}."
    )
    return False, [MODEL_LOSS_DIFFERS.finding(message)]


def _own_loss(profile: ModelProfile, call: Call, outputs: Any) -> _Own | None:
    """Return what the model returns as its loss when it is given labels; None where it has none."""
    import torch

    module: Any = profile.module
    if getattr(outputs, "loss", None) is not None:  # a custom module that is given labels
        return _Own(float(outputs.loss), [])
    inner = getattr(module, "get_base_model", lambda: module)()  # without the peft wrapper
    has_config = hasattr(module, "config") and hasattr(module, "save_pretrained")
    if not has_config or "labels" not in inspect.signature(inner.forward).parameters:
        return None
    batch = profile.batch
    given = {arg: batch[name] for arg, name in call.arguments.items() if name in batch}
    try:
        with (
            torch.no_grad(),
            quiet_transformers(),  # about a loss type that the config does not name
            _kept_config(inner.config),
            CrossEntropies() as calls,
        ):
            loss = OutputReader()(module(**given, **call.fixed, labels=batch["labels"])).loss
    except Exception:  # labels of another kind than the model's own loss takes
        return None
    return _Own(float(loss), calls.seen) if loss is not None and loss.numel() == 1 else None


@contextmanager
def _kept_config(config: Any) -> Iterator[None]:
    """The first loss of a classifier writes its `problem_type` into the config."""
    before = dict(vars(config))
    try:
        yield
    finally:
        vars(config).clear()
        vars(config).update(before)


def _auxiliary_value(profile: ModelProfile, call: Call) -> float:
    """Return the terms that the model adds to its token loss; 0 where it adds none."""
    import torch

    auxiliary = find_auxiliary_loss(profile.module)
    if auxiliary is None:
        return 0.0
    try:
        with torch.enable_grad():
            outputs = replace(call, auxiliary=auxiliary)(profile.module, profile.batch)
    except Exception:
        return 0.0
    value = outputs.auxiliary_loss
    return float(value.detach()) if value is not None and value.requires_grad else 0.0


def _describe(own: _Own, total: float, profile: ModelProfile) -> str:
    """Return what makes the difference, as far as it can be seen."""
    for each in own.calls:
        if each.get("label_smoothing"):
            return f"the model smooths its labels by {each['label_smoothing']:g}"
        if each.get("weight") is not None:
            return "the model weighs its classes"
    labels = profile.batch["labels"].flatten()
    for each in own.calls:
        target = each["target"].flatten()
        if profile.causal and target.shape == labels.shape and bool((target == labels).all()):
            return "the model compares each label with the output at its own position"
    if len(own.calls) > 1:
        return f"the model's loss is made of {len(own.calls)} cross-entropies"
    divisors = {
        "sum over targets, not their mean": 1,
        "divided by the number of rows": profile.num_rows,
        "divided by all positions, with those that have no label": labels.numel(),
    }
    for name, divisor in divisors.items():
        if abs(own.value - total / divisor) <= FLOAT_TOLERANCE * abs(own.value):
            return f"the model's loss is the {name}" if divisor == 1 else f"the model's is {name}"
    return "the model adds other terms, or computes its loss in another way"


LABEL_MISPLACED = rule(
    "SF703",
    "error",
    "a label is not predicted from the tokens before it",
    why=(
        "Labels that are not shifted, or attention that is not causal, teach copying: the loss "
        "falls to nothing and the model can predict nothing. Labels that are shifted twice teach "
        "the token after the next one."
    ),
    fix="Compare the outputs at position t with the label at t + 1, and mask later tokens.",
    accept="The model is trained with its own loss as it is.",
)


def check_shift(profile: ModelProfile) -> list[Finding]:
    """Return the loss of a single label must depend on the token before it, and on no later one.

    Where surefit shifts the labels, it is enough that the logits see no later token.
    """
    labels, ids = profile.batch.get("labels"), profile.batch.get("input_ids")
    if not profile.causal or labels is None or labels.ndim != 2 or ids is None:
        return []
    if not profile.shifts_labels and profile.sees_earlier_tokens_only:
        return []
    chosen = _middle_label(labels)
    if chosen is None:
        return []
    row, place = chosen
    batch = profile.row(row)
    batch["labels"] = batch["labels"].new_full(batch["labels"].shape, IGNORE_INDEX)
    batch["labels"][0, place] = labels[row, place]
    usual = profile.loss_of(batch)
    other = exchanged(ids)[row]

    def reads(first: int, end: int | None) -> bool:
        changed = batch["input_ids"].clone()
        changed[0, first:end] = other[first:end]
        found = profile.loss_of({**batch, "input_ids": changed})
        return not abs(found - usual) <= NO_CHANGE * max(abs(found), abs(usual))

    if reads(place, None):
        message = f"The label of token {place} is predicted from a position that has seen it."
        return [LABEL_MISPLACED.finding(message)]
    if reads(place - 1, place) or not reads(0, place - 1):
        return []
    message = f"The label of token {place} is predicted from the tokens before {place - 1} alone."
    fix = "Shift once: give labels equal to input_ids to a model that shifts them itself."
    return [LABEL_MISPLACED.finding(message, fix=fix)]


def _middle_label(labels: Any) -> tuple[int, int] | None:
    """Return row and place of a label with tokens before and after it."""
    for row, values in enumerate(labels):
        places = (values != IGNORE_INDEX).nonzero().flatten().tolist()
        inner = [place for place in places if 2 <= place < len(values) - 1]
        if inner:
            return row, inner[len(inner) // 2]
    return None
