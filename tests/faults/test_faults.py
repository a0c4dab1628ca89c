"""Every fault is found with its code and row; nothing healthy is complained of.

Here: the first case of each code, and some healthy ones. tests/records/record.py --compare runs
`check` of all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from records.record import check_record, quick_differences

from builders import require_precision
from faults.case import Case, Outcome, run, run_quickly
from faults.every import FAULTS, HEALTHY, USAGE
from faults.pasted import wrong_options

EVERY = {case.name: case for cases in FAULTS.values() for case in cases}
FIRST = {case.expected: case for case in reversed(EVERY.values())}.values()
RATES = {case.name for case in FAULTS["rates"]}
PROCESSES = ("line cut short", "audio of no bytes", "LoRA on layers that are not there")


def _name(case: Case) -> str:
    return case.name


def test_the_suite_is_as_large_as_promised() -> None:
    assert len(EVERY) >= 100
    assert len(HEALTHY) >= 40
    names = [case.name for cases in (*FAULTS.values(), USAGE, HEALTHY) for case in cases]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "case",
    [pytest.param(each, marks=[pytest.mark.rate_trial] * (each.name in RATES)) for each in FIRST],
    ids=_name,
)
def test_fault_is_found(case: Case, tmp_path: Path) -> None:
    """With a message, and a fix whose options exist."""
    if case.needs is not None:
        require_precision(case.needs)
    outcome = run_quickly(case, tmp_path)
    assert outcome.complaint(case) == ""
    assert quick_differences(case.name, check_record(outcome)) == []
    found = outcome.found(case)
    assert case.note or (found is not None and found["message"] and found["fix"])
    assert [wrong for each in outcome.findings for wrong in wrong_options(each["fix"])] == []


@pytest.mark.parametrize("case", USAGE, ids=_name)
def test_mistake_in_the_options_exits_2(case: Case, tmp_path: Path) -> None:
    outcome = run(case, tmp_path)
    assert outcome.complaint(case) == ""
    assert outcome.answer.keys() == {"ok", "error"}


@pytest.mark.parametrize("case", HEALTHY[::8], ids=_name)
def test_healthy_data_is_not_complained_of(case: Case, tmp_path: Path) -> None:
    assert run(case, tmp_path).complaint(case) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
def test_fault_is_found_by_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    case = EVERY[name]
    case.write(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "surefit", "check", "--json", *case.arguments()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    outcome = Outcome(ended.returncode, json.loads(ended.stdout), ended.stderr)
    assert outcome.complaint(case) == ""
