"""Foreign text becomes a typed value, or an error that names the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from surefit.core.foreign import content_of, library_reads, parse_json, read_json
from surefit.errors import UsageError


@dataclass(frozen=True)
class State:
    step: int
    files: list[str]


def test_json_becomes_a_value_of_its_type(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('{"step": 3, "files": ["a"]}')
    assert read_json(path, State) == State(3, ["a"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "EOF"),
        ('{"step": 3', "EOF"),
        ("[" * 100_000, "recursion limit"),
        ('{"step": "3", "files": []}', "step: Input should be a valid integer, found '3'"),
        ('{"step": 3}', "files: "),
        ('{"step": 1e999, "files": []}', "step: "),
        ('{"step": 3, "files": [null]}', "files.0: "),
        (b"\xff\xfe", "invalid unicode|expected value"),
    ],
)
def test_damage_names_the_file_and_the_place(tmp_path: Path, text: str | bytes, said: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=rf"state\.json is damaged.*({said})"):
        read_json(path, State)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.json cannot be read: No such file"):
        read_json(tmp_path / "absent.json", State)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(UsageError) as raised:
        parse_json('{"step": "' + "x" * 10_000 + '", "files": []}', State, "state.json")
    assert len(raised.value.message) < 300


class PanicException(BaseException):  # as pyo3 calls it
    pass


@pytest.mark.parametrize("error", [OSError("no such blob"), PanicException("unwrap on None")])
def test_a_failure_of_a_library_names_the_file(error: BaseException) -> None:
    with (
        pytest.raises(UsageError, match=r"tokenizer\.json: (no such blob|unwrap)"),
        library_reads("tokenizer.json", "Download it again."),
    ):
        raise error


def test_a_panic_of_the_tokenizers_library_is_an_error_of_its_file() -> None:
    from tokenizers import Tokenizer

    broken = (
        '{"version": "1.0", "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AA=="}'
    )
    with pytest.raises(UsageError, match=r"^t: "), library_reads("t", "Download it again."):
        Tokenizer.from_str(broken + ', "model": {"type": "BPE", "vocab": {}, "merges": []}}')


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), UsageError("is clear")])
def test_interrupts_and_our_own_errors_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, library_reads("tokenizer.json", "fix"):
        raise error
    assert raised.value is error


def test_values_that_cannot_be_used_are_damage_of_their_file() -> None:
    with pytest.raises(UsageError, match=r"plan\.json is damaged.*'task'"), content_of("plan.json"):
        {}["task"]
