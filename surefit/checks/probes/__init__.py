"""Small experiments on the real model with a few real rows, before any training.

Each probe asks one question that training would answer too late or never. They run in evaluation
mode and leave weights, buffers and random state as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from surefit.checks.probes.additive_loss import check_additive
from surefit.checks.probes.input_effect import check_gradients, check_inputs
from surefit.checks.probes.label_shift import check_shift
from surefit.checks.probes.overfit import check_overfit
from surefit.checks.probes.padding_effect import check_padding
from surefit.checks.probes.probe_batch import Subject, is_deterministic
from surefit.checks.probes.row_independence import check_independence
from surefit.errors import describe_error
from surefit.findings import Finding, has_errors, rule
from surefit.kernels.preserve_state import preserved_state

PROBE_NOT_RUN = rule(
    "SF708",
    "info",
    "a probe could not be run",
    why="The model takes batches of the shape that is trained on, and not the one that was tried.",
    fix="Nothing to do; what the probe asks remains unknown.",
)


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

    `perturbed` is the same with perturbed weights, for what fresh weights do not show. `skipped`
    are probes that the loss does not allow.
    """
    shown = perturbed or subject
    with preserved_state(shown.module):
        unsteady = is_deterministic(shown)
    if unsteady:
        return unsteady
    asked = {name: probe for name, probe in PROBES.items() if name not in skipped}
    found: list[Finding] = []
    for name, probe in asked.items():
        found += _run(name, probe, shown)
        if has_errors(found):  # one finding per cause: the other probes would see it as well
            return found
    if longer:
        found += [each for name, probe in LONGER.items() for each in _run(name, probe, subject)]
    return found


def _run(name: str, probe: Probe, subject: Subject) -> list[Finding]:
    """A probe that fails on a working model is reported; it is no fault of the model."""
    try:
        with preserved_state(subject.module):
            return probe(subject)
    except Exception as error:
        message = f"The probe {name!r} could not be run: {describe_error(error)}"
        return [PROBE_NOT_RUN.finding(message[:300])]
