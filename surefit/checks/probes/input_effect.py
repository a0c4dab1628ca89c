"""Do the outputs depend on the inputs, and does the loss depend on the weights?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from surefit.checks.probes.probe_batch import Batch, Subject, differ
from surefit.findings import Finding, rule

if TYPE_CHECKING:
    import torch

OUTPUTS_IGNORE_INPUTS = rule(
    "SF730",
    "error",
    "outputs do not depend on the inputs",
    why="Every row gets the same outputs, so nothing about the rows can be learned.",
    fix="Let forward compute its outputs from the columns it receives.",
    accept="The model is trained although its outputs are the same for every row.",
)

COLUMN_NOT_USED = rule(
    "SF731",
    "info",
    "an argument of forward has no effect",
    why="The outputs stay the same when the column changes.",
    fix="Nothing to do, unless forward is meant to use the column.",
)

NO_GRADIENT_AT_ALL = rule(
    "SF733",
    "error",
    "all gradients are zero",
    why="The loss does not change with any weight, so no step can change the model.",
    fix="Look for a product with 0, a comparison, rounding or argmax between weights and loss.",
    accept="The run starts; it is stopped if the gradients are zero in its first steps as well.",
)

LEADS = ("input_ids", "inputs_embeds", "pixel_values", "features", "input_values", "input_features")
"""Columns that a task makes from the row's input; others are passed under their own name."""
HELPERS = (
    *("labels", "attention_mask", "token_type_ids", "position_ids", "decoder_input_ids"),
    *("decoder_attention_mask", "words", "num_words"),
)
"""Columns that may well have no effect on a batch."""
NO_CHANGE = 1e-7


def check_inputs(subject: Subject) -> list[Finding]:
    """Each input column is changed in turn; outputs, or else gradients, must change with it."""
    columns = [n for n in subject.inputs if n not in HELPERS and n in subject.tensors()]
    changed = ((name, _changed(subject.batch, (name,))) for name in columns)
    tried = {name: batch for name, batch in changed if batch is not None}
    ignored = [name for name, batch in tried.items() if not _has_effect(subject, batch)]
    if not ignored:
        return []
    leads = [name for name in tried if name in LEADS] or list(tried)
    if all(name in ignored for name in leads):
        shown = ", ".join(leads)
        message = f"The outputs stay the same whatever {shown} holds (tried on real rows)."
        return [OUTPUTS_IGNORE_INPUTS.finding(message, column=leads[0])]
    return [
        COLUMN_NOT_USED.finding(
            f"The outputs stay the same whatever the column {name!r} holds.", column=name
        )
        for name in ignored
    ]


def check_gradients(subject: Subject) -> list[Finding]:
    """Some weight must get a gradient, from the batch or from one with other inputs."""
    batches = [subject.batch, _changed(subject.batch, subject.inputs)]
    count = sum(p.numel() for p in subject.module.parameters() if p.requires_grad)
    slopes = [_slopes(subject, batch) for batch in batches if batch is not None and count]
    if not count or any(
        slope is not None and bool(slope.any()) for each in slopes for slope in each
    ):
        return []
    message = f"The gradients of all {count:,} trainable parameters are exactly 0 on real rows."
    return [NO_GRADIENT_AT_ALL.finding(message)]


def _has_effect(subject: Subject, batch: Batch) -> bool:
    """Whether outputs differ; where they do not, as with a head of zeros, whether gradients do."""
    if _differ(_outputs(subject, subject.batch), _outputs(subject, batch)):
        return True
    pairs = zip(_slopes(subject, subject.batch), _slopes(subject, batch), strict=True)
    return any(
        one is not None and other is not None and _differ(one, other) for one, other in pairs
    )


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape != other.shape or not differ(one, other) <= NO_CHANGE


def _outputs(subject: Subject, batch: Batch) -> torch.Tensor:
    import torch

    with torch.no_grad():
        outputs = subject.forward(batch)
        logits = getattr(outputs, "logits", None)
        return logits if logits is not None else torch.as_tensor(subject.loss(outputs, batch)[0])


def _slopes(subject: Subject, batch: Batch) -> tuple[torch.Tensor | None, ...]:
    import torch

    trained = [weight for weight in subject.module.parameters() if weight.requires_grad]
    total = subject.loss(subject.forward(batch), batch)[0]
    return torch.autograd.grad(total, trained, allow_unused=True)


def _changed(batch: Batch, names: Any) -> dict[str, Any] | None:
    """The batch with other values in the columns; None where there is no other value to take.

    Whole numbers are exchanged among those of the batch, so that they stay within the vocabulary;
    fractions get noise of the size of their spread.
    """
    import torch

    generator, changed = torch.Generator().manual_seed(0), dict(batch)
    for name in names:
        value = batch.get(name)
        if name in HELPERS or not isinstance(value, torch.Tensor):
            continue
        if value.is_floating_point():
            size = float(value.double().std()) if value.numel() > 1 else 0.0
            noise = torch.randn(value.shape, generator=generator).to(value.device, value.dtype)
            changed[name] = value + noise * (size or 1.0)
        else:
            known, places = torch.unique(value, return_inverse=True)
            if len(known) > 1:
                changed[name] = known.roll(1)[places]
    same = all(changed[name] is batch[name] for name in names if name in batch)
    return None if same else changed
