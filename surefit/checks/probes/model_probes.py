"""Do outputs depend on the inputs, and on nothing else? Does the loss depend on the weights?

Each probe asks a ModelProfile one question that training would answer too late or never.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from surefit.checks.probes.model_profile import (
    HELPERS,
    NO_CHANGE,
    Batch,
    ModelProfile,
    differ,
    tolerance,
)
from surefit.checks.probes.targets import check_shift
from surefit.checks.probes.trials import check_overfit
from surefit.errors import describe_error
from surefit.findings import Finding, has_errors, note, rule
from surefit.models.call import Call
from surefit.models.module_outputs import Key, Picked
from surefit.speed.numerics import preserved_state

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

LOSS_NOT_ADDITIVE = rule(
    "SF705",
    "warning",
    "the loss is not a sum over rows",
    why=(
        "Accumulated micro-batches then give another gradient than one batch, and the evaluation "
        "loss depends on the batch size."
    ),
    fix="Return the sum over targets and their count, and let no row's loss depend on others.",
    accept="The loss is used as it is.",
)

OUTPUTS_DEPEND_ON_BATCH = rule(
    "SF701",
    "warning",
    "the outputs of a row depend on its batch",
    why="They change with the padding, and so with the length of the other rows, or with the other "
    "rows themselves.",
    fix=(
        "Let forward take attention_mask, and leave padded positions out of sums and means; or "
        "train with batch_size=1. Evaluation and prediction batch rows of equal length."
    ),
    accept="The model is trained as it is.",
)

OTHER_OUTPUT_TRAINED = rule(
    "SF752",
    "error",
    "layers are not trained because another output is used",
    why=(
        "forward returns several outputs, and none is named by outputs. The loss is computed from "
        "one of them, so layers that only another one depends on stay as they are."
    ),
    fix="Name the output that the loss, metrics and predictions are computed from: --set outputs=1 "
    "(a number from 0 on, or a key), or outputs=1 from Python.",
)

SEVERAL_OUTPUTS_FIT = rule(
    "SF753",
    "warning",
    "several outputs fit the task",
    why="They have the same shape, so the output that is meant is a guess.",
    fix="Name the output that the loss, metrics and predictions are computed from: --set outputs=0 "
    "(a number from 0 on, or a key), or outputs=0 from Python.",
    accept="The first of them is used.",
)

DETACHED_LAYERS = rule(
    "SF734",
    "warning",
    "layers that are used get no gradient",
    why=(
        "The outputs depend on these weights, but the loss does not reach them: they stay as they "
        "are. detach(), .data, no_grad() or a conversion to NumPy between them and the loss does "
        "that."
    ),
    fix="Remove what detaches them; to keep them as they are, set requires_grad_(False).",
    accept="The layers are left as they are.",
)

MAX_WEIGHTS = 50_000_000
"""More weights than this are not tried."""

LEADS = ("input_ids", "inputs_embeds", "pixel_values", "features", "input_values", "input_features")
"""Columns that a task makes from the row's input; others are passed under their own name."""


def check_gradients(profile: ModelProfile) -> list[Finding]:
    """Some weight must get a gradient from some row, or from a row with other inputs."""
    count = sum(p.numel() for p in profile.module.parameters() if p.requires_grad)
    if not count or profile.has_gradient:
        return []
    num_rows, changed = profile.num_rows, profile.changed(profile.batch, *profile.inputs)
    known = profile.has_gradient is not None
    for batch in (None if known else profile.batch, changed):
        if batch is not None and _is_alive(profile, batch):
            return []
    for batch in profile.more():
        if _is_alive(profile, batch):
            return []
        num_rows += len(next(value for value in batch.values() if hasattr(value, "shape")))
    message = (
        f"The gradients of all {count:,} trainable parameters are exactly 0 on each of "
        f"{num_rows:,} real rows."
    )
    where, fix = _where_lost(profile)
    return [NO_GRADIENT_AT_ALL.finding(message + where, fix=fix)]


def _is_alive(profile: ModelProfile, batch: Batch) -> bool:
    """Return whether some weight gets a gradient other than 0."""
    return any(slope is not None and bool(slope.any()) for slope in profile.gradients(batch))


def _where_lost(profile: ModelProfile) -> tuple[str, str]:
    """Return the layer that stops the gradient, and what to do; nothing where no layer gets any."""
    import torch

    outputs: list[tuple[str, nn.Module, torch.Tensor]] = []

    def record(name: str, part: nn.Module) -> Any:
        def keep(_: Any, given: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.requires_grad:
                outputs.append((name, part, output))

        return part.register_forward_hook(keep)

    layers = [(n, part) for n, part in profile.module.named_modules() if not [*part.children()]]
    hooks = [record(name, part) for name, part in layers]
    try:
        total = profile.loss(profile.forward(profile.batch), profile.batch)[0]
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


def check_inputs(profile: ModelProfile) -> list[Finding]:
    """Each input column is changed in turn; outputs, or else gradients, must change with it."""
    columns = [n for n in profile.inputs if n not in HELPERS and n in profile.tensors()]
    tried = [name for name in columns if profile.changed(profile.batch, name) is not None]
    ignored = [name for name in tried if not _has_effect(profile, name)]
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


def _has_effect(profile: ModelProfile, name: str) -> bool:
    """Return whether outputs change with a column; where they do not, as with a head of zeros,
    whether gradients do.
    """
    other = profile.other_answer(name)
    assert other is not None
    if _differ(profile.answer(profile.batch, profile.together), other):
        return True
    pairs = ((b, profile.changed(b, name)) for b in chain([profile.batch], profile.more()))
    return any(_changes(profile, batch, other) for batch, other in pairs if other is not None)


def _changes(profile: ModelProfile, batch: Batch, other: Batch) -> bool:
    if batch is not profile.batch and _differ(profile.answer(batch), profile.answer(other)):
        return True
    pairs = zip(profile.gradients(batch), profile.gradients(other), strict=True)
    return any(
        one is not None and other is not None and _differ(one, other) for one, other in pairs
    )


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape != other.shape or not differ(one, other) <= NO_CHANGE


def check_padding(profile: ModelProfile) -> list[Finding]:
    """Padding must change no logit and no loss, in training neither."""
    least = tolerance(next(profile.module.parameters()))
    if (change := profile.padding_effect) > least:
        message = f"Padding changes the outputs of a row by {change:.2g} of their size."
        masks = [name for name in profile.batch if name.endswith("_mask")]
        if profile.one_length:
            fix = (
                f"{profile.one_length}; or let forward take attention_mask, and leave padded "
                "positions out of sums and means."
            )
            return [OUTPUTS_DEPEND_ON_BATCH.finding(message, fix=fix)]
        if "attention_mask" in masks or not masks:
            return [OUTPUTS_DEPEND_ON_BATCH.finding(message)]
        fix = (
            "Let forward and loss_fn leave padded positions out of sums and means, by "
            f"{', '.join(masks)}; or train with batch_size=1."
        )
        return [OUTPUTS_DEPEND_ON_BATCH.finding(message, fix=fix)]
    if (change := profile.padding_in_statistics) > least:
        message = (
            "In training, padding is part of the batch statistics of a normalisation layer: it "
            f"changes the outputs of a row by {change:.2g} of their size."
        )
        fix = "Normalise the real positions only, x[mask.bool()], or use LayerNorm."
        return [OUTPUTS_DEPEND_ON_BATCH.finding(message, fix=fix)]
    return []


def check_independence(profile: ModelProfile) -> list[Finding]:
    """Return each row alone, at the same padded length, must give what it gives among others.

    A row is given twice: layers that compute statistics of the batch take no single row.
    """
    together = getattr(profile.together, "logits", None)
    if profile.rows_agree or together is None or len(together) != profile.num_rows:
        return []
    changes = []
    for place in range(profile.num_rows):
        alone = profile.run(profile.twice(profile.row(place))).logits
        if alone.shape[1:] != together.shape[1:]:
            return []
        changes.append(differ(alone[:1], together[place : place + 1]))
    if max(changes) <= tolerance(together):
        return []
    moved = [place for place, change in enumerate(changes) if change > tolerance(together)]
    message = (
        f"The outputs of {len(moved)} of {profile.num_rows} rows change when a row is alone in its "
        f"batch, those of row {moved[0]} of the batch by {changes[moved[0]]:.2g} of their size: "
        "rows influence each other."
    )
    fix = "Keep the batch axis apart: no sum, mean or normalisation over it."
    return [OUTPUTS_DEPEND_ON_BATCH.finding(message, fix=fix)]


def check_additive(profile: ModelProfile) -> list[Finding]:
    """Only then do 4 micro-batches of 2 rows give the gradient of one batch of 8."""
    whole, rows = profile.whole_loss, range(profile.num_rows)

    def is_sum(parts: float) -> bool:
        return abs(whole - parts) <= _tolerance(profile) * max(abs(whole), abs(parts), 1e-12)

    if len(rows) < 2 or (profile.rows_agree and is_sum(profile.rows_apart[1])):
        return []
    parts = sum(profile.loss_of(profile.row(place)) for place in rows)
    if is_sum(parts):
        return []
    message = (
        f"The loss of {len(rows)} rows together is {whole:.4g}, one by one {parts:.4g}: the rows "
        "influence each other's loss."
    )
    return [LOSS_NOT_ADDITIVE.finding(message)]


def _tolerance(profile: ModelProfile) -> float:
    """A causal module's own mean leaves out each row's first label, which the count does not."""
    if profile.causal:
        return 0.05
    return 1e-3 if next(profile.module.parameters()).dtype.itemsize >= 4 else 3e-2


def check_choice(picked: Picked, unused: Mapping[Key, Sequence[str]]) -> list[Finding]:
    """Judge an output that was picked by its size alone.

    `unused` are trainable parameters without a gradient that other outputs depend on, by output.
    """
    if picked.how != "size" or picked.key is None:
        return []
    used = picked.tensors[picked.key]
    if unused:
        key, names = max(unused.items(), key=lambda item: len(item[1]))
        shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        message = (
            f"output {picked.key!r} is used, and {shown} get no gradient: "
            f"output {key!r} depends on them. forward returns {_list(picked)}."
        )
        fix = (
            f"Name the output that is meant: --set outputs={key}, or outputs={key!r} from Python. "
            f"To train without these layers: outputs={picked.key}."
        )
        return [OTHER_OUTPUT_TRAINED.finding(message, fix=fix)]
    alike = [key for key, value in picked.others.items() if value.shape == used.shape]
    if not alike:
        return []
    message = (
        f"output {picked.key!r} is used, and {', '.join(f'output {key!r}' for key in alike)} "
        f"would fit as well. forward returns {_list(picked)}."
    )
    fix = f"Name the output that is meant: --set outputs={picked.key}, or outputs={alike[0]}."
    return [SEVERAL_OUTPUTS_FIT.finding(message, fix=fix)]


def _list(picked: Picked) -> str:
    return ", ".join(f"{key!r} {list(value.shape)}" for key, value in picked.tensors.items())


def check_detached(
    module: nn.Module, call: Call, batch: Mapping[str, Any], lost: Sequence[str]
) -> list[Finding]:
    """Return a finding for those of the parameters without a gradient that change the outputs."""
    import torch

    named = {name: module.get_parameter(name) for name in lost}
    if sum(weight.numel() for weight in named.values()) > MAX_WEIGHTS:
        return []
    kept = {name: weight.detach().clone() for name, weight in named.items()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        before = getattr(call(module, batch), "logits", None)
        if before is None:
            return []
        try:
            for weight in named.values():
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(noise.to(weight.device, weight.dtype))
            after = call(module, batch).logits
        finally:
            for name, weight in named.items():
                weight.copy_(kept[name])
    if after.shape != before.shape or differ(before, after) <= tolerance(before):
        return []
    shown = ", ".join(lost[:3]) + (" …" if len(lost) > 3 else "")
    what = "1 parameter changes" if len(lost) == 1 else f"{len(lost)} parameters change"
    message = f"{what} the outputs, but no gradient is computed: {shown}."
    return [DETACHED_LAYERS.finding(message)]


Probe = Callable[[ModelProfile], list[Finding]]

PROBES: dict[str, Probe] = {
    "gradients": check_gradients,
    "inputs": check_inputs,
    "padding": check_padding,
    "independence": check_independence,
    "shift": check_shift,
    "additive": check_additive,
}
"""Run by every plan: a handful of forward passes of a few rows."""


def run_probes(
    profile: ModelProfile,
    longer: bool = False,
    trained: ModelProfile | None = None,
    skipped: Collection[str] = (),
) -> list[Finding]:
    """Return what all probes find; a model whose outputs differ from call to call cannot be probed.

    `trained` has the weights that are trained, where those of the profile are perturbed: they are
    asked whether there is a gradient. With `longer`, the model also has to overfit the batch.
    `skipped` are probes that the loss does not allow.
    """
    trained, found = trained or profile, list[Finding]()
    for name, probe in PROBES.items():
        if name in skipped:
            continue
        given = trained if probe is check_gradients else profile
        found += run_probe(name, given.module, partial(probe, given))
        if any(each.code for each in found) and (unsteady := profile.is_unsteady()):
            return unsteady
        if has_errors(found):  # one finding per cause: the other probes would see it as well
            return found
    if longer:
        found += run_probe("overfit", trained.module, partial(check_overfit, trained))
    return found


def run_probe(name: str, module: nn.Module, probe: Callable[[], list[Finding]]) -> list[Finding]:
    """Return a probe that fails on a working model is reported; it is no fault of the model."""
    try:
        with preserved_state(module):
            return probe()
    except Exception as error:
        message = f"The probe {name!r} could not be run: {describe_error(error)}"
        return [note(message[:300])]
