"""Every code of the registry is triggered by a test."""

from __future__ import annotations

import re
from pathlib import Path

from faults.every import FAULTS, HEALTHY
from surefit.findings import load_rules

TESTS = Path(__file__).parents[1]


def test_every_code_is_triggered_by_a_case_or_named_by_a_test() -> None:
    cases = [case for cases in FAULTS.values() for case in cases] + HEALTHY
    triggered = {code for case in cases for code in (case.code, *case.also) if code}
    named = {
        code
        for path in TESTS.rglob("test_*.py")
        for code in re.findall(r'"(SF\d{3})\b', path.read_text(encoding="utf-8"))
    }
    assert sorted(set(load_rules()) - triggered - named) == []
