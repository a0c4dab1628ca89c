"""The plans of all folds of a cross-validation as one: rows, time and disk of every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from surefit.findings import Finding, accept_findings
from surefit.gigabytes import show_size
from surefit.plan.fit_on_disk import DOES_NOT_FIT_ON_DISK
from surefit.plan.plan import Plan


def join_folds(plans: Sequence[Plan]) -> Plan:
    """The plan of the first fold, with what each fold takes and what only others have found."""
    first, known = plans[0], {found.code for found in plans[0].findings}
    more = [
        replace(found, message=f"Fold {fold}: {found.message}")
        for fold, plan in enumerate(plans)
        for found in plan.findings
        if found.code not in known
    ]
    about = tuple({"fold": fold, **_describe(plan)} for fold, plan in enumerate(plans))
    joined = replace(first.found(more), folds=about)
    return joined.found(accept_findings(_check_disk(plans), first.config.accept))


def _describe(plan: Plan) -> dict[str, Any]:
    ledger, disk, fit = plan.ledger, plan.disk, plan.fit
    return {
        "ok": plan.ok,
        "train_rows": ledger.train_rows if ledger else None,
        "eval_rows": ledger.eval_rows if ledger else None,
        "final_bytes": disk.final_bytes if disk else None,
        "predicted_bytes": disk.predicted_bytes if disk else None,
        "predicted_seconds": fit.total_seconds if fit else None,
    }


def bytes_of_folds(folds: Sequence[Mapping[str, Any]]) -> int | None:
    """What all runs write, at its peak: the last one beside those that are finished."""
    if not folds or any(fold["predicted_bytes"] is None for fold in folds):
        return None
    finished = sum(fold["final_bytes"] for fold in folds[:-1])
    return int(finished + folds[-1]["predicted_bytes"])


def seconds_of_folds(folds: Sequence[Mapping[str, Any]]) -> float | None:
    """How long all runs take, one after another; None where one is not known."""
    seconds = [fold["predicted_seconds"] for fold in folds]
    return None if None in seconds else float(sum(seconds))


def _check_disk(plans: Sequence[Plan]) -> list[Finding]:
    """The finding that all runs together do not fit, where the first alone does."""
    total = bytes_of_folds([_describe(plan) for plan in plans])
    disk = plans[0].disk
    if total is None or disk is None or not disk.fits or total <= disk.free_bytes:
        return []
    message = (
        f"The {len(plans)} runs of the folds write up to {show_size(total)} to "
        f"{disk.folder.parent}, where {show_size(disk.free_bytes)} are free."
    )
    return [DOES_NOT_FIT_ON_DISK.finding(message)]
