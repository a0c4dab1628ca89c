"""What a cause of failure is made of: the forms of its message, why it happens, what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

Value = int | float | str


@dataclass(frozen=True)
class Form:
    """One wording of a message, as a pattern searched in its text with white space made single.

    `seen` names an issue (owner/repository#number) with that wording; without one, a test
    raises it. `libraries_only`: other software words it so, too, so a traceback must name a
    library of training.
    """

    pattern: str
    seen: str = ""
    libraries_only: bool = False

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, compiled when it is first needed."""
        return re.compile(self.pattern)


@dataclass(frozen=True)
class Context:
    """What there is to reason from: the values in the message, the whole text, known shapes."""

    values: Mapping[str, Value] = field(default_factory=dict)
    text: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """A value of the message that is a whole number."""
        return int(self.values[name])


@dataclass(frozen=True)
class Cause:
    """One cause: how it is recognised, why it happens, the fix, and what does not help.

    `fix` is in terms of torch and transformers, `surefit` in those of this package. `derive`
    draws conclusions from the values. `only_if` looks at the whole text for what a pattern
    cannot say. A `notice` is a warning that stops nothing: it explains a text only if nothing
    else in it does.
    """

    code: str
    title: str
    forms: tuple[Form, ...]
    why: str
    fix: str
    surefit: str = ""
    not_help: tuple[str, ...] = ()
    derive: Callable[[Context], list[str]] | None = None
    only_if: Callable[[Context], bool] | None = None
    notice: bool = False
