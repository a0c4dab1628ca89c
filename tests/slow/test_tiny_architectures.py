"""Every architecture that `tiny:` lists is built and stepped."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from surefit.models.tiny_architectures import FAMILIES
from surefit.models.tiny_config import TinySizes

pytestmark = pytest.mark.slow

AT_LEAST = {"causal-lm": 120, "masked-lm": 35, "seq2seq": 15, "image-classification": 10}


@pytest.fixture(scope="module")
def scan() -> Any:
    """The script that the lists were made with."""
    path = Path(__file__).resolve().parents[2] / "bench" / "scan_tiny.py"
    spec = importlib.util.spec_from_file_location("scan_tiny", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("family", AT_LEAST)
def test_listed_architectures_are_built_and_stepped(family: str, scan: Any) -> None:
    sizes = TinySizes(scan.VOCAB_SIZE)
    reasons = scan.try_all(family, FAMILIES[family], sizes)
    assert {arch: reason for arch, reason in reasons.items() if reason} == {}
    assert len(reasons) >= AT_LEAST[family]
