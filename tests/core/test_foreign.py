"""Foreign text becomes a typed value, or an error that names the file."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import surefit
from surefit.core.digests import Listing
from surefit.core.foreign import content_of, library_reads, parse_json, parse_yaml, read_json
from surefit.errors import UsageError
from surefit.models.load_shards import WeightIndex
from surefit.run.checkpoints import Index


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


def test_text_with_lone_surrogates_is_read_as_python_writes_it() -> None:
    """File names that are not UTF-8 have them, and readers of model configs accept them."""
    text = json.dumps({"step": 3, "files": ["a\udcff"]})
    assert parse_json(text, State, "state.json") == State(3, ["a\udcff"])
    assert parse_json(text, dict[str, Any], "state.json")["files"] == ["a\udcff"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step: x", r"run\.yaml is not what surefit expects: step: .*valid integer, found 'x'"),
        ("step: [1", r"run\.yaml, line 1, column 9: not valid YAML"),
        ("step: 1\nstep: 2", r"run\.yaml, line 2, column 1: .*'step' occurs twice"),
        ("step: 2024-13-45", r"run\.yaml is not valid YAML: month"),
        (b"step: \xff", r"run\.yaml is not valid YAML: 'utf-8'"),
    ],
)
def test_yaml_faults_name_the_file_and_the_place(text: str | bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_yaml(text, dict[str, int], "run.yaml")


DATA_READERS = {
    "data/formats/json_rows.py": "rows of the user",
    "data/formats/jsonl.py": "rows of the user",
    "data/stored_messages.py": "messages in rows of the user",
}
OWN_TEXTS = {
    "cli/selftest.py": "what the command that it started printed",
    "core/patterns.py": "what the child that matches printed",
    "inputs/audio/audio_format.py": "settings as the key of a cache in memory",
    "inputs/tokenizer.py": "the state of a tokenizer in memory",
    "plan/make_plan.py": "configs that processes of one run exchange",
    "targets/tokens.py": "texts that the encoder put into a column of numbers",
}
PARSERS = {
    "json": {"load", "loads", "JSONDecoder"},
    "yaml": {"load", "safe_load", "full_load", "unsafe_load", "load_all", "safe_load_all"},
    "tomllib": {"load", "loads"},
    "pickle": {"load", "loads", "Unpickler"},
}


def parser_calls(path: Path) -> list[str]:
    """The parsers that a module calls or imports by name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, names = node.value.id, [node.attr]
        elif isinstance(node, ast.ImportFrom):
            module, names = node.module or "", [alias.name for alias in node.names]
        else:
            continue
        found += [f"{module}.{name}" for name in names if name in PARSERS.get(module, ())]
    return found


def test_foreign_text_has_one_way_in() -> None:
    package = Path(surefit.__file__).parent
    calls = {
        path.relative_to(package).as_posix(): parser_calls(path) for path in package.rglob("*.py")
    }
    allowed = {"core/foreign.py", *DATA_READERS, *OWN_TEXTS}
    assert {file for file, found in calls.items() if found} == allowed


@pytest.mark.parametrize("name", ["../x", "/etc", "a/../../b", "a\0b", "\ud800", "", "a" * 300])
def test_a_list_of_files_names_none_outside_its_folder(name: str) -> None:
    listed = {"format_version": 1, "files": {name: {"bytes": 1, "xxh3_128": "0"}}}
    for kind, value in (
        (Listing, listed),
        (Index, {"model": {"w": [name]}, "optimizer": {}}),
        (WeightIndex, {"weight_map": {"w": name}}),
    ):
        with pytest.raises(UsageError, match=r"list\.json is damaged"):
            parse_json(json.dumps(value), kind, "list.json")


def test_what_own_code_raises_is_not_damage_of_a_file(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    own = compile("def own(): raise ValueError('mine')", str(tmp_path / "net.py"), "exec")
    exec(own, namespace)
    with pytest.raises(ValueError, match=r"^mine$"):
        _use(namespace["own"])
    with pytest.raises(UsageError, match="model is damaged"):
        _use(partial(json.loads, "{"))


def _use(call: Any) -> None:
    from surefit.core import foreign

    exec(  # as a module of surefit would
        compile("with content_of('model'):\n    call()", foreign.__file__, "exec"),
        {"content_of": content_of, "call": call},
    )
