"""How alike a generated text and the expected one are."""

from __future__ import annotations

import re
from collections import Counter


def words(text: str) -> list[str]:
    """Lower-case words and numbers, punctuation left out.

    >>> words("It's 3.5 km.")
    ["it's", '3.5', 'km']
    """
    return re.findall(r"\w+(?:['.,]\w+)*", text.lower())


def token_f1(expected: str, got: str) -> float:
    """F1 of the words two texts share, each counted as often as it occurs.

    >>> round(token_f1("the red house", "the house"), 3)
    0.8
    """
    wanted, made = Counter(words(expected)), Counter(words(got))
    if not wanted or not made:
        return float(wanted == made and expected.strip() == got.strip())
    shared = (wanted & made).total()
    return 2 * shared / (wanted.total() + made.total())


def exact_match(expected: str, got: str) -> float:
    """1 if the texts are equal but for the white space around them, else 0."""
    return float(expected.strip() == got.strip())
