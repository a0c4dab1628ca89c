"""What a cause consists of: the messages it is recognised by, why it happens, and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

TOKEN = re.compile(
    r"(?P<literal>\\\W|[^\\\[(){|.^$*+?])"
    r"|(?P<quantifier>[*+?]\??|\{\d*,?\d*\}\??)"
    r"|(?P<open>\((?:\?(?:[:=!]|<[=!]|P<\w+>|P=\w+|[aimsux]+))?)"
    r"|(?P<close>\))"
    r"|(?P<bar>\|)"
    r"|(?P<other>\\\w|\[\^?\]?(?:\\.|[^\]\\])*\]|[.^$]|\{)",
    re.DOTALL,
)


def required_phrases(pattern: str) -> tuple[str, ...]:
    """One phrase per alternative of a pattern: a text without any of them cannot match.

    Groups are skipped. An alternative without a phrase of its own gives no phrases at all.

    >>> required_phrases(r"expected (?:m1|mat1) and [mat]+2 to have the same dtype")
    ('2 to have the same dtype',)
    >>> required_phrases(r"ncclSystemError|ncclInternalErrors?")
    ('ncclSystemError', 'ncclInternalError')
    >>> required_phrases(r"\\w+|(?:a|b)")
    ()
    """
    alternatives = [max(pieces, key=len) for pieces in _pieces(pattern)]
    return tuple(alternatives) if all(alternatives) else ()


def _pieces(pattern: str) -> list[list[str]]:
    """The literal pieces outside groups, per alternative."""
    alternatives = [[""]]
    depth = 0
    for token in TOKEN.finditer(pattern):
        pieces, text = alternatives[-1], token[0]
        if token.lastgroup == "close":
            depth -= 1
        elif token.lastgroup == "open":
            depth += 1
            pieces.append("")
        elif depth:
            continue
        elif token.lastgroup == "literal":
            pieces[-1] += text[-1]
        elif token.lastgroup == "bar":
            alternatives.append([""])
        else:
            if text[0] in "*?" or text.startswith(("{0", "{,")):  # the character may be missing
                pieces[-1] = pieces[-1][:-1]
            pieces.append("")
    return alternatives


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
        """The compiled pattern."""
        return re.compile(self.pattern)

    @cached_property
    def phrases(self) -> tuple[str, ...]:
        """Phrases of which a matching text has at least one, in lower case if case is ignored."""
        phrases = required_phrases(self.pattern)
        return tuple(phrase.lower() for phrase in phrases) if self.ignores_case else phrases

    @property
    def is_anchored(self) -> bool:
        """Whether the pattern matches only at the beginning or the end of a line."""
        return self.pattern.removeprefix("(?i)").startswith("^") or self.pattern.endswith("$")

    @property
    def ignores_case(self) -> bool:
        """Whether the pattern matches upper and lower case alike."""
        return self.pattern.startswith("(?i)")


@dataclass(frozen=True)
class Context:
    """What a cause is derived from: the values of the message, the whole text, known shapes."""

    values: Mapping[str, Value] = field(default_factory=dict)
    text: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """A value that is a whole number; None if the message has no such value."""
        value = self.values.get(name)
        return value if isinstance(value, int) else None

    def word(self, name: str) -> str:
        """A value as text; empty if the message has no such value."""
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
