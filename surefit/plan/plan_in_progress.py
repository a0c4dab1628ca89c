"""The plan while it is made: what the stages decided so far, and what they found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from surefit.findings import Finding, accept_findings
from surefit.memory.limit import Limit
from surefit.plan.plan import Plan
from surefit.progress import Progress

Made = TypeVar("Made")


class PlanInProgress:
    """The plan as far as it is decided; a stage that cannot continue raises what it found."""

    def __init__(self, plan: Plan, progress: Progress, limit: Limit | None) -> None:
        self.plan = plan
        self.limit = limit
        self.request = plan.request
        self.progress = progress

    def keep(self, made: tuple[Made, Iterable[Finding]]) -> Made:
        """What a stage made; what it found is added to the plan."""
        value, findings = made
        self.note(findings)
        return value

    def note(self, findings: Iterable[Finding]) -> None:
        """Add what a check found; what the user accepts does not stop the run."""
        self.plan = self.plan.found(accept_findings(findings, self.request.config.accept))
