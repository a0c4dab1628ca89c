"""Numbers as people write them in text files."""

from __future__ import annotations

import re

INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
NUMBER = re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
"""What is read as a number. Digits after a leading zero are a code, such as a postal code."""

_CODE = re.compile(r"[+-]?0\d+(\.\d+)?")
_OTHER_NOTATION = re.compile(
    r"[+\-−]?\s?[$€£¥₹]?\s?\d+([.,'’_\s]\d+)*\s?[%$€£¥₹]?",
)
MISSING_MARKERS = frozenset(
    (
        *("n/a", "na", "nan", "-nan", "null", "none", "nil", "<na>", "#n/a", "#na"),
        *("-", "--", "–", "—", "?", ".", "#value!", "#div/0!", "#ref!"),
    )
)
"""What people, spreadsheets, R and pandas write for a missing value, in lower case."""


def read_number(text: str) -> float | None:
    """The number in a text; None if it is not a number.

    >>> read_number("12.5"), read_number("12,5"), read_number("007")
    (12.5, None, None)
    """
    text = text.strip()
    return float(text) if NUMBER.fullmatch(text) else None


def is_code(text: str) -> bool:
    """Whether a text is digits with a leading zero, which conversion to a number would lose."""
    return _CODE.fullmatch(text) is not None


def is_almost_number(text: str) -> bool:
    """Whether a text is a number in another notation, or a marker for a missing value.

    >>> [is_almost_number(text) for text in ("12,5", "1 234", "€5", "15%", "n/a", "12 kg")]
    [True, True, True, True, True, False]
    """
    return text.casefold() in MISSING_MARKERS or _OTHER_NOTATION.fullmatch(text) is not None
