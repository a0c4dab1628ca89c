"""What a cause consists of: the messages it is recognised by, why it happens, the fix; and the
explanation it becomes: text for people, a dict for machines.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

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


TO_SEND = (
    "the last 40 lines of the output, with the whole traceback",
    "the versions of python, torch, transformers, accelerate, peft and datasets",
    "the shapes and dtypes of the batch, without its values",
    "the command or the code that started the run",
)


@dataclass(frozen=True)
class Evidence:
    """The line of the text that shows the cause, and the values in that line."""

    line: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """The cause of a failure, or that it is unknown. `print` shows it for people."""

    known: bool
    evidence: Evidence
    code: str | None = None
    title: str | None = None
    cause: str | None = None
    derived: tuple[str, ...] = ()
    fix: str | None = None
    surefit: str | None = None
    does_not_help: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as `surefit explain --json` prints it; what is unknown is null."""
        return {
            "known": self.known,
            "code": self.code,
            "title": self.title,
            "cause": self.cause,
            "evidence": {"line": self.evidence.line, "values": dict(self.evidence.values)},
            "derived": list(self.derived),
            "fix": self.fix,
            "surefit": self.surefit,
            "does_not_help": list(self.does_not_help),
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "send": [] if self.known else list(TO_SEND),
        }

    def __str__(self) -> str:
        if not self.known:
            return self._unknown()
        parts = [f"{self.code}  {self.title}", "", *_block("evidence", self.evidence.line)]
        parts += _block("values", _list_values(self.evidence.values))
        parts += _block("cause", self.cause or "")
        for line in self.derived:
            parts += _block("derived", line)
        parts += _block("shapes", _list_shapes(self.shapes))
        parts += _block("fix", self.fix or "")
        parts += _block("in surefit", self.surefit or "")
        for line in self.does_not_help:
            parts += _block("not a fix", line)
        return "\n".join(parts)

    def _unknown(self) -> str:
        parts = ["unknown: surefit does not know the cause of this failure."]
        parts += ["", *_block("last error", self.evidence.line or "the text has none")]
        parts += _block("shapes", _list_shapes(self.shapes))
        parts += ["", "To get help, send:"]
        return "\n".join([*parts, *(f"  - {item}" for item in TO_SEND)])


def _list_values(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _list_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def _block(name: str, text: str) -> list[str]:
    if not text:
        return []
    return textwrap.wrap(
        text,
        width=98,
        initial_indent=f"{name:<12}",
        subsequent_indent=" " * 12,
        break_on_hyphens=False,
        break_long_words=False,
    )
