"""case: sentences that begin in lower or upper case, or words in capitals."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from surefit.data.augment.words import free_words, put


def change_case(text: str, kept: Collection[str], rng: np.random.Generator) -> str:
    """Sentences begun otherwise, or all free words in capitals; names keep theirs.

    >>> change_case("Tell me who Ada was.", (), np.random.default_rng(0))
    'TELL ME WHO ADA WAS.'
    """
    words = free_words(text, kept)
    starts = [word for word in words if word.starts_sentence]
    ways = (
        put(text, [(word, word.text[0].lower() + word.text[1:]) for word in starts]),
        put(text, [(word, word.text[0].upper() + word.text[1:]) for word in starts]),
        put(text, [(word, word.text.upper()) for word in words]),
    )
    others = [way for way in ways if way != text]
    return others[rng.integers(len(others))] if others else text
