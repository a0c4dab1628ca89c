"""Numbers that a text contains, read without an error whatever the text is.

A number that cannot be read is None. The type checker then makes every caller decide what to do
without it.
"""

from __future__ import annotations

import re

MAX_DIGITS = 15
"""Numbers with more digits are no sizes of tensors. Below it, products and quotients are exact."""

WHOLE = re.compile(rf"-?\d{{1,{MAX_DIGITS}}}")
DECIMAL = re.compile(r"\d{1,15}(?:\.\d{0,15})?(?:[eE][-+]?\d{1,2})?|nan|inf", re.IGNORECASE)


def read_whole(text: str) -> int | None:
    """Read a whole number.

    >>> read_whole("512"), read_whole("-1"), read_whole("1.5"), read_whole("9" * 5000)
    (512, -1, None, None)
    """
    return int(text) if WHOLE.fullmatch(text) else None


def read_decimal(text: str) -> float | None:
    """Read a number with or without a fraction, NaN and infinity included.

    >>> read_decimal("1.5"), read_decimal("2e-3"), read_decimal("1.2.3")
    (1.5, 0.002, None)
    """
    return float(text) if DECIMAL.fullmatch(text) else None


def factor(whole: int, part: int) -> int | None:
    """How many times `part` goes into `whole`, or None unless it does exactly, twice or more.

    >>> factor(640, 32), factor(640, 33), factor(640, 640), factor(640, 0)
    (20, None, None, None)
    """
    if part <= 0 or whole <= part or whole % part:
        return None
    return whole // part
