"""A Finding is one thing found before the first step; a Rule is what its code stands for.

Each rule is declared beside its check.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Literal

from surefit.errors import FindingError, UsageError
from surefit.printable import redact

Severity = Literal["error", "warning", "fixed", "info"]
Place = Mapping[str, str | int | None]
"""Where something was found: file, row, line, column, as far as they are known."""


@dataclass(frozen=True)
class Finding:
    """One thing found: what, where (file, row, line, column), why it matters, how to fix it."""

    code: str
    severity: Severity
    message: str
    where: Mapping[str, str | int] = field(default_factory=dict)
    fix: str = ""
    why: str = ""

    @property
    def place(self) -> str:
        """Where it was found, in brackets; empty where that is not known."""
        named = ", ".join(f"{key} {value}" for key, value in self.where.items())
        return f"  [{named}]" if named else ""

    def __str__(self) -> str:
        """What was found and where, and how to fix it, as the text of an exception has it."""
        fix = f"\nfix: {self.fix}" if self.fix else ""
        return f"{self.code}  {self.message}{self.place}{fix}"

    def _repr_html_(self) -> str:
        """Return the finding as notebooks show it."""
        named, *rest = (escape(line) for line in str(self).splitlines())
        return f"<b>{self.severity}</b> {'<br>'.join((named, *rest))}"

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as `check --json` prints it."""
        return {**asdict(self), "where": dict(self.where)}


@dataclass(frozen=True)
class Rule:
    """What a code stands for. It is declared beside the check that raises it.

    >>> empty = Rule("SF000", "error", "no data", why="Nothing to learn.", fix="Check the path.")
    >>> empty.finding("train.jsonl has no rows", file="train.jsonl").severity
    'error'
    """

    code: str
    severity: Severity
    title: str
    why: str
    fix: str
    accept: str = ""
    """What happens if the code is listed in `accept`; empty where it cannot be accepted."""
    covered_by: tuple[str, ...] = ()
    """Codes of findings that name the same cause better, so that this one is left out."""

    def finding(
        self, message: str, at: Place | None = None, *, fix: str = "", **more: str | int | None
    ) -> Finding:
        """A Finding of this rule; `at` and `more` say where, `fix` replaces the usual one."""
        where = {**(at or {}), **more}
        known = {
            key: redact(value) if isinstance(value, str) else value
            for key, value in where.items()
            if value is not None
        }
        message, fix = redact(message), redact(fix or self.fix)
        return Finding(self.code, self.severity, message, known, fix, self.why)

    def error(
        self, message: str, at: Place | None = None, *, fix: str = "", **more: str | int | None
    ) -> FindingError:
        """Return an exception that carries one Finding; raise it where planning cannot continue."""
        return FindingError(self.finding(message, at, fix=fix, **more))


NOTE = Rule("", "info", "a line of the plan", why="", fix="")
note = NOTE.finding
"""Make a line of the plan: a decision in plain words that has no code and asks for nothing."""

RULES: dict[str, Rule] = {}
"""Every rule declared by the modules that are loaded; `load_rules` loads all of them."""


def rule(
    code: str,
    severity: Severity,
    title: str,
    *,
    why: str,
    fix: str,
    accept: str = "",
    covered_by: tuple[str, ...] = (),
) -> Rule:
    """Declare a rule; its code must be new. `accept` says what accepting its findings does."""
    assert code not in RULES, f"{code} is declared twice"
    RULES[code] = Rule(code, severity, title, why, fix, accept, covered_by)
    return RULES[code]


def load_rules() -> dict[str, Rule]:
    """Return all rules of the package by code, for documents and tests."""
    _import_package()
    return dict(sorted(RULES.items()))


def find_rule(code: str) -> Rule | None:
    """Return the rule of a code; only the module that declares it is imported."""
    import importlib

    package = Path(__file__).parent
    for path in package.rglob("*.py") if code not in RULES else ():
        if f'"{code}"' in path.read_text("utf-8"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            importlib.import_module(".".join(parts))
            if code in RULES:
                break
    return RULES.get(code)


@cache
def _import_package() -> None:
    import importlib
    import pkgutil

    import surefit

    for module in pkgutil.walk_packages(surefit.__path__, "surefit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def refuse_fixes(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return what was repaired as errors instead, for autofix=false."""
    fix = "Repair it, or leave autofix=false out to have it done."
    return tuple(
        replace(found, severity="error", fix=fix) if found.severity == "fixed" else found
        for found in findings
    )


def check_accepted(codes: Iterable[str]) -> None:
    """Refuse codes in `accept` that no rule has, or whose findings cannot be accepted."""
    for code in codes:
        known = RULES.get(code) or load_rules().get(code)
        if known is None:
            meant = RULES.get(code.strip().upper())  # codes with like digits have unlike meanings
            hint = f" {meant.code} is: {meant.title}." if meant else ""
            raise UsageError(
                f"accept: there is no finding {code!r}.{hint}",
                "Correct or remove the code. If an earlier version reported it, CHANGELOG.md says "
                "which code it is now.",
            )
        if not known.accept:
            raise UsageError(
                f"accept: {code} ({known.title}) cannot be accepted.",
                f"Remove {code} from accept. {known.fix}",
            )


def accept_findings(findings: Iterable[Finding], codes: Collection[str]) -> tuple[Finding, ...]:
    """Return the findings, with those that the user accepts as information that records it."""
    return tuple(
        replace(
            found,
            severity="info",
            message=f"Accepted: {found.message}",
            fix=f"Remove {found.code} from accept to have it reported as before.",
            why=RULES[found.code].accept,
        )
        if found.code in codes and found.severity in ("error", "warning")
        else found
        for found in findings
    )


def part_notes(findings: Iterable[Finding]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return the findings that have a code, and the text of the notes among them.

    >>> part_notes([note("Rows are split by group.", column="user")])
    ((), ('Rows are split by group.  [column user]',))
    """
    findings = tuple(findings)
    notes = (found for found in findings if not found.code)
    texts = tuple(f"{' '.join(filter(None, (n.message, n.fix)))}{n.place}" for n in notes)
    return tuple(found for found in findings if found.code), texts


def without_covered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings without those whose cause another one names: one finding per cause."""
    findings = tuple(findings)
    codes = {found.code for found in findings}
    return tuple(
        found
        for found in findings
        if found.code not in RULES or codes.isdisjoint(RULES[found.code].covered_by)
    )


def has_errors(findings: Iterable[Finding]) -> bool:
    """Return whether any of them keeps the run from starting."""
    return any(found.severity == "error" for found in findings)
