"""Text of others, made safe to show: control characters appear as escapes, secrets not at all.

Data, names and messages can hold terminal codes, which would move the cursor, change colours or
rewrite lines, and marks that reorder text. The escapes are those of JSON, so that JSON stays JSON.
"""

from __future__ import annotations

import os
import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # bidi, invisible
    "\ud800-\udfff\U000e0000-\U000e0fff]"  # lone surrogates (undecodable names), tags
)
HIDDEN = "***"
SHORTEST_SECRET = 4
"""A shorter text may be part of any word; it is hidden where it is taken out of the URL."""
_urls: dict[str, str] = {}
_secrets: set[str] = set()


def name_copy(place: str | os.PathLike[str], url: str) -> None:
    """From now on, messages name `url` where they would name this folder of the cache."""
    for each in {os.fspath(place), os.path.realpath(place)}:
        _urls[each] = url.rstrip("/")


def add_secret(secret: str) -> None:
    """Redact a text in all messages from now on."""
    if len(secret) >= SHORTEST_SECRET:
        _secrets.add(secret)


def redact(text: str) -> str:
    """Return a text with URLs for the places of their copies, and without secrets."""
    for place in sorted(_urls, key=len, reverse=True):
        text = text.replace(place, _urls[place]) if place in text else text
    for secret in _secrets:
        text = text.replace(secret, HIDDEN)
    return text


def printable(text: str) -> str:
    r"""Return the text with escapes for all control characters but newline and tab.

    >>> print(printable("a\x1b[31mb\u202ec"))
    a\u001b[31mb\u202ec
    """
    return _UNSAFE.sub(_escape, text)


def one_line(text: str) -> str:
    r"""Return the text as one line: newlines are escaped as well.

    >>> print(one_line("two\nlines"))
    two\nlines
    """
    return printable(text).replace("\n", "\\n")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"
