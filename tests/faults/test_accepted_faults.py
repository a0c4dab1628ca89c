"""`accept` of a code that stops a run lets it start, and the plan records what was accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from faults.case import Case, run
from faults.every import FAULTS
from surefit.findings import load_rules


def _acceptable() -> dict[str, Case]:
    """The first case of each error that can be accepted."""
    rules, found = load_rules(), {}
    for case in (case for cases in FAULTS.values() for case in cases):
        rule = rules.get(case.code or "")
        if rule is not None and rule.severity == "error" and rule.accept and case.exits == 1:
            found.setdefault(rule.code, case)
    return found


ACCEPTABLE = _acceptable()


@pytest.mark.slow
@pytest.mark.parametrize("code", ACCEPTABLE)
def test_an_accepted_error_does_not_stop_the_run(code: str, tmp_path: Path) -> None:
    case = ACCEPTABLE[code]
    outcome = run(replace(case, options=f"{case.options} --set accept={code}"), tmp_path)
    accepted = [found for found in outcome.findings if found["code"] == code]
    assert [found["severity"] for found in accepted] == ["info"] * len(accepted)
    assert all(found["message"].startswith("Accepted: ") for found in accepted)
    assert accepted
    assert outcome.exit_code == 0, outcome.findings
