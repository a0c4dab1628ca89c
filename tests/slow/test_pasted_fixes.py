"""Options in the fix of a finding, pasted as they are: they work, and the finding is gone."""

from __future__ import annotations

import random
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from faults.case import Case, run
from faults.every import FAULTS
from faults.pasted import lines_in

SIZE = 60
CASES = [case for cases in FAULTS.values() for case in cases if case.needs is None]
SAMPLE = random.Random(15).sample(CASES, SIZE)


@pytest.mark.slow
@pytest.mark.rate_trial
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
