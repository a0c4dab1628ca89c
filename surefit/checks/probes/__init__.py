"""Small experiments on the real model with a few real rows, before any training.

Each probe asks one question that training would answer too late or never. They run in evaluation
mode and leave weights, buffers and random state as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from surefit.checks.probes.batch_effect import check_additive, check_independence, check_padding
from surefit.checks.probes.input_effect import check_gradients, check_inputs
from surefit.checks.probes.probe_batch import Subject, is_deterministic
from surefit.checks.probes.targets import check_shift
from surefit.checks.probes.trials import check_overfit
from surefit.errors import describe_error
from surefit.findings import Finding, has_errors, note
from surefit.kernels.numerics import preserved_state

if TYPE_CHECKING:
    from torch import nn

Probe = Callable[[Subject], list[Finding]]

PROBES: dict[str, Probe] = {
    "gradients": check_gradients,
    "inputs": check_inputs,
    "padding": check_padding,
    "independence": check_independence,
    "shift": check_shift,
    "additive": check_additive,
}
"""Run by every plan: a handful of forward passes of a few rows."""

LONGER: dict[str, Probe] = {"overfit": check_overfit}
"""Run on request (`probes=all`): these train a little, and put everything back."""


def run_probes(
    subject: Subject,
    longer: bool = False,
    perturbed: Subject | None = None,
    skipped: Collection[str] = (),
) -> list[Finding]:
    """What all probes find; a model whose outputs differ from call to call cannot be probed.

    `perturbed` is the same with perturbed weights, for what fresh weights do not show; whether
    there is a gradient is asked of the weights that are trained. `skipped` are probes that the loss
    does not allow.
    """
    shown = perturbed or subject
    with preserved_state(shown.module):
        unsteady = is_deterministic(shown)
    if unsteady:
        return unsteady
    asked = {name: probe for name, probe in PROBES.items() if name not in skipped}
    found: list[Finding] = []
    for name, probe in asked.items():
        given = subject if probe is check_gradients else shown
        found += run_probe(name, given.module, partial(probe, given))
        if has_errors(found):  # one finding per cause: the other probes would see it as well
            return found
    if longer:
        for name, probe in LONGER.items():
            found += run_probe(name, subject.module, partial(probe, subject))
    return found


def run_probe(name: str, module: nn.Module, probe: Callable[[], list[Finding]]) -> list[Finding]:
    """A probe that fails on a working model is reported; it is no fault of the model."""
    try:
        with preserved_state(module):
            return probe()
    except Exception as error:
        message = f"The probe {name!r} could not be run: {describe_error(error)}"
        return [note(message[:300])]
