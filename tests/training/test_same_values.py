"""All processes take the buffers of the first, whatever their dtypes and shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import torch
from forked_processes import run, start_group
from surefit.processes import num_processes, process_index
from surefit.training.same_values import take_from_first, take_together

DTYPES = [torch.bool, torch.int16, torch.float64, torch.float16, torch.uint8, torch.complex64]

def compare():
    start_group(num_processes())
    own = process_index()
    for take in (take_from_first, take_together):
        found = [torch.full((3,), 1 - own).to(dtype) for dtype in DTYPES]
        found += [torch.tensor(1.0 - own), torch.zeros(0), torch.full((3, 2), 1.0 - own).t()]
        take(found)
        assert all(bool((each == 1).all()) for each in found), (take, found)

assert run(2, compare) == [0, 0]
"""


@pytest.mark.processes
def test_any_dtype_is_taken_from_the_first() -> None:
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(root / "tests")))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
