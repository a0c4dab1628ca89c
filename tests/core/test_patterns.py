"""Patterns of strangers end: matched in a child process with limits."""

from __future__ import annotations

import json
import re

import pytest

from surefit.core import patterns
from surefit.core.patterns import matching
from surefit.errors import UsageError

NAMES = ("model.layers.0.q_proj", "model.layers.1.q_proj", "model.layers.1.mlp", "visual.q_proj")


@pytest.mark.parametrize(
    "pattern",
    [r".*\.q_proj", r"^(?!visual).*q_proj$", r"(.*\.)?(1\.mlp)", r"(\w+)\.\w+\.(\d).*\2.*", "["],
)
def test_a_pattern_means_what_re_says(pattern: str) -> None:
    try:
        expected = {name for name in NAMES if re.fullmatch(pattern, name)}
    except re.error:
        expected = set()
    assert matching(pattern, NAMES, "freeze") == expected


def test_a_pattern_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    child = patterns._CHILD.replace("RLIMIT_CPU, (2,", "RLIMIT_CPU, (1,")
    assert child != patterns._CHILD
    monkeypatch.setattr(patterns, "_CHILD", child)
    with pytest.raises(UsageError, match=r"lora\.targets: the regular expression"):
        matching("(.*.*.*.*.*.*.*.*.*.*)*x", ["a" * 60, *NAMES], "lora.targets")


def test_plain_names_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns.subprocess, "run", json.loads)
    assert matching("q_proj", ["q_proj", "k_proj"], "lora.targets") == {"q_proj"}
