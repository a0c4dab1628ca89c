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
    monkeypatch.setattr(patterns, "CPU_SECONDS", 0.3)
    with pytest.raises(UsageError, match=r"lora\.targets: the regular expression"):
        matching("(.*.*.*.*.*.*.*.*.*.*)*x", ["a" * 60, *NAMES], "lora.targets")


def test_plain_names_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns.subprocess, "Popen", json.loads)
    assert matching("q_proj", ["q_proj", "k_proj"], "lora.targets") == {"q_proj"}


def test_texts_are_matched_in_their_order_with_their_groups() -> None:
    texts = [(n, f"{n}: a\ud800\n{'b' * (n % 7)}" if n % 3 else "no") for n in range(3000)]
    with patterns.matcher(r"(?P<n>\d+): (?P<rest>(?s:.*))(x)?", "read.pattern") as found:
        assert (found.num_groups, dict(found.names)) == (3, {"n": 1, "rest": 2})
        answers = list(found.each(texts))
    assert [(n, text) for n, text, _ in answers] == texts
    for n, text, groups in answers:
        assert groups == ([text, str(n), text.partition(": ")[2], None] if n % 3 else None)


def test_a_long_text_is_asked_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "ASKED_CHARACTERS", 10)
    with patterns.matcher("a*", "read.pattern") as found:
        answers = found.each([(n, "a" * n) for n in (0, 30, 4, 5, 6, 99)], "search")
        assert [len((groups or [""])[0] or "") for _, _, groups in answers] == [0, 30, 4, 5, 6, 99]


@pytest.mark.parametrize("pattern", ["(", "(" * 5000, "a{99999999999999999999}", "\ud800("])
def test_what_is_no_pattern_says_so(pattern: str) -> None:
    with pytest.raises(patterns.NoPatternError), patterns.matcher(pattern, "read.pattern"):
        pass


def test_a_pattern_that_takes_long_to_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "CPU_SECONDS", 0.3)
    with pytest.raises(UsageError, match=r"read\.label_from: the regular expression"):
        patterns.num_groups("(?i)" + "[^\\x00-\U0010fff0]" * 200, "read.label_from")
