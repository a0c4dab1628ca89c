"""Findings, and the rules behind their codes; each rule is declared beside its check."""

from surefit.findings.finding import (
    NOTE,
    RULES,
    Finding,
    Place,
    Rule,
    Severity,
    accept_findings,
    check_accepted,
    has_errors,
    load_rules,
    note,
    part_notes,
    refuse_fixes,
    rule,
    without_covered,
)

__all__ = [
    "NOTE",
    "RULES",
    "Finding",
    "Place",
    "Rule",
    "Severity",
    "accept_findings",
    "check_accepted",
    "has_errors",
    "load_rules",
    "note",
    "part_notes",
    "refuse_fixes",
    "rule",
    "without_covered",
]
