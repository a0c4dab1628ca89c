"""Findings as SARIF 2.1.0, which code hosts and editors show beside the lines they are about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from surefit import __version__
from surefit.findings import RULES, Finding

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "fixed": "note", "info": "note"}
DRIVER = '"runs": [{"tool": {"driver": {"name": "surefit"'
BEGINNING = f'{{"$schema": "{SCHEMA}", "version": "2.1.0", {DRIVER}'
"""How a file of surefit starts; another one is not replaced."""


def as_sarif(findings: Sequence[Finding], asked: str) -> str:
    """Return findings with a code as SARIF; those without a file are about `asked`, such as the
    config."""
    coded = [found for found in findings if found.code]
    codes = sorted({found.code for found in coded})
    driver = {"name": "surefit", "version": __version__, "rules": [_rule(code) for code in codes]}
    results = [_result(found, codes.index(found.code), asked) for found in coded]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False)


def _rule(code: str) -> dict[str, Any]:
    known = RULES[code]
    return {
        "id": code,
        "shortDescription": {"text": known.title},
        "fullDescription": {"text": known.why},
        "help": {"text": known.fix},
        "defaultConfiguration": {"level": LEVELS[known.severity]},
    }


def _result(found: Finding, rule: int, asked: str) -> dict[str, Any]:
    where = found.where
    file = PurePath(str(where.get("file", asked)))
    address = file.as_uri() if file.is_absolute() else quote(file.as_posix(), safe="/:")
    line = where.get("line")
    region = {"region": {"startLine": line}} if isinstance(line, int) and line > 0 else {}
    named = [
        {"name": str(where[kind]), "kind": kind, "fullyQualifiedName": f"{kind} {where[kind]}"}
        for kind in ("row", "column")
        if kind in where
    ]
    place: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": address}, **region}}
    if named:
        place["logicalLocations"] = named
    fix = f" Fix: {found.fix}" if found.fix else ""
    return {
        "ruleId": found.code,
        "ruleIndex": rule,
        "level": LEVELS[found.severity],
        "message": {"text": f"{found.message}{found.place}{fix}"},
        "locations": [place],
    }
