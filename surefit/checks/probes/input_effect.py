"""Do the outputs depend on the inputs, and does the loss depend on the weights?"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from surefit.checks.probes.probe_batch import Batch, Subject, differ
from surefit.findings import Finding, note, rule

if TYPE_CHECKING:
    import torch
    from torch import nn

OUTPUTS_IGNORE_INPUTS = rule(
    "SF730",
    "error",
    "outputs do not depend on the inputs",
    why="Every row gets the same outputs, so nothing about the rows can be learned.",
    fix="Let forward compute its outputs from the columns it receives.",
    accept="The model is trained although its outputs are the same for every row.",
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
    tried = [name for name in columns if _changed(subject.batch, (name,)) is not None]
    ignored = [name for name in tried if not _has_effect(subject, name)]
    if not ignored:
        return []
    leads = [name for name in tried if name in LEADS] or tried
    if all(name in ignored for name in leads):
        shown = ", ".join(leads)
        message = f"The outputs stay the same whatever {shown} holds (tried on real rows)."
        return [OUTPUTS_IGNORE_INPUTS.finding(message, column=leads[0])]
    return [
        note(f"The outputs stay the same whatever the column {name!r} holds.", column=name)
        for name in ignored
    ]


def check_gradients(subject: Subject) -> list[Finding]:
    """Some weight must get a gradient from some row, or from a row with other inputs."""
    count = sum(p.numel() for p in subject.module.parameters() if p.requires_grad)
    if not count or _is_alive(subject, subject.batch):
        return []
    num_rows, changed = subject.num_rows, _changed(subject.batch, subject.inputs)
    if changed is not None and _is_alive(subject, changed):
        return []
    for batch in subject.more():
        if _is_alive(subject, batch):
            return []
        num_rows += len(next(value for value in batch.values() if hasattr(value, "shape")))
    message = (
        f"The gradients of all {count:,} trainable parameters are exactly 0 on each of "
        f"{num_rows:,} real rows."
    )
    where, fix = _where_lost(subject)
    return [NO_GRADIENT_AT_ALL.finding(message + where, fix=fix)]


def _is_alive(subject: Subject, batch: Batch) -> bool:
    """Whether some weight gets a gradient other than 0."""
    return any(slope is not None and bool(slope.any()) for slope in _slopes(subject, batch))


def _where_lost(subject: Subject) -> tuple[str, str]:
    """The layer that stops the gradient, and what to do; nothing where no layer gets any."""
    import torch

    outputs: list[tuple[str, nn.Module, torch.Tensor]] = []

    def record(name: str, part: nn.Module) -> Any:
        def keep(_: Any, given: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.requires_grad:
                outputs.append((name, part, output))

        return part.register_forward_hook(keep)

    layers = [(n, part) for n, part in subject.module.named_modules() if not [*part.children()]]
    hooks = [record(name, part) for name, part in layers]
    try:
        total = subject.loss(subject.forward(subject.batch), subject.batch)[0]
    finally:
        for hook in hooks:
            hook.remove()
    if not outputs or not total.requires_grad:
        return "", ""
    slopes = torch.autograd.grad(total, [output for *_, output in outputs], allow_unused=True)
    reached = [slope is not None and bool(slope.any()) for slope in slopes]
    if not any(reached):
        name, part, _ = outputs[-1]
        return f" It is lost between the layer {name!r} ({type(part).__name__}) and the loss.", ""
    name, part, output = outputs[reached.index(True)]
    kind = type(part).__name__
    if bool(output.any()):
        return f" It is lost in the layer {name!r} ({kind}).", ""
    before = f", and return the outputs of {outputs[-2][0]!r}" if part is outputs[-1][1] else ""
    return (
        f" The layer {name!r} ({kind}) is off: it returns 0 for these rows.",
        f"Remove {name!r} ({kind}) if it is the last layer{before}; else use an activation that is "
        "never off, such as LeakyReLU or GELU. Other initial weights (another seed) only hide it.",
    )


def _has_effect(subject: Subject, name: str) -> bool:
    """Whether outputs change with a column; where they do not, as with a head of zeros, whether
    gradients do.
    """
    pairs = ((b, _changed(b, (name,))) for b in chain([subject.batch], subject.more()))
    return any(_changes(subject, batch, other) for batch, other in pairs if other is not None)


def _changes(subject: Subject, batch: Batch, other: Batch) -> bool:
    if _differ(_outputs(subject, batch), _outputs(subject, other)):
        return True
    pairs = zip(_slopes(subject, batch), _slopes(subject, other), strict=True)
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
