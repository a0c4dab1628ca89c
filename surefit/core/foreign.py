"""The way in for files and texts from outside: run folders, model folders, adapters, dataset cards.

A JSON or YAML file becomes a typed value here, or an error that names the file and the place in it.
A library that reads a foreign file is called inside `library_reads`, which turns whatever it raises
into such an error: exceptions of every type, and panics of Rust libraries.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from surefit.errors import SurefitError, UsageError, describe_error

T = TypeVar("T")
RESTORE = "Restore it from a copy. `surefit verify RUN` names the damaged files of a run."
WRONG_CONTENT = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What the use of a value raises if the file does not have what was written."""


def read_json(path: Path, kind: type[T], fix: str = RESTORE) -> T:
    """Return the JSON of a file as a value of `kind`; raise UsageError if it is no such value.

    `kind` is any type that pydantic validates: a model, a dataclass, `dict[str, int]`. Numbers
    and texts are not converted into each other.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.", fix) from None
    return parse_json(text, kind, str(path), fix)


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
        raise _damaged(name, _first_fault(error), fix) from None


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
    """Report a value from `place` that cannot be used as damage of it, not as an internal error."""
    try:
        yield
    except WRONG_CONTENT as error:
        raise _damaged(place, describe_error(error)[:200], fix) from error


@contextmanager
def library_reads(what: str, fix: str) -> Iterator[None]:
    """Raise a UsageError that begins with `what` for any failure of a library on foreign data.

    Panics of Rust libraries (`PanicException`) are BaseExceptions, which nothing else catches.
    """
    try:
        yield
    except SurefitError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UsageError(f"{what}: {first_line(error)}", fix) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type where it has none.

    >>> first_line(ValueError("no rows\\n in a.csv"))
    'no rows'
    """
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _damaged(place: str | Path, fault: str, fix: str) -> UsageError:
    return UsageError(f"{place} is damaged, or is not what surefit expects: {fault}", fix)
