"""Every code of the registry is triggered by a test; those of meaning in two forms, at least."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

from faults.every import FAULTS, HEALTHY
from surefit.findings import load_rules

TESTS = Path(__file__).parents[1]
OF_MEANING = (
    *(range(130, 190), range(226, 230), range(234, 250), range(293, 296)),
    *(range(460, 467), range(730, 770)),
)
"""Numbers of the codes that are about what is learned, not about shapes."""
IN_TESTS: dict[str, str] = {
    "SF168": "tests/data/test_remote_data.py: servers that fail once, or serve HTML as text",
    "SF169": "tests/data/test_remote_data.py: the same ETag",
    "SF182": "tests/data/formats/test_tar_shards.py: members of a key",
    "SF183": "tests/data/formats/test_tar_shards.py: keys apart in the file",
    "SF743": "tests/training/test_learning.py: runs whose weights all move",
    "SF744": "tests/training/test_learning.py: slow and noisy losses",
    "SF748": "tests/tasks/test_tree_baseline.py: differences that may be chance",
    "SF760": "tests/tasks/test_custom.py: rows of one length",
    "SF762": "tests/tasks/test_custom.py: the task is named",
}
"""Code to the test that has the healthy look-alikes of what only a run or a Trainer shows."""


def _of_meaning() -> dict[str, str]:
    """Codes about what is learned, and their severities."""
    rules = load_rules().items()
    return {c: rule.severity for c, rule in rules if any(int(c[2:]) in r for r in OF_MEANING)}


def _in_cases() -> Counter[str]:
    """How many cases trigger each code."""
    cases = [case for cases in FAULTS.values() for case in cases] + HEALTHY
    said = (code for case in cases for code in {case.code, *case.also} if code)
    return Counter(code for code in said if code.startswith("SF"))


def _in_tests() -> Counter[str]:
    """How many tests, and faulty Trainers of tests/checks/trainers.py, name each code.

    A parametrised test counts as two.
    """
    named: Counter[str] = Counter()
    for path in TESTS.rglob("test_*.py"):
        parts = path.read_text(encoding="utf-8").split("\ndef test_")
        for before, function in pairwise(["", *parts]):
            forms = 1 + ("@pytest.mark.parametrize" in before.rsplit("\n\n\n", 1)[-1])
            named.update(dict.fromkeys(re.findall(r'"(SF\d{3})\b', function), forms))
    trainers = (TESTS / "checks" / "trainers.py").read_text(encoding="utf-8")
    return named + Counter(re.findall(r'\(\s*"(SF\d{3})\b', trainers))


def test_every_code_is_triggered_by_a_case_or_named_by_a_test() -> None:
    assert sorted(set(load_rules()) - {*_in_cases()} - {*_in_tests()}) == []


def test_codes_of_meaning_have_two_forms() -> None:
    cases = _in_cases()  # a code that only tests name may have one test with several parameters
    forms = cases + _in_tests()
    assert [code for code in _of_meaning() if cases[code] and forms[code] < 2] == []


def test_codes_of_meaning_have_a_healthy_look_alike() -> None:
    loud = {code for code, severity in _of_meaning().items() if severity in ("error", "warning")}
    alike = {code for case in HEALTHY for code in case.resembles} | {*IN_TESTS}
    assert sorted(loud - alike) == []
    assert sorted(alike - loud) == []
