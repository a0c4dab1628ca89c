"""Every fault is found with its code and row; nothing healthy is complained of."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records.record import check_record, quick_differences

from builders import mostly_slow, require_precision
from faults.case import Case, Outcome, run, run_quickly
from faults.every import FAULTS, HEALTHY, USAGE
from faults.pasted import wrong_options

EVERY = [(kind, case) for kind, cases in FAULTS.items() for case in cases]
PROCESSES = [case for _, case in EVERY if case.process]
Record = Callable[[str, object], None]


def name(value: object) -> str | None:
    return value.name if isinstance(value, Case) else None


def _first_of_each_code() -> list[Any]:
    """The first fault of each code is in the default tier; `check` of all of them is slow."""
    first = {case.code: (kind, case) for kind, case in reversed(EVERY)}
    rates = {"rates": [pytest.mark.rate_trial]}
    return [pytest.param(*each, marks=rates.get(each[0], ())) for each in first.values()]


def test_the_suite_is_as_large_as_promised() -> None:
    assert len(EVERY) >= 100
    assert len(HEALTHY) >= 40
    assert len(PROCESSES) == 16
    names = [case.name for case in (*(case for _, case in EVERY), *USAGE, *HEALTHY)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("kind", "case"), _first_of_each_code(), ids=name)
def test_fault_is_found(kind: str, case: Case, tmp_path: Path, record_property: Record) -> None:
    record_property("faults", kind)
    if case.needs is not None:
        require_precision(case.needs)
    expect(case, run_quickly(case, tmp_path))


@pytest.mark.slow
@pytest.mark.rate_trial
@pytest.mark.parametrize(("kind", "case"), EVERY, ids=name)
def test_fault_is_found_by_check(
    kind: str, case: Case, tmp_path: Path, record_property: Record
) -> None:
    record_property("faults", kind)
    if case.needs is not None:
        require_precision(case.needs)
    expect(case, run(case, tmp_path))


def expect(case: Case, outcome: Outcome) -> None:
    """The fault is found, with a message and a fix whose options exist."""
    assert outcome.complaint(case) == ""
    assert quick_differences(case.name, check_record(outcome)) == []
    found = outcome.found(case)
    assert case.is_note or (found is not None and found["message"] and found["fix"])
    assert [wrong for each in outcome.findings for wrong in wrong_options(each["fix"])] == []


@pytest.mark.parametrize("case", USAGE, ids=name)
def test_mistake_in_the_options_exits_2(
    case: Case, tmp_path: Path, record_property: Record
) -> None:
    record_property("faults", "options")
    outcome = run(case, tmp_path)
    assert outcome.complaint(case) == ""
    assert outcome.answer.keys() == {"ok", "error"}


@pytest.mark.parametrize("case", mostly_slow(HEALTHY, 8, pytest.mark.rate_trial), ids=name)
def test_healthy_data_is_not_complained_of(
    case: Case, tmp_path: Path, record_property: Record
) -> None:
    record_property("faults", "healthy")
    assert run(case, tmp_path).complaint(case) == ""


@pytest.mark.slow
@pytest.mark.parametrize("case", PROCESSES, ids=name)
def test_fault_is_found_by_a_process_of_its_own(
    case: Case, tmp_path: Path, record_property: Record
) -> None:
    record_property("faults", "processes")
    case.write(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "surefit", "check", "--json", *case.arguments()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    outcome = Outcome(ended.returncode, json.loads(ended.stdout), ended.stderr)
    assert outcome.complaint(case) == ""
