"""Warnings that only a run can give; each is an event of the run and is shown in its report."""

from __future__ import annotations

from surefit.findings import Finding
from surefit.run.events import Event


def warning_event(found: Finding, step: int, epoch: int) -> Event:
    """A Finding of the run as an event."""
    return {
        "event": "warning",
        "step": step,
        "epoch": epoch,
        "code": found.code,
        "message": found.message,
        "fix": found.fix,
    }
