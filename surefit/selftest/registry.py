"""The checks of the selftest, in the order they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from surefit.selftest.operation_checks import compare_operations
from surefit.selftest.outcome import Figures
from surefit.selftest.process_runs import same_losses, unequal_processes
from surefit.selftest.small_runs import (
    compare_peak,
    resume_exactly,
    train_classifier,
    train_qlora,
    train_sft,
)
from surefit.selftest.step_costs import compile_varying_rows, count_launches, count_syncs

Check = Callable[[str, Path], Figures]
"""Called with the type of the device and an empty folder; its docstring says what it shows."""

CHECKS: dict[str, Check] = {
    "operations": compare_operations,
    "sft": train_sft,
    "classification": train_classifier,
    "resume": resume_exactly,
    "qlora": train_qlora,
    "peak": compare_peak,
    "launches": count_launches,
    "syncs": count_syncs,
    "compile": compile_varying_rows,
    "processes": same_losses,
    "unequal": unequal_processes,
}


def summary_of(check: Check) -> str:
    """The first line of a check's docstring."""
    return (check.__doc__ or "").split("\n", 1)[0].rstrip(".")
