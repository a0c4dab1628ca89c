"""The precision of a plan is that of the device it is for; emulated bf16 is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import sentiment_rows, write_jsonl
from surefit.cli.summary_lines import plan_lines
from surefit.errors import UsageError
from surefit.memory.devices import find_device
from surefit.plan.planned_precision import check_emulated, planned_precision


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [
        ("auto", "v100-32gb", "fp16"),
        ("auto", "t4-16gb", "fp16"),
        ("auto", "a100-80gb", "bf16"),
        ("fp32", "a100-80gb", "fp32"),
        ("bf16", "t4-16gb", "bf16"),
    ],
)
def test_the_planned_device_decides(precision: str, device: str, expected: str) -> None:
    assert planned_precision(precision, find_device(device).memory_gb, device) == expected
    emulated = [found.code for found in check_emulated(precision, device)]
    assert emulated == (["SF410"] if precision == "bf16" else [])


def test_bf16_where_it_exists_is_no_warning() -> None:
    assert not [*check_emulated("bf16", "a100-80gb")]
    assert not [*check_emulated("bf16", None)]


def test_the_plan_has_and_shows_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": write_jsonl(tmp_path / "rows.jsonl", sentiment_rows(40)),
        "model": "tiny:bert",
        "precision": "fp32",
    }
    plan = surefit.check(**options)
    assert plan.as_dict()["precision"] == "fp32"
    assert dict(plan_lines(plan))["device"].endswith("precision fp32")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("t4", "Did you mean t4-16gb?"),
        ("v100", "Did you mean v100-16gb or v100-32gb?"),
        ("A100", "Did you mean a100-40gb or a100-80gb?"),
        ("a100-80g", "Did you mean a100-80gb?"),
        ("mps", "leave it out"),
        ("cuda", "leave it out"),
        ("abacus", "Known are"),
    ],
)
def test_unknown_devices_say_what_to_do(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_device(name)
    assert hint in caught.value.fix
    assert ("Did you mean" in caught.value.fix) == ("Did you mean" in hint)
