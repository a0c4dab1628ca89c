"""What a cause consists of: the messages it is recognised by, why it happens, and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

Value = int | str


@dataclass(frozen=True)
class Message:
    """One wording of an error message, as a regular expression with named groups.

    The pattern is searched in the message after every run of white space became one space. The
    named groups are the values that `Context` gives. Limit every repetition of letters or of any
    character (`\\w{1,60}`, `.{0,80}`), so that no text makes the search slow.

    `seen` names an issue (owner/repository#number) that quotes this wording. A wording without one
    is raised by a test. Set `needs_library` for words that other software uses as well: the text
    must then name a training library, or be no traceback.
    """

    pattern: str
    seen: str = ""
    needs_library: bool = False

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """Return the compiled pattern."""
        return re.compile(self.pattern)

    @property
    def is_anchored(self) -> bool:
        """Return whether the pattern matches only at the beginning or the end of a line."""
        return self.pattern.removeprefix("(?i)").startswith("^") or self.pattern.endswith("$")


@dataclass(frozen=True)
class Context:
    """What a cause is derived from: the values of the message, the whole text, known shapes."""

    values: Mapping[str, Value] = field(default_factory=dict)
    text: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """Return a value that is a whole number; None if the message has no such value."""
        value = self.values.get(name)
        return value if isinstance(value, int) else None

    def word(self, name: str) -> str:
        """Return a value as text; empty if the message has no such value."""
        return str(self.values.get(name, ""))


@dataclass(frozen=True)
class Cause:
    """One cause of failures.

    `fix` is for users of torch and transformers. `in_surefit` says what surefit does about it.
    `derive` returns conclusions from the values and the text, or none. `only_if` decides from the
    whole text where a pattern is not enough. A cause with `is_warning` stops no run: it explains a
    text only if nothing else in it does.
    """

    code: str
    title: str
    messages: tuple[Message, ...]
    why: str
    fix: str
    in_surefit: str = ""
    does_not_help: tuple[str, ...] = ()
    derive: Callable[[Context], list[str]] | None = None
    only_if: Callable[[Context], bool] | None = None
    is_warning: bool = False
