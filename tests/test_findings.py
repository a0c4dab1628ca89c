"""`accept`: findings that the user knows about do not stop a run, and the plan records them."""

from __future__ import annotations

import pytest

from surefit import findings
from surefit.errors import UsageError
from surefit.findings import (
    Finding,
    Rule,
    accept_findings,
    check_accepted,
    load_rules,
    without_covered,
)

ODD = Rule("SF998", "error", "odd", why="w", fix="f", accept="The rows are used as they are.")
FIRM = Rule("SF999", "error", "firm", why="w", fix="Correct it.")


@pytest.fixture
def rules(monkeypatch):
    findings.load_rules()  # a module that is first imported below would declare its rules in vain
    monkeypatch.setattr(findings, "RULES", {rule.code: rule for rule in (ODD, FIRM)})


def test_an_accepted_finding_is_information_that_says_what_happens(rules):
    found = accept_findings([ODD.finding("3 rows", row=1), FIRM.finding("2 rows")], ["SF998"])
    assert found[0] == Finding(
        "SF998",
        "info",
        "Accepted: 3 rows",
        {"row": 1},
        "Remove SF998 from accept to have it reported as before.",
        "The rows are used as they are.",
    )
    assert found[1] == FIRM.finding("2 rows")


def test_codes_that_cannot_be_accepted_are_refused(rules):
    check_accepted(["SF998"])
    with pytest.raises(UsageError, match=r"SF999 \(firm\) cannot be accepted"):
        check_accepted(["SF999"])
    with pytest.raises(UsageError, match=r"no finding 'sf998'\. SF998 is: odd"):
        check_accepted(["sf998"])
    with pytest.raises(UsageError, match=r"no finding 'SF099'\.\n.*CHANGELOG"):
        check_accepted(["SF099"])  # no other code is suggested: one of like digits means another


def test_a_cause_is_reported_once():
    known = load_rules()
    columns, dark = known["SF107"].finding("columns"), known["SF241"].finding("dark")
    assert without_covered([columns, dark]) == (columns, dark)
    ranges = known["SF240"].finding("ranges")
    assert without_covered([columns, dark, ranges]) == (columns, ranges)


def test_findings_that_cover_others_exist():
    known = load_rules()
    assert all(code in known for rule in known.values() for code in rule.covered_by)
