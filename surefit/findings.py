"""A Finding is one thing found before the first step; what its code means is in rules.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from surefit.errors import FindingError
from surefit.rules import RULES, Severity

Place = Mapping[str, str | int | None]
"""Where something was found: file, row, line, column, as far as they are known."""


@dataclass(frozen=True)
class Finding:
    """One thing found: what, where (file, row, line, column), and how to fix it."""

    code: str
    severity: Severity
    message: str
    where: Mapping[str, str | int] = field(default_factory=dict)
    fix: str = ""

    @property
    def why(self) -> str:
        """Why it matters, from the registry."""
        return RULES[self.code].why

    def as_dict(self) -> dict[str, Any]:
        """The finding as `check --json` prints it."""
        return {**asdict(self), "where": dict(self.where), "why": self.why}


def finding(
    code: str, message: str, at: Place | None = None, *, fix: str = "", **more: str | int | None
) -> Finding:
    """Make a Finding of `code` with the severity and, unless given, the fix of its Rule.

    >>> finding("SF101", "train.jsonl has no rows", file="train.jsonl").severity
    'error'
    """
    rule = RULES[code]
    where = {**(at or {}), **more}
    known = {key: value for key, value in where.items() if value is not None}
    return Finding(code, rule.severity, message, known, fix or rule.fix)


def fail(
    code: str, message: str, at: Place | None = None, *, fix: str = "", **more: str | int | None
) -> FindingError:
    """An exception that carries one `error` Finding; raise it where planning cannot go on."""
    return FindingError(finding(code, message, at, fix=fix, **more))


def refuse_fixes(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """What was repaired as errors instead, for autofix=false."""
    fix = "Repair it, or leave autofix=false out to have it done."
    return tuple(
        replace(found, severity="error", fix=fix) if found.severity == "fixed" else found
        for found in findings
    )


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether any of them keeps the run from starting."""
    return any(found.severity == "error" for found in findings)
