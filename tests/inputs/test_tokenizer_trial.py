"""A new tokenizer is tried in a child with limits; what would abort or never end is a finding."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from builders import mostly_slow
from surefit.errors import FindingError
from surefit.inputs import tokenizer_trial
from surefit.inputs.batch_tokenizing import tokenize
from surefit.inputs.tokenizer import load_tokenizer, train_tokenizer
from surefit.inputs.tokenizer_trial import try_tokenizer

REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
SPLIT = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
HOSTILE = {
    "doubles without end": (
        {"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 40}},
        "GB",
    ),
    "prepends": (
        {"normalizer": {"type": "Prepend", "prepend": "ab " * 100_000}},
        "tokens of a text",
    ),
    "matches without end": ({"pre_tokenizer": SPLIT}, "retry-limit"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved tokenizer."""
    tokenizer_trial._held.clear()
    train_tokenizer(["some words of a text"] * 9, 300).save_pretrained(tmp_path)
    return tmp_path


def change(folder: Path, changes: dict[str, Any]) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


@pytest.mark.parametrize("name", mostly_slow([*HOSTILE][::-1], every=2))
def test_a_hostile_tokenizer_is_a_finding_that_names_the_file(name: str, folder: Path) -> None:
    changes, said = HOSTILE[name]
    path = change(folder, changes)
    with pytest.raises(FindingError, match=said) as caught:
        load_tokenizer(str(folder))
    assert caught.value.findings[0].code == "SF278"
    assert str(path) in caught.value.message
    assert not tokenizer_trial._record().exists()


def test_a_tokenizer_that_held_is_not_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ran = folder / "tokenizer.json", []
    run = tokenizer_trial._run
    monkeypatch.setattr(tokenizer_trial, "_run", lambda *given: ran.append(1) or run(*given))
    assert try_tokenizer(path) is None
    tokenizer_trial._held.clear()  # as in another process
    assert try_tokenizer(path) is None
    assert len(ran) == 1
    change(folder, {"normalizer": {"type": "NFC"}})
    assert try_tokenizer(path) is None
    assert len(ran) == 2
    assert len(json.loads(tokenizer_trial._record().read_text())) == 2


def test_a_record_that_cannot_be_written_stops_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", os.devnull)
    assert try_tokenizer(folder / "tokenizer.json") is None


def test_a_word_without_a_token_names_the_text() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()

    class Fast:
        backend_tokenizer = tokenizer

    with pytest.raises(FindingError, match=r"fails on the text 'b c': .*\[UNK\]"):
        tokenize(Fast(), ["a", "b c"], special=False)
