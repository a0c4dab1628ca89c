"""One real batch through the real model, before any training: the layer that fails is named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from surefit.checks.probes.forward_watch import Watch, check_watch
from surefit.checks.probes.model_probes import check_choice, check_detached
from surefit.checks.probes.outputs import (
    ExpectedOutputs,
    check_reach,
    check_scores,
    describe_one_output,
)
from surefit.errors import FindingError, UsageError, describe_error
from surefit.findings import Finding, note, rule
from surefit.models.call import Call
from surefit.models.module_inputs import layer_input_size
from surefit.models.module_outputs import Key, Picked
from surefit.models.transformers_models import MODEL_FAILED
from surefit.speed.numerics import preserved_state
from surefit.targets.own_loss import OwnLossError
from surefit.targets.task_spec import Loss

if TYPE_CHECKING:
    import torch
    from torch import nn

LOSS_COUNT_MISMATCH = rule(
    "SF312",
    "error",
    "loss and target count disagree",
    why=(
        "The divisor of a step is known before its first backward, from count_targets; a loss of a "
        "task that counts otherwise would weigh rows wrongly. A loss_fn may count otherwise."
    ),
    fix="Let the task's count_targets give the count that its loss returns.",
)

OWN_LOSS = note(
    "The model returns a loss of its own and no logits. It counts as a mean over its labelled "
    "targets, or over rows where there are none."
)

OUTPUT_NOT_FINITE = rule(
    "SF315",
    "error",
    "the model gives no finite numbers",
    why="Its outputs are NaN or infinite on real rows before any training.",
    fix="Look at the weights and at divisions, logarithms and masks in the model.",
)

OTHER_FEATURE_SIZE = rule(
    "SF433",
    "error",
    "a layer expects another feature size",
    why="The matrix product would fail: mat1 and mat2 shapes cannot be multiplied.",
    fix="Build the module for the feature size of the data, or project the features first.",
)

COUNT_TOLERANCE = 1e-4
"""Relative; sums of class weights are float32."""


@dataclass(frozen=True)
class ExpectedCount:
    """How many labelled targets a batch has, and whether the loss may count otherwise."""

    number: float
    by_loss: bool = False


@dataclass
class FirstPass:
    """One pass of a batch through the model, its loss and back; each part is run once.

    A part that fails raises the finding that names the layer, the loss or the backward.
    """

    module: nn.Module
    call: Call
    batch: Mapping[str, Any]
    loss: Loss
    targets: ExpectedCount

    @cached_property
    def outputs(self) -> Any:
        """What the model returns."""
        with self.watch:
            return _forward(self.module, self.call, self.batch)

    @cached_property
    def watch(self) -> Watch:
        """What is seen of the forward pass."""
        return Watch(self.batch)

    @cached_property
    def picked(self) -> Picked:
        """Which of the model's outputs is used."""
        return self.call.reads.pick(getattr(self.outputs, "raw", self.outputs))

    @cached_property
    def summed(self) -> tuple[Any, Any]:
        """The summed loss, and what it counts."""
        return _loss(self.loss, self.outputs, self.batch)

    @property
    def others(self) -> dict[Key, torch.Tensor]:
        """The outputs that may be meant in place of one that was picked by its size."""
        if self.picked.how != "size" or self.targets.by_loss:
            return {}
        return {key: value for key, value in self.picked.others.items() if value.requires_grad}

    @cached_property
    def gradients(self) -> dict[str, bool | None]:
        """Whether each trained parameter gets a gradient other than 0; None where it gets none."""
        slopes = _backward(self.module, self.summed[0], self.batch, bool(self.others))
        return {n: None if slope is None else bool(slope.any()) for n, slope in slopes.items()}

    @property
    def without_gradient(self) -> list[str]:
        """Trainable parameters that the loss does not depend on."""
        return [name for name, is_alive in self.gradients.items() if is_alive is None]

    @property
    def has_gradient(self) -> bool:
        """Whether some gradient is other than 0."""
        return any(self.gradients.values())


def check_first_pass(first: FirstPass, expected: ExpectedOutputs | None) -> list[Finding]:
    """Judge a pass of real rows; raise what keeps the model from being trained."""
    with preserved_state(first.module):  # of the whole pass: backward needs buffers as they were
        return _judge(first, expected)


def _judge(first: FirstPass, expected: ExpectedOutputs | None) -> list[Finding]:
    found, outputs, targets = list[Finding](), first.outputs, first.targets
    if not targets.by_loss:  # else the loss_fn reads what it wants
        _check_kind(outputs, first.call)
    if expected is not None and outputs.logits is not None:
        found += check_scores(outputs.logits, first.batch, expected)
        if getattr(outputs, "single_logit", False):
            found.append(describe_one_output(expected.classes))
        found += check_reach(outputs, first.batch, expected)
    total, count = first.summed
    found += check_watch(first.watch, first.module, total)
    lost = first.without_gradient
    unused = _used_by_others(first.module, lost, first.others)
    if expected is not None or not targets.by_loss:  # else nothing is computed from one output
        found += check_choice(first.picked, unused)
    if lost and not unused:
        found += _check_lost(first, lost)
    if outputs.logits is None and not targets.by_loss:
        found.append(OWN_LOSS if not first.call.by_lists else _describe_parts(outputs.raw))
    else:
        _check_count(total, float(count), targets, getattr(outputs, "auxiliary_loss", None))
    if not bool(total.isfinite()):
        raise OUTPUT_NOT_FINITE.error(f"The loss is {total.item()} before the first step.")
    return found


def _describe_parts(parts: Mapping[str, Any]) -> Finding:
    named = ", ".join(parts)
    return note(f"The loss is the sum of {named}, each a mean over the images of a batch.")


def _check_count(total: Any, count: float, targets: ExpectedCount, auxiliary: Any) -> None:
    """Raise if a step cannot be divided by what its loss counts."""
    if targets.by_loss and auxiliary is None:  # divided after the last backward
        if count > 0 or (count == 0 and not total.detach().any()):
            return
        raise LOSS_COUNT_MISMATCH.error(
            f"loss_fn counts {count:g} in a batch that has {targets.number:g} targets.",
            fix="Return a count above 0: what the sum is divided by for a mean.",
        )
    if abs(count - targets.number) <= COUNT_TOLERANCE * targets.number:
        return
    message = f"The loss counts {count:g} targets in a batch that has {targets.number:g}."
    if not targets.by_loss:
        raise LOSS_COUNT_MISMATCH.error(message)
    raise LOSS_COUNT_MISMATCH.error(
        f"{message} The model adds an auxiliary loss of its own, which such a count would rescale.",
        fix="Return the number of labelled targets as the count: divide the weights by their mean "
        "over the training rows.",
    )


def _check_kind(outputs: Any, call: Call) -> None:
    if outputs.logits is None and outputs.loss is None:
        raise MODEL_FAILED.error("The model returned neither logits nor a loss.")
    takes_labels = call.by_lists or "labels" in call.arguments.values()
    if outputs.logits is None and not takes_labels:
        raise MODEL_FAILED.error(
            "The model returned a single number, though its forward takes no labels.",
            fix="Return the logits, or let forward take labels and return a loss.",
        )


def _loss(loss: Loss, outputs: Any, batch: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
    import torch

    try:
        total, count = loss(outputs, batch)
    except FindingError:
        raise
    except OwnLossError as error:
        raise MODEL_FAILED.error(error.message, fix=error.fix) from error
    except Exception as error:
        shown = _shapes({"logits": outputs.logits, **batch})
        names = [name for name, value in batch.items() if isinstance(value, torch.Tensor)]
        fix = (
            f"The batch has the columns {', '.join(names)}. With another task, such as "
            "task='feature-classification', columns have the names of that task: labels."
        )
        raise MODEL_FAILED.error(
            f"The loss raised {describe_error(error)} (shapes: {shown})",
            fix=fix if isinstance(error, KeyError) else "Repair the loss.",
        ) from error
    if not isinstance(total, torch.Tensor) or total.ndim != 0 or not total.requires_grad:
        if not isinstance(total, torch.Tensor):
            what = f"a {type(total).__name__}"
        elif total.ndim:
            what = f"a tensor of shape {list(total.shape)}"
        else:
            what = "a number that does not depend on the model's parameters"
        raise MODEL_FAILED.error(
            f"The loss gave {what}; expected one number with a gradient.",
            fix="Return a sum (and a count), and do not detach it.",
        )
    return total, count


def _backward(
    module: nn.Module, total: torch.Tensor, batch: Mapping[str, torch.Tensor], keep_graph: bool
) -> dict[str, torch.Tensor | None]:
    """Compute the gradient of each trained parameter once; None where it gets none."""
    import torch

    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    try:
        slopes = torch.autograd.grad(
            total, list(trained.values()), allow_unused=True, retain_graph=keep_graph
        )
    except Exception as error:
        raise MODEL_FAILED.error(
            f"The model can be run, but computing its gradients raised "
            f"{describe_error(error)} (shapes: {_shapes(batch)})",
            fix="Choose another model, or repair its backward.",
        ) from error
    return dict(zip(trained, slopes, strict=True))


def _used_by_others(
    module: nn.Module, lost: Sequence[str], others: Mapping[Key, torch.Tensor]
) -> dict[Key, list[str]]:
    """Return those of the parameters without a gradient that other outputs depend on, by output."""
    import torch

    unused: dict[Key, list[str]] = {}
    weights = [module.get_parameter(name) for name in lost]
    for key, value in others.items() if lost else ():
        slopes = torch.autograd.grad(value.sum(), weights, allow_unused=True, retain_graph=True)
        reached = [name for name, slope in zip(lost, slopes, strict=True) if slope is not None]
        unused |= {key: reached} if reached else {}
    return unused


def _check_lost(first: FirstPass, lost: Sequence[str]) -> list[Finding]:
    """Name the parameters that get no gradient; a further pass shows whether they are detached."""
    detached = check_detached(first.module, first.call, first.batch, lost)
    if detached:
        return detached
    shown = ", ".join(lost[:3]) + (" …" if len(lost) > 3 else "")
    message = (
        f"{len(lost)} of {len(first.gradients)} parameters get no gradient from the first batch"
    )
    return [note(f"{message}: {shown}.")]


def _forward(module: nn.Module, call: Call, batch: Mapping[str, torch.Tensor]) -> Any:
    entered: list[tuple[nn.Module, Any]] = []

    def enter(part: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        entered.append((part, next(iter([*args, *kwargs.values()]), None)))

    parts = list(module.modules())
    hooks = [part.register_forward_pre_hook(enter, with_kwargs=True) for part in parts]
    try:
        return call(module, batch)
    except (FindingError, UsageError):
        raise
    except Exception as error:
        part, given = entered[-1] if entered else (module, None)
        names = {each: name for name, each in module.named_modules()}
        layer = _describe(names, part)
        _check_feature_size(module, names[part], layer_input_size(part), given, batch)
        message = f"{layer} raised {describe_error(error)} (shapes: {_shapes(batch)})"
        read = [batch[name] for name in call.arguments.values() if name in batch]
        whole = not any(column.is_floating_point() for column in read)
        is_type = whole and re.search(r"\blong\b", str(error), re.IGNORECASE)
        fix = "Integers stay integers; where forward needs other numbers: x.float()."
        raise MODEL_FAILED.error(message, fix=fix if is_type else "") from error
    finally:
        for hook in hooks:
            hook.remove()


def _check_feature_size(
    module: nn.Module, layer: str, expected: int | None, given: Any, batch: Mapping[str, Any]
) -> None:
    """Raise if a layer failed because it expects another feature size than the data has."""
    if "inputs_embeds" not in batch or not getattr(given, "ndim", 0):
        return
    size = batch["inputs_embeds"].shape[-1]
    if expected is None or size == expected or given.shape[-1] != size:
        return
    raise OTHER_FEATURE_SIZE.error(
        f"layer {layer!r} of {type(module).__name__} expects feature size {expected}, the data has "
        f"{size}.",
        fix=f"Build the module for feature size {size}, or project the features: in __init__, "
        f"self.projection = surefit.AdaptiveProjection({expected}, {size}); in forward, "
        "inputs_embeds = self.projection(inputs_embeds).",
    )


def _describe(names: Mapping[nn.Module, str], part: nn.Module) -> str:
    text = str(part)
    shown = text if len(text) < 80 and "\n" not in text else type(part).__name__
    return f"layer {names[part]!r} ({shown})" if names[part] else f"{shown}.forward"


def _shapes(batch: Mapping[str, Any]) -> str:
    shown = {name: list(v.shape) for name, v in batch.items() if hasattr(v, "shape")}
    return ", ".join(f"{name} {shape}" for name, shape in shown.items())
