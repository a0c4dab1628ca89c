"""Is what is saved what was trained?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.checks.probes.probe_batch import Batch, Subject, differ, tolerance
from surefit.data.cache_use import scratch_in_cache
from surefit.errors import SurefitError
from surefit.findings import Finding, rule
from surefit.kernels.preserve_state import preserved_state

if TYPE_CHECKING:
    from torch import nn

RELOAD_DIFFERS = rule(
    "SF706",
    "error",
    "what is saved is not what was trained",
    why="A part of the model is not in its saved weights, or comes back another.",
    fix="Register every part that learns as a submodule, parameter or persistent buffer.",
)


def check_reload(
    subject: Subject,
    save: Callable[[Path], None],
    load: Callable[[Path], nn.Module],
    call: Callable[[nn.Module, Batch], Any],
) -> list[Finding]:
    """The model, saved and loaded again, must give the outputs that it gave before."""
    import torch

    with (
        scratch_in_cache() as temporary,
        preserved_state(subject.module),
    ):
        folder = temporary / "model"
        save(folder)
        try:
            other = load(folder)
        except SurefitError as error:
            return [RELOAD_DIFFERS.finding(f"The model was saved and cannot be loaded: {error}")]
        with torch.no_grad(), preserved_state(other):
            before, after = subject.forward(subject.batch), call(other, subject.batch)
    for name in ("logits", "loss"):
        one, two = getattr(before, name, None), getattr(after, name, None)
        if one is not None and two is not None and differ(one, two) > tolerance(one):
            message = f"Saved and loaded again, its {name} differ by {differ(one, two):.2g}."
            return [RELOAD_DIFFERS.finding(message)]
    return []
