"""Does the model's own loss differ from the loss that surefit computes from its logits?"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from surefit.checks.probes.probe_batch import Subject
from surefit.findings import Finding, rule
from surefit.models.auxiliary_loss import CrossEntropies, find_auxiliary_loss
from surefit.models.call import Call, as_outputs, has_module_loss
from surefit.models.quiet_transformers import quiet_transformers

AUXILIARY_LOSS_ADDED = rule(
    "SF710",
    "info",
    "auxiliary loss is added",
    why=(
        "The model adds terms to its token loss, such as load balancing of experts. Training adds "
        "them for each micro-batch as the model computes them, weighted by its share of the step's "
        "tokens. They depend on how rows are batched. The reported loss does not include them."
    ),
    fix="Nothing to do; the events have the value as aux_loss.",
)

MODEL_LOSS_DIFFERS = rule(
    "SF711",
    "warning",
    "the model's own loss differs",
    why="surefit trains on the loss it computes from the logits, not on the model's own loss.",
    fix="Nothing to do if the task's loss is what you want; else pass loss_fn.",
    accept="The task's loss is used.",
)

FLOAT_TOLERANCE, HALF_TOLERANCE = 1e-3, 3e-2


@dataclass(frozen=True)
class _Own:
    """The model's own loss on a batch, and the cross-entropies that it computed for it."""

    value: float
    calls: list[dict[str, Any]]


def compare_losses(subject: Subject, call: Call) -> tuple[bool, list[Finding]]:
    """Whether the model has an auxiliary loss that can be added, and how the losses differ."""
    import torch

    with torch.no_grad():
        outputs = subject.forward(subject.batch)
        if has_module_loss(outputs) or "labels" not in subject.batch:
            return False, []
        total, count = subject.loss(outputs, subject.batch)
    ours = float(total) / (float(count) or 1.0)
    own = _own_loss(subject, call, outputs)
    if own is None:
        return False, []
    added = _auxiliary_value(subject, call)
    half = next(subject.module.parameters()).dtype.itemsize < 4
    close = (HALF_TOLERANCE if half else FLOAT_TOLERANCE) * max(abs(own.value), abs(ours), 1e-6)
    if added and abs(own.value - ours - added) <= close:
        message = (
            f"On {subject.num_rows} rows, the model adds {added:.4g} to its token loss of "
            f"{ours:.4g}. Training adds it too."
        )
        return True, [AUXILIARY_LOSS_ADDED.finding(message)]
    # Logits that do not come from the output embedding leave the token loss among the terms.
    if abs(own.value - ours) <= close:
        return False, []
    message = (
        f"On {subject.num_rows} rows, the model's own loss is {own.value:.4g}, and surefit's is "
        f"{ours:.4g}: {_describe(own, float(total), subject)}."
    )
    return False, [MODEL_LOSS_DIFFERS.finding(message)]


def _own_loss(subject: Subject, call: Call, outputs: Any) -> _Own | None:
    """What the model returns as its loss when it is given labels; None where it has none."""
    import torch

    module: Any = subject.module
    if getattr(outputs, "loss", None) is not None:  # a custom module that is given labels
        return _Own(float(outputs.loss), [])
    inner = getattr(module, "get_base_model", lambda: module)()  # without the peft wrapper
    has_config = hasattr(module, "config") and hasattr(module, "save_pretrained")
    if not has_config or "labels" not in inspect.signature(inner.forward).parameters:
        return None
    batch = subject.batch
    given = {arg: batch[name] for arg, name in call.arguments.items() if name in batch}
    try:
        with (
            torch.no_grad(),
            quiet_transformers(),  # about a loss type that the config does not name
            _kept_config(inner.config),
            CrossEntropies() as calls,
        ):
            loss = as_outputs(module(**given, **call.fixed, labels=batch["labels"])).loss
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


def _auxiliary_value(subject: Subject, call: Call) -> float:
    """The terms that the model adds to its token loss; 0 where it adds none."""
    import torch

    auxiliary = find_auxiliary_loss(subject.module)
    if auxiliary is None:
        return 0.0
    try:
        with torch.enable_grad():
            outputs = replace(call, auxiliary=auxiliary)(subject.module, subject.batch)
    except Exception:
        return 0.0
    value = outputs.auxiliary_loss
    return float(value.detach()) if value is not None and value.requires_grad else 0.0


def _describe(own: _Own, total: float, subject: Subject) -> str:
    """What makes the difference, as far as it can be seen."""
    for each in own.calls:
        if each.get("label_smoothing"):
            return f"the model smooths its labels by {each['label_smoothing']:g}"
        if each.get("weight") is not None:
            return "the model weighs its classes"
    labels = subject.batch["labels"].flatten()
    for each in own.calls:
        target = each["target"].flatten()
        if subject.causal and target.shape == labels.shape and bool((target == labels).all()):
            return "the model compares each label with the output at its own position"
    if len(own.calls) > 1:
        return f"the model's loss is made of {len(own.calls)} cross-entropies"
    divisors = {
        "sum over targets, not their mean": 1,
        "divided by the number of rows": subject.num_rows,
        "divided by all positions, with those that have no label": labels.numel(),
    }
    for name, divisor in divisors.items():
        if abs(own.value - total / divisor) <= FLOAT_TOLERANCE * abs(own.value):
            return f"the model's loss is the {name}" if divisor == 1 else f"the model's is {name}"
    return "the model adds other terms, or computes its loss in another way"
