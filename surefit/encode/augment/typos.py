"""typos: slips inside words, at a rate."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from surefit.encode.augment.words import Word, free_words, put

SHORTEST = 4
_WITHOUT = {
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
"""Words that a slip of another word may turn into, and which mean something else."""


def add_typos(text: str, kept: Collection[str], rng: np.random.Generator, rate: float) -> str:
    """A slip in a `rate` of the words that may have one, and in one at least.

    These are free words in small letters of four or more; their first and last letters stay, so
    that they can still be read. Words that turn a question round (never, without) stay.

    >>> add_typos("please describe the weather", (), np.random.default_rng(1), rate=0.1)
    'please describe the weatehr'
    """
    words = [word for word in free_words(text, kept) if _can_slip(word)]
    if not words:
        return text
    hit = rng.random(len(words)) < rate
    hit[rng.integers(len(words))] = True
    slips = [(word, _slip(word.text, rng)) for word, slips in zip(words, hit, strict=True) if slips]
    return put(text, slips)


def _can_slip(word: Word) -> bool:
    letters = word.text
    has_case = letters.lower() != letters.upper()  # other scripts have no letters to spare
    long_enough = len(letters) >= SHORTEST and letters.isalpha()
    return long_enough and has_case and letters.islower() and letters not in _WITHOUT


def _slip(word: str, rng: np.random.Generator) -> str:
    """Two neighbouring letters swapped, or one doubled; a letter left out makes other words."""
    place = int(rng.integers(1, len(word) - 2))
    swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    doubled = word[: place + 1] + word[place:]
    both = [slip for slip in (swapped, doubled) if slip != word and slip not in _OTHER_WORDS]
    return both[int(rng.integers(len(both)))] if both else word
