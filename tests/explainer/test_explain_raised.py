"""The installed libraries raise every message of every cause, or an issue quotes it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from explainer.raised import hf_messages, torch_messages
from explainer.raised.cited import CITED

import surefit
from surefit.explainer.cause import Context
from surefit.explainer.causes import CAUSES
from surefit.explainer.log_reading import read_log
from surefit.explainer.match import _values

RAISED = {**torch_messages.RAISED, **hf_messages.RAISED}
CITATION = re.compile(r"[\w.-]+/[\w.-]+#\d+|seed 00\d")


def outcome(call: Callable[[Path], Any], folder: Path) -> Exception | str:
    """The exception of a call, or the warning it returned; empty if there was neither."""
    try:
        said = call(folder)
    except Exception as error:
        return error
    return said if isinstance(said, str) else ""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exception | str]:
    """What each call ends with; run once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        return {
            name: outcome(call, tmp_path_factory.mktemp("raised"))
            for name, (_, call) in RAISED.items()
        }


def test_there_are_no_two_cases_of_one_name() -> None:
    assert len(RAISED) == len(torch_messages.RAISED) + len(hf_messages.RAISED)


@pytest.mark.parametrize("name", RAISED)
def test_raised_messages_are_explained(name: str, outcomes: dict[str, Exception | str]) -> None:
    found = surefit.explain(outcomes[name])
    assert found.known, f"{outcomes[name]!r}"
    assert found.code == RAISED[name][0], f"{outcomes[name]!r}\n{found}"
    assert found.evidence.line
    assert found.cause
    assert found.fix


def test_every_message_is_raised_or_cited(outcomes: dict[str, Exception | str]) -> None:
    raised = set()
    for said in outcomes.values():
        text = said if isinstance(said, str) else "".join(traceback.format_exception(said))
        log = read_log(text)
        lines = [*log.root_messages(), *log.named_errors(), log.joined]
        for cause in CAUSES.values():
            for message in cause.messages:
                for found in filter(None, map(message.regex.search, lines)):
                    if cause.only_if is None or cause.only_if(Context(_values(found), log.text)):
                        raised.add((cause.code, message.pattern))
    quoted = {(issue, code) for issue, code, _ in CITED}
    for cause in CAUSES.values():
        for message in cause.messages:
            cited = (message.seen, cause.code) in quoted
            assert cited or (cause.code, message.pattern) in raised, (
                f"{cause.code}: {message.pattern}"
            )


@pytest.mark.parametrize(("issue", "code", "message"), CITED, ids=lambda part: part[:40])
def test_cited_messages_are_explained_by_the_pattern_that_cites_them(
    issue: str, code: str, message: str
) -> None:
    assert CITATION.fullmatch(issue)
    found = surefit.explain(message)
    assert found.code == code, f"{found}"
    citing = [known for known in CAUSES[code].messages if known.seen == issue]
    assert any(known.regex.search(" ".join(message.split())) for known in citing)
