"""Small experiments on the real model with a few real rows, before any training.

Each probe asks one question that training would answer too late or never. They run in evaluation
mode and leave weights, buffers and random state as they were.
"""

from __future__ import annotations

from collections.abc import Callable

from surefit.checks.probes.additive_loss import check_additive
from surefit.checks.probes.label_shift import check_shift
from surefit.checks.probes.overfit import check_overfit
from surefit.checks.probes.padding_effect import check_padding
from surefit.checks.probes.probe_batch import Subject, is_deterministic
from surefit.checks.probes.row_independence import check_independence
from surefit.errors import describe_error
from surefit.findings import Finding, rule
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
    "padding": check_padding,
    "independence": check_independence,
    "shift": check_shift,
    "additive": check_additive,
}
"""Run by every plan: a handful of forward passes of a few rows."""

LONGER: dict[str, Probe] = {"overfit": check_overfit}
"""Run on request (`probes=all`): these train a little, and put everything back."""


def run_probes(subject: Subject, longer: bool = False) -> list[Finding]:
    """What all probes find; a model whose outputs differ from call to call cannot be probed."""
    with preserved_state(subject.module):
        unsteady = is_deterministic(subject)
        if unsteady:
            return unsteady
        chosen = {**PROBES, **LONGER} if longer else PROBES
        return [found for name, probe in chosen.items() for found in _run(name, probe, subject)]


def _run(name: str, probe: Probe, subject: Subject) -> list[Finding]:
    """A probe that fails on a working model is reported; it is no fault of the model."""
    try:
        return probe(subject)
    except Exception as error:
        message = f"The probe {name!r} could not be run: {describe_error(error)}"
        return [PROBE_NOT_RUN.finding(message[:300])]
