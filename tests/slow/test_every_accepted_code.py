"""A code that can be accepted truly is: with `accept`, its finding neither stops nor warns."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from faults.case import Case, run
from faults.every import FAULTS
from surefit.findings import load_rules

pytestmark = [pytest.mark.slow, pytest.mark.rate_trial]

RULES = load_rules()
CASES: dict[str, Case] = {}
for _cases in FAULTS.values():
    for _case in _cases:
        if _case.code in RULES and RULES[_case.code].accept and not _case.needs:
            CASES.setdefault(_case.code, _case)


@pytest.mark.parametrize("code", CASES)
def test_an_accepted_code_does_not_stop_the_plan(code: str, tmp_path: Path) -> None:
    case = CASES[code]
    accepted = re.findall(r"accept=\[([^]]*)\]", case.options)
    options = re.sub(r"--set accept=\S+", "", case.options)
    codes = ",".join([code, *accepted])
    outcome = run(replace(case, options=f"{options} --set accept=[{codes}]"), tmp_path)
    found = [each for each in outcome.findings if each["code"] == code]
    assert found, outcome.answer
    assert {each["severity"] for each in found} == {"info"}
    assert found[0]["message"].startswith("Accepted: ")
    assert found[0]["why"] == RULES[code].accept
    others = [each["code"] for each in outcome.findings if each["severity"] == "error"]
    assert outcome.exit_code == (1 if others else 0)
    assert not (others and case.exits == 1 and RULES[code].severity == "error"), others
