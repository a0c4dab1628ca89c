"""The way in for files and texts from outside: run folders, model folders, adapters, dataset cards.

A JSON or YAML file becomes a typed value here, or an error that names the file and the place in it.
A library that reads a foreign file is called inside `library_reads`, which turns whatever it raises
into such an error: exceptions of every type, and panics of Rust libraries.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from traceback import walk_tb
from typing import Any, TypeVar, cast

import yaml

from surefit.errors import SurefitError, UsageError, describe_error

T = TypeVar("T")
RESTORE = "Restore it from a copy. `surefit verify RUN` names the damaged files of a run."
PACKAGE = Path(__file__).parents[1]
WRONG_CONTENT = (
    *(ValueError, LookupError, TypeError, AttributeError, AssertionError),
    *(RecursionError, ArithmeticError, MemoryError),
)
"""What the use of a value raises if the file does not have what was written."""
MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 100_000
MAX_DIGITS = 100
"""Bounds of YAML: its text, its nesting, and its values with all aliases written out."""


def read_json(path: Path, kind: type[T], fix: str = RESTORE) -> T:
    """Return the JSON of a file as a value of `kind`; raise UsageError if it is no such value.

    `kind` is any type that pydantic validates: a model, a dataclass, `dict[str, int]`. Numbers
    and texts are not converted into each other.
    """
    return parse_json(_read_bytes(path, fix), kind, str(path), fix)


def _read_bytes(path: Path, fix: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.", fix) from None


def parse_json(text: str | bytes, kind: type[T], name: str, fix: str = RESTORE) -> T:
    """Return the JSON of a text as a value of `kind`; `name` is the file or message it is from.

    >>> parse_json('{"step": 3}', dict[str, int], "state.json")
    {'step': 3}
    >>> parse_json('{"step": "x"}', dict[str, int], "state.json")
    Traceback (most recent call last):
    ...
    surefit.errors.UsageError: state.json is damaged, or is not what surefit expects: step: ...
    """
    from pydantic import ValidationError

    try:
        return cast(T, _adapter(cast(Hashable, kind)).validate_json(text, strict=True))
    except ValidationError as error:
        fault = error
    try:
        if fault.errors()[0]["type"] == "json_invalid":
            # pydantic refuses lone surrogates and 200 levels, which Python writes and others read.
            loaded = json.loads(text if isinstance(text, str) else text.decode())
            return cast(T, _adapter(cast(Hashable, kind)).validate_python(loaded))
    except ValidationError as error:
        fault = error
    except (ValueError, RecursionError):  # no JSON for Python either
        pass
    raise _damaged(name, _first_fault(fault), fix) from None


def check_unicode(path: Path) -> None:
    """Raise a UsageError about a JSON file with lone surrogates, which no other file can hold."""
    with content_of(path):
        json.dumps(json.loads(path.read_bytes()), ensure_ascii=False).encode()


def read_yaml(path: Path, kind: type[T], fix: str) -> T:
    """Return the YAML of a file as a value of `kind`; raise UsageError if it is no such value."""
    return parse_yaml(_read_bytes(path, fix), kind, str(path), fix)


def parse_yaml(
    text: str | bytes, kind: type[T], name: str, fix: str = "Correct the YAML there."
) -> T:
    """Return the YAML of a text as a value of `kind`; `name` is the file or option it is from.

    YAML makes no objects of Python, and has no key twice. Numbers and texts are not converted into
    each other.

    >>> parse_yaml("lr: [1, 2]", dict[str, list[int]], "run.yaml")
    {'lr': [1, 2]}
    >>> parse_yaml("lr: 1\\nlr: 2", dict[str, int], "run.yaml")
    Traceback (most recent call last):
    ...
    surefit.errors.UsageError: run.yaml, line 2, column 1: not valid YAML (the key 'lr' occurs ...
    """
    from pydantic import ValidationError

    try:
        value = _load_yaml(text if isinstance(text, str) else text.decode())
        return cast(T, _adapter(cast(Hashable, kind)).validate_python(value, strict=True))
    except ValidationError as error:
        raise UsageError(
            f"{name} is not what surefit expects: {_first_fault(error)}", fix
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(f"{name}{place}: not valid YAML ({error.problem}).", fix) from None
    except (yaml.YAMLError, *WRONG_CONTENT) as error:
        raise UsageError(f"{name} is not valid YAML: {error}", "Save it as UTF-8 text.") from None


def _load_yaml(text: str) -> Any:
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"it has {len(text):,} characters; expected up to {MAX_CHARACTERS:,}")
    loader = _BoundedLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _BoundedLoader(yaml.SafeLoader):
    """Counts what it composes; an alias counts as much as what it stands for."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.counts: dict[int, int] = {}
        """The values in a finished node, by its identity."""
        self.num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        before, self.depth = self.num_nodes, self.depth + 1
        if self.depth > MAX_DEPTH:
            raise _fault(f"nested deeper than {MAX_DEPTH} levels", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if is_alias and id(node) not in self.counts:
            raise _fault("an alias stands inside of what it stands for", mark)
        self.num_nodes += self.counts[id(node)] if is_alias else 1
        if self.num_nodes > MAX_NODES:
            raise _fault(f"more than {MAX_NODES:,} values, with aliases written out", mark)
        self.counts.setdefault(id(node), self.num_nodes - before)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (key.tag, key.value) in seen:
                raise _fault(f"the key {key.value!r} occurs twice", key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def _bounded_int(loader: _BoundedLoader, node: yaml.ScalarNode) -> int:
    """Read a whole number; one in base 60 (9:9:9…) could be too large to be shown."""
    if len(node.value) > MAX_DIGITS:
        raise _fault(f"a number of more than {MAX_DIGITS} digits", node.start_mark)
    return int(loader.construct_yaml_int(node))


_BoundedLoader.add_constructor("tag:yaml.org,2002:int", _bounded_int)


def _fault(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _first_fault(error: Any) -> str:
    """Return place, fault and value of the first fault that pydantic found."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    found = "" if first["type"] == "json_invalid" else f", found {first['input']!r:.80}"
    return f"{place + ': ' if place else ''}{first['msg']}{found}"


@contextmanager
def content_of(place: str | Path, fix: str = RESTORE) -> Iterator[None]:
    """Report a value from `place` that cannot be used as damage of it, not as an internal error.

    What the user's own code raises stays as it is.
    """
    try:
        yield
    except WRONG_CONTENT as error:
        if is_of_own_code(error):
            raise
        raise _damaged(place, describe_error(error)[:200], fix) from error


def is_of_own_code(error: BaseException) -> bool:
    """Return whether code that is neither surefit nor installed in Python was being called."""
    known = tuple(map(str, (PACKAGE, sys.prefix, sys.base_prefix, "<")))
    inside = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)][2:]
    return any(not file.startswith(known) for file in inside)


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError for a name that is none of a file inside the folder of its list.

    >>> check_names(["a/b.json"]); check_names(["../b.json"])
    Traceback (most recent call last):
    ...
    ValueError: '../b.json' is not the name of a file inside the folder
    """
    for name in names:
        path, odd = PurePosixPath(name), "\0" in name or not name.isprintable()
        if odd or path.is_absolute() or not 0 < len(name) < 256 or ".." in path.parts:
            raise ValueError(f"{name[:80]!r} is not the name of a file inside the folder")


@contextmanager
def library_reads(what: str, fix: str) -> Iterator[None]:
    """Raise a UsageError that begins with `what` for any failure of a library on foreign data.

    Panics of Rust libraries (`PanicException`) are BaseExceptions, which nothing else catches.
    """
    try:
        yield
    except BaseException as error:
        if not is_library_failure(error):
            raise
        raise UsageError(f"{what}: {first_line(error)}", fix) from error


def is_library_failure(error: BaseException) -> bool:
    """Return whether a library raised this: no error of surefit, no signal, but also a panic.

    >>> [is_library_failure(each) for each in (KeyError("a"), KeyboardInterrupt(), UsageError(""))]
    [True, False, False]
    """
    if isinstance(error, Exception):
        return not isinstance(error, SurefitError)
    return type(error).__name__ == "PanicException"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type where it has none.

    >>> first_line(ValueError("no rows\\n in a.csv"))
    'no rows'
    """
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _damaged(place: str | Path, fault: str, fix: str) -> UsageError:
    return UsageError(f"{place} is damaged, or is not what surefit expects: {fault}", fix)
