"""What a finding offers works: the options of its fix, pasted as they are, and `accept`."""

from __future__ import annotations

import random
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from faults.case import Case, run
from faults.every import FAULTS
from faults.pasted import lines_in
from surefit.findings import load_rules

pytestmark = [pytest.mark.slow, pytest.mark.rate_trial]

RULES = load_rules()
CASES = [case for cases in FAULTS.values() for case in cases if case.code and case.needs is None]
SAMPLE = random.Random(15).sample(CASES, 60)
ACCEPTED = {case.code: case for case in reversed(CASES) if RULES[case.code].accept}
"""The first case of each code that can be accepted."""


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_a_pasted_fix_works(case: Case, tmp_path: Path) -> None:
    found = run(case, tmp_path).found(case)
    assert found is not None
    for number, line in enumerate(lines_in(found["fix"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = run(replace(case, options=f"{case.options} {shlex.join(line)}"), folder)
        loud = [f for f in outcome.findings if f["severity"] in ("error", "warning")]
        assert outcome.exit_code != 2, outcome.answer
        assert case.code not in [f["code"] for f in loud], (line, loud)


@pytest.mark.parametrize("code", ACCEPTED)
def test_an_accepted_code_neither_stops_nor_warns(code: str, tmp_path: Path) -> None:
    case = ACCEPTED[code]
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
