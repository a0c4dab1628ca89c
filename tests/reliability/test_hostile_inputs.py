"""A seeded sample of the hostile inputs; `hostile_inputs.py` runs all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("hostile_inputs.py")
COUNT, SEED = 12, 16


@pytest.mark.slow
def test_a_sample_of_hostile_inputs_ends_as_it_should() -> None:
    command = [sys.executable, str(SCRIPT), "--count", str(COUNT), "--seed", str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert f"{COUNT} of {COUNT} cases" in done.stdout
