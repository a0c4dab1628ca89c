"""What only a CUDA device can show: `pytest -m gpu`. Without one these tests fail, not skip."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from surefit.selftest.check_child import run_check
from surefit.selftest.registry import CHECKS

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def device() -> str:
    assert torch.cuda.is_available(), "pytest -m gpu needs a CUDA device, and there is none"
    return "cuda"


@pytest.mark.parametrize("name", CHECKS)
def test_selftest(name: str, device: str, tmp_path: Path) -> None:
    outcome = run_check(name, device, tmp_path)
    if outcome.status == "skipped":
        pytest.skip(outcome.message)
    assert outcome.status == "passed", (outcome.message, outcome.figures)
