"""What a model's outputs are, against what the targets need: shapes, sizes, and their reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.findings import Finding, note, rule
from surefit.models.transformers_models import MODEL_FAILED
from surefit.targets.masks import pixel_scores

if TYPE_CHECKING:
    import torch

OUT_OF_REACH = rule(
    "SF220",
    "warning",
    "outputs that cannot reach the targets",
    why="The loss takes logits and applies the softmax or the sigmoid itself; applied twice, or "
    "after tanh or ReLU, it learns slowly and never gets sure. Numbers are learned in units of "
    "their own spread, with mean 0, which an activation at the end keeps from being reached.",
    fix="Return the scores from before the activation.",
    accept="The outputs are used as they are.",
)

LABEL_OUT_OF_RANGE = rule(
    "SF303",
    "error",
    "fewer outputs than classes or targets",
    why="The loss would index past the logits: 'target out of bounds' or a device-side assert. Of "
    "numbers, torch would compare one output with all targets.",
    fix="Let the model's last layer have one output per class.",
)

MORE_OUTPUTS_THAN_CLASSES = rule(
    "SF316",
    "warning",
    "more outputs than classes",
    why="The outputs beyond the classes are never trained on and are ignored in predictions.",
    fix="Let the model's last layer have one output per class.",
    accept="The further outputs are ignored in predictions.",
)

RANGES = {
    **dict.fromkeys(("Sigmoid", "Hardsigmoid", "Softmax"), (0.0, 1.0)),
    **dict.fromkeys(("Tanh", "Hardtanh", "Softsign", "Sin", "Cos"), (-1.0, 1.0)),
    **dict.fromkeys(("Relu", "Softplus", "Exp", "Abs", "Square"), (0.0, math.inf)),
    "LogSigmoid": (-math.inf, 0.0),
}
"""The values that operations of autograd can give."""
UNREACHED = 0.02
"""The share of the targets that must lie outside of what the outputs can be."""
MOVES = {
    *("Alias", "Cat", "Clone", "Expand", "Index", "IndexSelect", "Permute", "ReshapeAlias"),
    *("Select", "Slice", "Squeeze", "Stack", "T", "ToCopy", "Transpose", "UnsafeView"),
    *("Unsqueeze", "View"),
}
"""Operations of autograd that leave values as they are."""


@dataclass(frozen=True)
class ExpectedOutputs:
    """How many outputs the data asks for, and what they stand for: classes, numbers per row."""

    size: int
    unit: str
    per_pixel: bool = False
    """Whether scores are (B, size, H, W)."""
    locate: Callable[[int], Mapping[str, Any]] = lambda found: {}
    """File and row of the first row with a class from that number on."""
    classes: Sequence[Any] = ()
    """Their names, in the order of the outputs."""
    targets: Sequence[float] | npt.NDArray[Any] = ()
    """Numbers to predict in some training rows, as they are learned."""


def _pixel_logits(logits: torch.Tensor, labels: torch.Tensor, size: int) -> torch.Tensor:
    """Scores per pixel with the classes last, as many pixels as there are labels."""
    rows, height, width = labels.shape
    shape = list(logits.shape)
    if logits.ndim == 4 and shape[0] == rows and shape[2] <= height and shape[3] <= width:
        return pixel_scores(logits, (height, width)).movedim(1, -1)
    last = logits.ndim == 4 and shape[:3] == [rows, height, width]
    raise MODEL_FAILED.error(
        f"The model returned logits of shape {shape}; expected {[rows, size, height, width]}: a "
        "score of each class for every pixel. Fewer pixels are upsampled, more are not accepted.",
        fix="Put the classes second: logits.permute(0, 3, 1, 2)."
        if last
        else "Let forward return (B, classes, H, W), without pooling over the image.",
    )


def check_scores(
    logits: torch.Tensor, batch: Mapping[str, torch.Tensor], expected: ExpectedOutputs | None
) -> list[Finding]:
    """Raise if the logits are not one row of scores per target."""
    if expected is None:
        return []
    if not logits.is_floating_point():
        raise MODEL_FAILED.error(
            f"The model returned whole numbers ({logits.dtype}), as class numbers are; a loss "
            "needs scores.",
            fix="Return the scores from before argmax, rounding or a comparison.",
        )
    if expected.per_pixel:
        logits = _pixel_logits(logits, batch["labels"], expected.size)
    labels, size, unit = batch["labels"], expected.size, expected.unit
    targets = labels.shape[:1] if labels.is_floating_point() else labels.shape
    if logits.shape == targets:
        logits = logits.unsqueeze(-1)
    if logits.shape[:-1] != targets:
        raise MODEL_FAILED.error(
            f"The model returned logits of shape {list(logits.shape)}; expected "
            f"{[*targets, size]}: one row of scores per target.",
            fix="Pool the steps, so that the model gives one vector per row."
            if len(targets) == 1
            else "Let the model give one vector per token or time step.",
        )
    found = logits.shape[-1]
    outputs = f"{found} output{'' if found == 1 else 's'}"
    if found < size and unit == "classes":
        raise LABEL_OUT_OF_RANGE.error(
            f"The model has {outputs}, but the data has {size} classes: "
            f"the class numbers from {found} on have none.",
            expected.locate(found),
        )
    if found < size:
        message = f"The model has {outputs}, but the data has {size} {unit}."
        fix = "Let the model's last layer have one output per target."
        raise LABEL_OUT_OF_RANGE.error(message, fix=fix)
    if found > size:
        message = f"The model has {outputs}, the data {size} {unit}."
        fix = f"Let the model's last layer have {size} output{'' if size == 1 else 's'}."
        return [MORE_OUTPUTS_THAN_CLASSES.finding(message, fix=fix)]
    return []


def describe_one_output(classes: Sequence[Any]) -> Finding:
    first, second = classes
    message = (
        f"The model has one output for two classes: it is the logit of {second!r}, whose "
        f"probability is its sigmoid; {first!r} has the rest."
    )
    if all(isinstance(name, int) for name in classes):
        fix = "Nothing to do; to learn the labels as numbers: --task regression."
        return note(f"{message} The labels are read as classes.", fix=fix)
    return note(message)


def check_reach(
    outputs: Any, batch: Mapping[str, Any], expected: ExpectedOutputs
) -> Iterator[Finding]:
    """Yield scores that an activation has bounded: those of classes, or short of the targets."""
    scores, classes = outputs.logits, 1 if expected.per_pixel else -1
    one_class_each = not batch["labels"].is_floating_point()
    if one_class_each and not getattr(outputs, "single_logit", False):
        apart = (scores.double().sum(classes) - 1).abs()
        if scores.shape[classes] > 1 and not bool((scores < 0).any() | (apart > 1e-4).any()):
            message = "The model's outputs are not below 0 and sum to 1 in every row."
            fix = "Return the scores from before the softmax."
            yield OUT_OF_REACH.finding(message, fix=fix)
            return
    last = _last_operations(scores.grad_fn)
    if not last or not last <= RANGES.keys():
        return
    named = " or ".join(sorted(each.lower() for each in last))
    low, high = (pick(RANGES[n][at] for n in last) for at, pick in enumerate((min, max)))
    between = f"between {low:g} and {high:g}" if high < math.inf else f"not below {low:g}"
    between = f"not above {high:g}" if low == -math.inf else between
    message = f"The model's outputs are {between}: a {named} has computed them"
    fix = f"Remove the {named} at the end of forward: return the scores from before it."
    if expected.unit == "classes":
        if low > -math.inf:  # log-probabilities are scores
            yield OUT_OF_REACH.finding(f"{message}.", fix=fix)
        return
    targets = np.asarray(expected.targets)
    beyond = float(((targets < low) | (targets > high)).mean()) if targets.size else 0.0
    if beyond > UNREACHED:
        yield OUT_OF_REACH.finding(
            f"{message}, and {beyond:.0%} of the targets lie beyond: in units of their own spread, "
            f"as they are learned, they are between {targets.min():.3g} and {targets.max():.3g}.",
            fix=fix,
        )


def _last_operations(node: Any) -> set[str]:
    """Return the operations that computed a tensor, without those that only move its values."""
    if node is None:
        return set()
    name = node.name().removesuffix("Backward0").removesuffix("Backward1")
    if name not in MOVES:
        return {name}
    return {each for before, _ in node.next_functions for each in _last_operations(before)}
