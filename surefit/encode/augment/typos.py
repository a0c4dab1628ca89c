"""typos: typing errors inside words, at a rate."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from surefit.encode.augment.words import Word, free_words, put

SHORTEST = 4
_NEGATIONS = {
    "never",
    "none",
    "nothing",
    "without",
    "except",
    "only",
    "less",
    "more",
    "least",
    "most",
}

_OTHER_WORDS = frozenset(
    {
        *("form", "from", "begin", "being", "trail", "trial", "quite", "quiet", "causal", "casual"),
        *("dairy", "diary", "untied", "united", "nuclear", "unclear", "brake", "tried", "tired"),
        *("latter", "dinner", "hopping", "supper", "comma", "planned", "tapped", "cannon", "loose"),
        *("grater", "steal", "salve", "slave", "sacred", "scared", "marital", "martial", "too"),
    }
)
"""Words with another meaning that a typing error may produce."""


def add_typos(text: str, kept: Collection[str], rng: np.random.Generator, rate: float) -> str:
    """A typing error in a `rate` of the words that may have one, and in at least one.

    These are free lower-case words of four letters or more. Their first and last letters are kept,
    so that they stay readable. Words that negate (never, without) are kept.

    >>> add_typos("please describe the weather", (), np.random.default_rng(1), rate=0.1)
    'please describe the weatehr'
    """
    words = [word for word in free_words(text, kept) if _may_change(word)]
    if not words:
        return text
    hit = rng.random(len(words)) < rate
    hit[rng.integers(len(words))] = True
    changed = [(w, _misspell(w.text, rng)) for w, is_hit in zip(words, hit, strict=True) if is_hit]
    return put(text, changed)


def _may_change(word: Word) -> bool:
    letters = word.text
    has_case = letters.lower() != letters.upper()  # scripts without case have short words
    long_enough = len(letters) >= SHORTEST and letters.isalpha()
    return long_enough and has_case and letters.islower() and letters not in _NEGATIONS


def _misspell(word: str, rng: np.random.Generator) -> str:
    """Two neighbouring letters swapped, or one doubled; a missing letter would make other words."""
    place = int(rng.integers(1, len(word) - 2))
    swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    doubled = word[: place + 1] + word[place:]
    both = [slip for slip in (swapped, doubled) if slip != word and slip not in _OTHER_WORDS]
    return both[int(rng.integers(len(both)))] if both else word
