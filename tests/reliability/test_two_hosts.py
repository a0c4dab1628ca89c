"""A seeded sample of two_hosts.py: one host of two is killed, or cut off, and both resume."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("two_hosts.py")


@pytest.mark.processes
def test_the_other_host_ends_names_the_lost_one_and_both_resume() -> None:
    command = [sys.executable, str(SCRIPT), "--losses", "link", "--processes", "1", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.stdout.startswith("not run:"):
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 losses: the other host ended after" in done.stdout
